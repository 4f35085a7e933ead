"""Connections that can only read, few of them, each question with a deadline."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from app.errors import ReaderBusyError, RunFileError
from app.store.models import SCHEMA_REVISION
from app.store.opened import RunConnection, open_to_read
from app.store.schema_compat import add_compat_views


class ReadPool:
    """Lends connections to a run's file; they are opened when they are first needed."""

    def __init__(self, path: Path, size: int = 2, deadline_s: float = 0.25) -> None:
        """Name the file. ``deadline_s`` bounds the wait for a connection, and each question anew."""
        self._path = path
        self._deadline_s = deadline_s
        self._idle: queue.Queue[RunConnection | None] = queue.Queue()
        for _ in range(size):
            self._idle.put(None)
        self._closed = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self) -> Iterator[RunConnection]:
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
            raise ReaderBusyError(f"all connections to {self._path} are in use; retry in a second") from None
        try:
            connection = connection or self._connect()
            with connection.question(self._path, self._deadline_s):
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if connection.in_transaction:
                        connection.rollback()
        except sqlite3.Error as error:
            raise RunFileError(f"cannot read {self._path}: {error}", str(self._path)) from error
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

    def _give_back(self, connection: RunConnection | None) -> None:
        with self._lock:
            if not self._closed:
                self._idle.put(connection)
            elif connection is not None:
                connection.close()

    def _connect(self) -> RunConnection:
        connection = open_to_read(self._path)
        try:
            if connection.revision != SCHEMA_REVISION:
                add_compat_views(connection)
            connection.execute("PRAGMA query_only = 1")
        except BaseException:
            connection.close()
            raise
        return connection
