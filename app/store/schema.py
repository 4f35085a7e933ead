"""Makes an empty run's file, and checks whether this version of Podium can read a file.

SQLite runs what a schema says: a view in place of a table, a trigger, a generated column, an expression in a check or
an index. A run's file needs none of them but those that Podium writes, so every other one is refused by its name
before anything is asked of the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import create_mock_engine
from sqlalchemy.dialects import sqlite

from app.errors import NotARunFileError, SchemaVersionError
from app.store.models import APPLICATION_ID, READABLE_REVISIONS, SCHEMA_REVISION, Record

VERSION_TABLE = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)
# A run's file has about 40 objects, the longest of 1,100 characters.
_MOST_OBJECTS, _MOST_CHARACTERS, _MOST_SHOWN = 200, 20_000, 60


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
    connection.execute(VERSION_TABLE)
    connection.execute("INSERT INTO alembic_version VALUES (?)", (SCHEMA_REVISION,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def check_schema(connection: sqlite3.Connection, path: Path) -> str:
    """Make sure that the file holds a run that this Podium reads and nothing else, and return its revision.

    Raises:
        NotARunFileError: It holds something else.
        SchemaVersionError: Another Podium wrote it.
    """
    stranger = _stranger(connection, path)
    found = revision_of(connection, path)
    if found not in READABLE_REVISIONS:
        raise SchemaVersionError(
            f"{path} has schema {found}; this version of Podium reads {', '.join(READABLE_REVISIONS)}; "
            f"open it with the version of Podium that wrote it, or upgrade this one",
            str(path),
            found,
            SCHEMA_REVISION,
        )
    if stranger:
        raise NotARunFileError(
            f"{path} is not a Podium run file: its schema contains {stranger}, which Podium does not execute",
            str(path),
        )
    return found


def revision_of(connection: sqlite3.Connection, path: Path) -> str:
    """Return the schema revision of a run's file.

    Raises:
        NotARunFileError: It holds something else.
    """
    with _in_words(path):
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id == APPLICATION_ID:
            declared = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            if declared is not None and is_ours(str(declared[0])):
                row = connection.execute("SELECT substr(version_num, 1, ?) FROM alembic_version", (_MOST_SHOWN,))
                found = row.fetchone()
                if found is not None:
                    return str(found[0])
    raise NotARunFileError(f"{path} is not a Podium run file", str(path))


def _stranger(connection: sqlite3.Connection, path: Path) -> str:
    """Return what the file's schema holds that is not ours, such as "the view 'event'"; empty where all of it is.

    An older file may lack some columns. Reading the schema runs nothing that it says.
    """
    with _in_words(path):
        for kind, name, sql in _objects(connection):
            if sql is None and kind == "index" and name.startswith("sqlite_autoindex_"):
                continue
            if sql is None or not is_ours(sql):
                return f"the {kind[:20]} {name[:_MOST_SHOWN]!r}"
    return ""


@contextlib.contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise NotARunFileError(f"{path} is not a Podium run file: {error}", str(path)) from error


def is_ours(sql: str) -> bool:
    """Return whether a statement of a schema is one of ours, or an older one with fewer columns."""
    head, *parts, tail = pieces(sql)
    known = _known().get(head)
    return known is not None and tail == known[-1] and set(parts) <= set(known[1:-1])


def pieces(sql: str) -> list[str]:
    """Return ``sql`` cut at the commas directly inside its outer parentheses, the parts between head and tail sorted.

    The order of a table's columns and constraints means nothing, as every statement names the columns that it reads.
    """
    cut, depth = [""], 0
    for letter in " ".join(sql.replace("(", " ( ").replace(")", " ) ").split()):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 1:
            cut.append("")
        else:
            cut[-1] += letter
    first, *rest = cut
    head, _, piece = first.partition("(")
    last, _, tail = (rest[-1] if rest else piece).rpartition(")")
    parts = [piece, *rest[:-1], last] if rest else [last]
    return [head.strip(), *sorted(part.strip() for part in parts), tail.strip()]


def _objects(connection: sqlite3.Connection) -> Iterator[tuple[str, str, str | None]]:
    rows = connection.execute(
        "SELECT type, name, sql, coalesce(length(sql), 0) FROM sqlite_master LIMIT ?", (_MOST_OBJECTS + 1,)
    )
    for n, (kind, name, sql, length) in enumerate(rows, start=1):
        strange = n > _MOST_OBJECTS or length > _MOST_CHARACTERS
        yield str(kind), str(name), None if strange or sql is None else str(sql)


@cache
def _known() -> Mapping[str, list[str]]:
    """Return the pieces of every statement of our schema by their head, such as "CREATE TABLE call"."""
    return {cut[0]: cut for cut in map(pieces, (*schema_statements(), VERSION_TABLE))}
