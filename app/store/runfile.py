"""The one connection that writes and checkpoints a run's file.

SQLite before 3.51.3 can corrupt a file when two connections write or checkpoint at the same time, so nobody else ever
does either.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import RunFileError, RunsFolderError
from app.store.event_reducer import Batch
from app.store.facts import RunFacts
from app.store.lock import FileLock
from app.store.models import ClockAnchor, Run
from app.store.private import open_private
from app.store.schema import check_schema, create_schema
from app.store.sql import column_names, insert_or_ignore, update, upsert
from app.store.trim import delete_spans, used_bytes

_RUN_COLUMNS = column_names(Run)
_PUT_RUN = upsert(Run)
_STATE = update(
    Run,
    (
        "sequence",
        "heartbeat_wall_ns",
        "n_recorded",
        "n_dropped",
        "n_calls",
        "n_failed_calls",
        "last_ns",
        "writer_lag_ns",
    ),
)
_ADD_ANCHOR = insert_or_ignore(ClockAnchor, ("at_ns", "wall_ns"))
_BEAT = update(Run, ("heartbeat_wall_ns", "n_dropped", "writer_lag_ns"))
_END = update(Run, ("sequence", "heartbeat_wall_ns", "status", "clean_exit"))
_VACUUM_PAGES = 1_000
_RUN_ID = 1


def _as_utf8(row: Sequence[object]) -> list[object]:
    """Return ``row`` with "?" for what UTF-8 cannot say, such as half of a pair in the name of a file."""
    return [value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in row]


@dataclass(slots=True)
class Counters:
    """What the run's row says of the recording."""

    sequence: int = 0
    n_recorded: int = 0
    n_dropped: int = 0
    writer_lag_ns: int = 0


