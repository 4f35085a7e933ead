"""Connections that can only read, few of them, each question with a deadline."""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from app.errors import NotARunFileError, QueryTimeoutError, ReaderBusyError, RunFileError, RunFileMissingError
from app.store.models import SCHEMA_REVISION
from app.store.older import show_as_of_today
from app.store.schema import check_schema

# SQLite asks whether to go on after about this many of its own instructions, which is about a millisecond.
_STEPS_BETWEEN_LOOKS = 10_000
_MISFITS = (TypeError, ValueError, ArithmeticError, AttributeError)

_log = logging.getLogger("podium.store")


class ReadPool:
    """Lends connections to a run's file; they are opened when they are first needed."""

    def __init__(self, path: Path, size: int = 2, deadline_s: float = 0.25) -> None:
        """Name the file. ``deadline_s`` bounds the wait for a connection, and each question anew."""
        self._path = path
        self._deadline_s = deadline_s
        self._idle: queue.Queue[sqlite3.Connection | None] = queue.Queue()
        for _ in range(size):
            self._idle.put(None)
        self._closed = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection that sees the file as it is now, whatever is written meanwhile.

        Raises:
            ReaderBusyError: Every connection stayed taken.
            QueryTimeoutError: The question took too long.
            RunFileMissingError: There is no such file.
            NotARunFileError: It holds something else.
            SchemaVersionError: Another Podium wrote it.
            RunFileError: It cannot be read, holds what does not fit, or the pool is closed.
        """
        if self._closed:
            raise RunFileError(f"the reader of {self._path} is closed", str(self._path))
        try:
            connection = self._idle.get(timeout=self._deadline_s)
        except queue.Empty:
            raise ReaderBusyError(f"all connections to {self._path} are taken; ask again in a second") from None
        try:
            connection = connection or self._connect()
            yield from self._ask(connection)
        except sqlite3.Error as error:
            raise RunFileError(f"cannot read {self._path}: {error}", str(self._path)) from error
        except _MISFITS as error:
            # SQLite keeps a text in a column of numbers: a file from somebody else may hold one.
            _log.warning("%s holds something that does not fit", self._path, exc_info=True)
            message = f"{self._path} holds something that does not fit where it stands: {error}; podium db check looks"
            raise RunFileError(message, str(self._path)) from error
        finally:
            self._give_back(connection)

    def rest(self) -> None:
        """Close the connections that nobody uses; they are opened again when they are needed."""
        with self._lock:
            for _ in range(self._idle.qsize()):
                with contextlib.suppress(queue.Empty):
                    connection = self._idle.get_nowait()
                    if connection is not None:
                        connection.close()
                    self._idle.put(None)

    def close(self) -> None:
        """Close every connection as it comes back; may be called twice."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while True:
                    connection = self._idle.get_nowait()
                    if connection is not None:
                        connection.close()

    def _ask(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        ends_at = time.monotonic() + self._deadline_s
        connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS_BETWEEN_LOOKS)
        connection.execute("BEGIN")
        try:
            yield connection
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                message = f"a question to {self._path} took longer than {self._deadline_s} s; ask for a smaller part"
                raise QueryTimeoutError(message, deadline_s=self._deadline_s) from error
            raise
        finally:
            connection.set_progress_handler(None, 0)
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _give_back(self, connection: sqlite3.Connection | None) -> None:
        with self._lock:
            if not self._closed:
                self._idle.put(connection)
            elif connection is not None:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise RunFileMissingError(f"there is no file {self._path}", str(self._path))
        if not self._path.is_file():
            # Opening a pipe would wait for somebody to write into it.
            raise NotARunFileError(
                f"{self._path} is not the file of a Podium run: it is no plain file", str(self._path)
            )
        try:
            return self._opened("mode=ro")
        except sqlite3.OperationalError as error:
            # In a folder that nobody may write SQLite cannot make the files that go with a write-ahead log. Without a
            # log the file is whole, and nobody can be writing it.
            log = self._path.with_name(self._path.name + "-wal")
            if log.exists():
                way_out = f"if its folder cannot be written, copy it together with {log.name} into one that can"
                raise RunFileError(f"cannot read {self._path}: {error}; {way_out}", str(self._path)) from error
            return self._opened("mode=ro&immutable=1")

    def _opened(self, options: str) -> sqlite3.Connection:
        uri = f"file:{urllib.parse.quote(str(self._path.absolute()))}?{options}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        # Text that is no UTF-8 is a fault of that text alone: what surrounds it can be shown.
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            connection.execute("PRAGMA busy_timeout = 250")
            if check_schema(connection, self._path) != SCHEMA_REVISION:
                show_as_of_today(connection)
            connection.execute("PRAGMA query_only = 1")
        except BaseException:
            connection.close()
            raise
        return connection
