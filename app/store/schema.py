"""Makes an empty run's file, and tells whether a file is one that this Podium reads."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import create_mock_engine
from sqlalchemy.dialects import sqlite

from app.errors import NotARunFileError, SchemaVersionError
from app.store.models import APPLICATION_ID, READABLE_REVISIONS, SCHEMA_REVISION, Record


def schema_statements() -> tuple[str, ...]:
    """Return the SQL that makes every table, index and trigger."""
    statements: list[str] = []

    def keep(statement: Any, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=sqlite.dialect())).strip())

    Record.metadata.create_all(create_mock_engine("sqlite://", keep), checkfirst=False)
    return tuple(statements)


def create_schema(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file, inside the transaction that the caller has begun."""
    for statement in schema_statements():
        connection.execute(statement)
    connection.execute(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
        "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    connection.execute("INSERT INTO alembic_version VALUES (?)", (SCHEMA_REVISION,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def check_schema(connection: sqlite3.Connection, path: Path) -> str:
    """Make sure that the file holds a run that this Podium reads, and return its revision.

    Raises:
        NotARunFileError: It holds something else.
        SchemaVersionError: Another Podium wrote it.
    """
    found = revision_of(connection, path)
    if found not in READABLE_REVISIONS:
        raise SchemaVersionError(
            f"{path} has schema {found}, this Podium reads {', '.join(READABLE_REVISIONS)}; "
            f"look at it with the Podium that wrote it, or update this one if it is older",
            str(path),
            found,
            SCHEMA_REVISION,
        )
    return found


def revision_of(connection: sqlite3.Connection, path: Path) -> str:
    """Return the schema revision of a run's file.

    Raises:
        NotARunFileError: It holds something else.
    """
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id == APPLICATION_ID:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            if row is not None:
                return str(row[0])
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
    except sqlite3.DatabaseError as error:
        raise NotARunFileError(f"{path} is not the file of a Podium run: {error}", str(path)) from error
    raise NotARunFileError(f"{path} is not the file of a Podium run", str(path))
