"""Moves an older run's file to the schema of today. The only module that imports alembic: a driver never does."""

from __future__ import annotations

import importlib.resources
import sqlite3
from pathlib import Path
from typing import Any

import alembic.command
import alembic.migration
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import StaticPool

from app.errors import RunFileMissingError, SchemaVersionError
from app.store.lock import FileLock
from app.store.models import APPLICATION_ID, SCHEMA_REVISION, Record
from app.store.schema import revision_of


def migrations_dir() -> Path:
    """Return the folder of the migrations: inside the wheel, or at the top of the source tree."""
    package = Path(str(importlib.resources.files("app")))
    inside = package / "_migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def upgrade(path: Path) -> tuple[str, str]:
    """Move the run's file to the schema of today, and return the revisions before and after.

    Raises:
        RunFileMissingError: There is no such file.
        NotARunFileError: The file holds something else.
        SchemaVersionError: A newer Podium wrote it.
        RunLockedError: A driver is writing it.
    """
    if not path.is_file():
        raise RunFileMissingError(f"there is no file {path}", str(path))
    lock = FileLock(path)
    lock.acquire()
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            before = revision_of(connection, path)
            if before not in known_revisions():
                message = f"{path} has schema {before}, newer than {SCHEMA_REVISION} of this Podium; update Podium"
                raise SchemaVersionError(message, str(path), before, SCHEMA_REVISION)
            run_migrations(connection)
            return before, revision_of(connection, path)
        finally:
            connection.close()
    finally:
        lock.release()


def known_revisions() -> tuple[str, ...]:
    """Return every revision that there is a migration for, newest first."""
    script = ScriptDirectory(str(migrations_dir()))
    return tuple(revision.revision for revision in script.walk_revisions())


def run_migrations(connection: sqlite3.Connection) -> None:
    """Run every migration that the file has not seen; of an empty file this makes a run's file."""
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with _engine(connection).begin() as sql:
        config.attributes["connection"] = sql
        alembic.command.upgrade(config, "head")
        sql.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")


def differences(connection: sqlite3.Connection) -> list[Any]:
    """Return what alembic would still have to do to make the file equal to the models."""
    with _engine(connection).connect() as sql:
        context = alembic.migration.MigrationContext.configure(sql, opts={"compare_type": True})
        return list(compare_metadata(context, Record.metadata))


def _engine(connection: sqlite3.Connection) -> Engine:
    return create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