class RunFile:
    """Writes a run's file. `create` may run on one thread, everything after on another one."""

    def __init__(self, path: Path) -> None:
        """Name the file; nothing is touched yet."""
        self._path = path
        self._lock = FileLock(path)
        self._connection: sqlite3.Connection | None = None
        self.journal = "wal"
        self._started_ns = 0

    def create(self, facts: RunFacts, journal: str = "wal") -> None:
        """Lock and make the file with its tables and the run's row.

        Args:
            facts: The run.
            journal: "wal", or "delete" where a write-ahead log cannot be. ``self.journal`` says which it became.

        Raises:
            RunLockedError: Another process writes this file.
            RunsFolderError: No file can be made there.
            NotARunFileError: Something else is in the file.
            SchemaVersionError: A run of another Podium is in the file.
            RunFileError: A run is in the file already.
        """
        try:
            self._lock.acquire()
            self._started_ns = facts.started_ns
            # SQLite gives its log and its shared memory the rights of the file.
            if not (self._path.exists() and self._path.stat().st_size):
                os.close(open_private(self._path, os.O_RDWR))
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._create(self._connection, facts, journal)
        except (OSError, sqlite3.OperationalError) as error:
            self.close()
            folder = str(self._path.parent)
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise RunsFolderError(f"cannot create a run file in {folder}: {reason}", folder, reason) from error
        except RunFileError:
            self.close()
            raise

    def limit_bytes(self, n_bytes: int) -> None:
        """Let the file grow to ``n_bytes`` at most, 0 for no limit; past it a write fails as on a full disk."""
        connection = self._open()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        pages = n_bytes // page_bytes if n_bytes else 2**32 - 2
        connection.execute(f"PRAGMA max_page_count = {max(1, pages)}")

    def write(self, batch: Batch, counters: Counters) -> None:
        """Write ``batch`` in one transaction; nothing of it is written when an error is raised.

        Raises:
            sqlite3.Error: It could not be written.
        """
        connection = self._open()
        with self._transaction(batch.durable):
            for statement, rows in batch.statements:
                connection.executemany(statement, rows)
            self._put_state(batch, counters)

    def write_row_by_row(self, batch: Batch, counters: Counters) -> int:
        """Write what can be written of a batch that holds a row the file refuses, and return how many rows it refused.

        Raises:
            sqlite3.OperationalError: The file cannot be written at all just now.
        """
        connection = self._open()
        n_refused = 0
        with self._transaction(batch.durable):
            for statement, rows in batch.statements:
                for row in rows:
                    try:
                        connection.execute(statement, _as_utf8(row))
                    except sqlite3.OperationalError:
                        raise
                    except (sqlite3.Error, OverflowError):
                        n_refused += 1
            self._put_state(batch, counters)
        return n_refused

    def beat(self, n_dropped: int, writer_lag_ns: int) -> None:
        """Say that the driver lives, what was dropped and how far the writer is behind.

        Raises:
            sqlite3.Error: It could not be written.
        """
        self._open().execute(_BEAT, (time.time_ns(), n_dropped, writer_lag_ns, _RUN_ID))

    def anchor(self, now_ns: int, wall_ns: int) -> None:
        """Keep what the wall clock says at a moment of the driver clock.

        Raises:
            sqlite3.Error: It could not be written.
        """
        self._open().execute(_ADD_ANCHOR, (now_ns - self._started_ns, wall_ns))

    def log_bytes(self) -> int:
        """Return how long the write-ahead log is."""
        try:
            return self._path.with_name(self._path.name + "-wal").stat().st_size
        except OSError:
            return 0

    def end(self, status: str, clean: bool, sequence: int) -> None:
        """Say how the run ended.

        Raises:
            sqlite3.Error: It could not be written.
        """
        with self._transaction(durable=True):
            self._open().execute(_END, (sequence, time.time_ns(), status, clean, _RUN_ID))

    def used_bytes(self) -> int:
        """Return what the file holds, free pages not counted.

        Raises:
            sqlite3.Error: It could not be read.
        """
        return used_bytes(self._open())

    def prune(self, before_ns: int, n_rows: int) -> int:
        """Delete about ``n_rows`` spans that began before ``before_ns`` and return how many; 0 when none are left.

        Raises:
            sqlite3.Error: They could not be deleted.
        """
        connection = self._open()
        with self._transaction(durable=False):
            n_gone = delete_spans(connection, before_ns, n_rows)
        connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        return n_gone

    def checkpoint(self, truncate: bool) -> None:
        """Move what the write-ahead log holds into the file, and empty the log when ``truncate``.

        Raises:
            sqlite3.Error: It could not be moved.
        """
        self._open().execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if truncate else 'PASSIVE'})").fetchall()

    def close(self) -> None:
        """Leave a file that is whole by itself, and close it; may be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA busy_timeout = 100")
                # A file without a write-ahead log can be copied, and read in a folder that nobody may write.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            connection.close()
        self._lock.release()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RunFileError(f"{self._path} is closed", str(self._path))
        return self._connection

    def _create(self, connection: sqlite3.Connection, facts: RunFacts, journal: str) -> None:
        connection.execute("PRAGMA busy_timeout = 5000")
        if self._path.stat().st_size:
            check_schema(connection, self._path)
            raise RunFileError(
                f"{self._path} already contains a run; choose another file for this run", str(self._path)
            )
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Where memory cannot be shared SQLite keeps the journal that it has, and says so.
        (self.journal,) = connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()
        for pragma in (
            "synchronous = NORMAL",
            "foreign_keys = ON",
            "journal_size_limit = 67108864",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        # This connection decides itself when to checkpoint.
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        with self._transaction(durable=True):
            create_schema(connection)
            row = Run(
                id=_RUN_ID,
                uid=facts.uid,
                name=facts.name,
                script=facts.script,
                host=facts.host,
                pid=facts.pid,
                podium_version=facts.podium_version,
                python_version=facts.python_version,
                ray_version=facts.ray_version,
                started_wall_ns=facts.started_wall_ns,
                started_ns=facts.started_ns,
                heartbeat_wall_ns=time.time_ns(),
                journal=self.journal,
                git=facts.git,
            )
            connection.execute(_PUT_RUN, _as_utf8([getattr(row, name) for name in _RUN_COLUMNS]))

    def _put_state(self, batch: Batch, counters: Counters) -> None:
        state = (
            counters.sequence,
            time.time_ns(),
            counters.n_recorded,
            counters.n_dropped,
            batch.n_calls,
            batch.n_failed_calls,
            batch.last_ns,
            counters.writer_lag_ns,
            _RUN_ID,
        )
        self._open().execute(_STATE, state)

    @contextlib.contextmanager
    def _transaction(self, durable: bool) -> Iterator[None]:
        connection = self._open()
        # It cannot change inside a transaction.
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
