"""Moves an older run's file to the schema of today. The only module that imports alembic: a driver never does."""

from __future__ import annotations

import contextlib
import errno
import importlib.resources
import itertools
import os
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alembic.command
import alembic.migration
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from app.errors import DamagedFileError, RunsFolderError
from app.store.lock import FileLock
from app.store.models import APPLICATION_ID, SCHEMA_REVISION, Record
from app.store.opened import check_plain, open_to_change, patience_s
from app.store.private import open_private
from app.store.schema import revision_of


def migrations_dir() -> Path:
    """Return the folder of the migrations: inside the wheel, or at the top of the source tree."""
    package = Path(str(importlib.resources.files("app")))
    inside = package / "_migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The revisions before and after, and where the file as it was is kept; None where nothing was to do."""

    before: str
    after: str
    backup: Path | None


def upgrade(path: Path) -> Upgraded:
    """Move the run's file to the schema of today; the file as it was is kept beside it.

    A copy is moved and then takes the file's place, so that whatever goes wrong leaves the file as it was.

    Raises:
        RunFileMissingError: There is no such file.
        NotARunFileError: The file holds something else.
        DamagedFileError: SQLite's quick check finds it broken.
        SchemaVersionError: A newer Podium wrote it.
        RunLockedError: A driver is writing it.
        RunsFolderError: There is no room, or no right, to write the copy.
    """
    check_plain(path)
    lock = FileLock(path)
    try:
        lock.acquire("upgrade it after that run has ended")
        with contextlib.closing(open_to_change(path)) as connection, connection.question(path, patience_s(path, 8)):
            before = connection.revision
            if before == SCHEMA_REVISION:
                return Upgraded(before, before, None)
            _check(connection, path)
            copy = _copy(connection, path)
        try:
            with contextlib.closing(open_to_change(copy)) as connection, connection.question(copy, patience_s(copy, 8)):
                run_migrations(connection)
                after = revision_of(connection, copy)
            backup = _free_name(path, before)
            os.rename(path, backup)
            os.rename(copy, path)
        finally:
            copy.unlink(missing_ok=True)
        return Upgraded(before, after, backup)
    except (OSError, sqlite3.Error, DBAPIError) as error:
        # SQLAlchemy's own text is the whole statement and an address on the web.
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = cause.strerror or str(cause) if isinstance(cause, OSError) else str(cause)
        folder = str(path.parent)
        raise RunsFolderError(f"cannot upgrade {path}: {reason}; the file was not changed", folder, reason) from error
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


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that the file is whole before anything is made of it.

    Raises:
        DamagedFileError: It is not.
    """
    try:
        (fault,) = connection.execute("PRAGMA main.quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        fault = str(error)
    if fault != "ok":
        fault = fault.strip().splitlines()[-1]
        way_out = "run podium db check for details; podium view shows what is readable"
        message = f"{path} is damaged ({fault}) and was not changed; {way_out}"
        raise DamagedFileError(message, str(path), fault)


def _copy(connection: sqlite3.Connection, path: Path) -> Path:
    """Copy the file of ``connection``, its write-ahead log included, and return where to."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    free = shutil.disk_usage(path.parent).free
    needed = path.stat().st_size * 5 // 4
    if free < needed:
        raise OSError(errno.ENOSPC, f"the copy needs {needed:,} bytes, but only {free:,} are free")
    copy = path.with_name(path.name + ".upgrading")
    copy.unlink(missing_ok=True)
    os.close(open_private(copy, os.O_RDWR | os.O_EXCL))
    with contextlib.closing(sqlite3.connect(copy)) as target:
        connection.backup(target)
    return copy


def _free_name(path: Path, revision: str) -> Path:
    """Return a name for the file as it was that no other file has."""
    extras = itertools.chain(("",), (f".{n}" for n in itertools.count(2)))
    names = (path.with_name(f"{path.name}.schema-{revision}{extra}.bak") for extra in extras)
    return next(name for name in names if not name.exists())
