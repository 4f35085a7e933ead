"""Tells whether a run's file is whole: by SQLite's own word, by its schema, and by number."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from app.errors import RunLockedError
from app.store.lock import holder, is_free
from app.store.models import SCHEMA_REVISION
from app.store.readpool import ReadPool
from app.store.schema import revision_of

_MOST_RANGES = 1_000
_PATIENCE_S = 3_600.0
# Tables whose rows are numbered from 1 and never deleted.
_NUMBERED = ("call", "event", "step", "operation", "audit_entry", "death")


@dataclass(frozen=True, slots=True)
class Missing:
    """Numbers from ``first`` to ``last`` that a table has no rows of."""

    table: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found. ``faults`` are SQLite's own words, empty for a file that is whole.

    ``n_dropped`` events are known not to be on file; ``missing`` is what is not there, by number.
    """

    path: str
    revision: str
    is_current: bool
    faults: tuple[str, ...]
    n_calls: int
    n_spans: int
    n_dropped: int
    pruned_before_ns: int | None
    missing: tuple[Missing, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the file is sound and no number is missing."""
        return not self.faults and not self.missing


def check(path: Path) -> Checked:
    """Look through the whole file of a run that is over, and change nothing.

    Raises:
        RunFileMissingError: There is no such file.
        NotARunFileError: The file holds something else.
        SchemaVersionError: Another Podium wrote it.
        RunLockedError: A driver is writing it: a look this long would make its write-ahead log grow.
        RunFileError: It cannot be read at all.
    """
    if not is_free(path):
        pid = holder(path)
        raise RunLockedError(
            f"{path} is being written by process {pid}; check it when that run is over", str(path), pid
        )
    pool = ReadPool(path, 1, _PATIENCE_S)
    try:
        with pool.lend() as connection:
            revision = revision_of(connection, path)
            faults = _faults(connection)
            return _checked(connection, path, revision, faults)
    finally:
        pool.close()


def _checked(connection: sqlite3.Connection, path: Path, revision: str, faults: tuple[str, ...]) -> Checked:
    n_dropped, pruned_ns = connection.execute("SELECT n_dropped, pruned_before_ns FROM run").fetchone()
    (n_calls,) = connection.execute("SELECT count(*) FROM call").fetchone()
    (n_spans,) = connection.execute("SELECT count(*) FROM rank_span").fetchone()
    missing = tuple(found for table in _NUMBERED for found in _missing(connection, table))
    return Checked(
        str(path), revision, revision == SCHEMA_REVISION, faults, n_calls, n_spans, n_dropped, pruned_ns, missing
    )


def _faults(connection: sqlite3.Connection) -> tuple[str, ...]:
    words = [row[0] for row in connection.execute("PRAGMA main.integrity_check")]
    rows = connection.execute("PRAGMA main.foreign_key_check").fetchall()
    lost = [f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there" for row in rows[:_MOST_RANGES]]
    return (*(word for word in words if word != "ok"), *lost)


def _missing(connection: sqlite3.Connection, table: str) -> list[Missing]:
    rows = connection.execute(
        f"SELECT before + 1, id - 1 FROM (SELECT id, lag(id, 1, 0) OVER (ORDER BY id) AS before FROM {table}) "
        "WHERE id > before + 1 ORDER BY id LIMIT ?",
        (_MOST_RANGES,),
    )
    return [Missing(table, first, last) for first, last in rows]
