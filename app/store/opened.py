"""Opens a run's file from anybody: what it may cost to look into is bounded before the first question is put to it.

A file decides neither how long a question takes, nor how much memory its answer needs, nor which file is touched.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sqlite3
import stat
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.errors import NotARunFileError, QueryTimeoutError, RunFileError, RunFileMissingError
from app.store.schema import check_schema
from app.store.texts import TRACEBACK

# SQLite asks whether to go on after about this many of its own instructions, which is about a millisecond.
_STEPS_BETWEEN_LOOKS = 10_000
# A page of 1,000 calls and the longest list of workers stay far below; so do 100 deaths, each with its log's end.
MOST_ROWS, MOST_CHARACTERS = 200_000, 16_000_000
# A text is kept up to TRACEBACK characters of at most four bytes; older files hold texts of any length.
_MOST_TEXT_BYTES = 4 * (TRACEBACK + 100)
# What Python raises of a value of another kind: SQLite keeps a text in a column of numbers.
_MISFITS = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, MemoryError)
_MOST_SAID = 200
_HEAP_BYTES = 96 * 1024**2
_LIMITS = {
    # The longest text, blob or row that SQLite touches, in bytes.
    sqlite3.SQLITE_LIMIT_LENGTH: 32 * 1024**2,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_PRAGMAS = ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "temp_store = MEMORY")
# The last bytes of a rollback journal that names another file, which SQLite would delete.
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
# What a look through a whole file may take: so long, and a second more for so many bytes of it.
_LEAST_PATIENCE_S, _BYTES_PER_S = 5.0, 4 * 1024**2


class RunConnection(sqlite3.Connection):
    """A connection on which a question ends when it takes too long, or its answer too much memory."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Connect as sqlite3 does, and set every limit."""
        super().__init__(*arguments, **named)
        for category, most in _LIMITS.items():
            self.setlimit(category, most)
        self._question = _Question("", math.inf)
        self.revision = ""

    @contextlib.contextmanager
    def question(self, path: Path, deadline_s: float) -> Iterator[None]:
        """Bound what is asked inside: it takes ``deadline_s`` at most, and no longer than a question around it.

        Raises:
            QueryTimeoutError: It took longer.
            RunFileError: A value does not fit, or the answer is larger than any of a run.
        """
        before, asked = self._question, _Question(str(path), deadline_s)
        asked.ends_at = min(asked.ends_at, before.ends_at)
        self._bound_by(asked)
        try:
            yield
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise asked.too_long() from error
            raise
        except _MISFITS as error:
            raise misfit(path, error) from error
        finally:
            self._bound_by(before)

    def _bound_by(self, question: _Question) -> None:
        self._question = question
        self.text_factory, self.row_factory = question.text, question.row
        self.set_progress_handler(question.is_over, _STEPS_BETWEEN_LOOKS)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement, if there is time: SQLite itself does not count from one short statement to the next.

        Raises:
            QueryTimeoutError: The question's time is over.
        """
        self._question.check_time()
        return super().execute(sql, parameters)

    def cursor(self, factory: Any = sqlite3.Cursor, /) -> Any:
        """Return a cursor, if there is time.

        Raises:
            QueryTimeoutError: The question's time is over.
        """
        self._question.check_time()
        return super().cursor(factory)


class _Question:
    """What one question has cost so far."""

    def __init__(self, path: str, deadline_s: float) -> None:
        self._path, self._deadline_s = path, deadline_s
        self.ends_at = time.monotonic() + deadline_s
        self._n_rows = self._n_characters = 0

    def is_over(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() > self.ends_at

    def check_time(self) -> None:
        """Raise when the time is over."""
        if self.is_over():
            raise self.too_long()

    def too_long(self) -> QueryTimeoutError:
        """Return the error of a question that took too long."""
        message = f"a query on {self._path} took longer than {self._deadline_s:g} s; request a smaller range"
        return QueryTimeoutError(message, deadline_s=self._deadline_s)

    def text(self, raw: bytes) -> str:
        """Return a text of the file, cut where it is longer than any that Podium writes.

        Text that is not UTF-8 is a fault of that text alone: what surrounds it can be shown.
        """
        found = raw[:_MOST_TEXT_BYTES].decode("utf-8", "replace")
        self._n_characters += len(found)
        if self._n_characters > MOST_CHARACTERS:
            raise ValueError(f"more than {MOST_CHARACTERS:,} characters of text in one result")
        return found

    def row(self, _cursor: sqlite3.Cursor, values: tuple[object, ...]) -> tuple[object, ...]:
        """Return a row as it is: no row of a run's file has a blob, and no answer so many rows."""
        self._n_rows += 1
        if self._n_rows > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS:,} rows in one result")
        for value in values:
            if value.__class__ is bytes:
                raise ValueError("a blob where a number or text is expected")
        return values


def misfit(path: Path, error: Exception) -> RunFileError:
    """Return the error of a file from somebody else that holds what no Podium writes."""
    what = "more data than the memory limit for reading" if isinstance(error, MemoryError) else str(error)
    shown = what.encode("unicode_escape").decode()[:_MOST_SAID]
    message = f"{path} contains an invalid value: {shown}; run podium db check"
    return RunFileError(message, str(path))


def check_plain(path: Path) -> os.stat_result:
    """Make sure that ``path`` is a file, not something that would hang or that SQLite would make.

    Raises:
        RunFileMissingError: There is no such file.
        NotARunFileError: It is a folder, a pipe, a device, or empty.
        RunFileError: The system refuses to look.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise RunFileMissingError(f"there is no file {path}", str(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunFileError(f"cannot read {path}: {reason}", str(path)) from error
    if not stat.S_ISREG(found.st_mode):
        what = _kind(found.st_mode)
        raise NotARunFileError(f"{path} is not a Podium run file: it is {what}", str(path))
    if not found.st_size:
        raise NotARunFileError(f"{path} is not a Podium run file: it is empty", str(path))
    return found


def real_path(path: Path) -> Path:
    """Return the file that a link leads to: beside that one lie its log and the lock of who writes it.

    Raises:
        RunFileError: The link leads nowhere, or round in a circle.
    """
    try:
        return path.resolve(strict=True) if path.is_symlink() else path
    except FileNotFoundError:
        raise RunFileMissingError(f"the link {path} leads to no file", str(path)) from None
    except (OSError, RuntimeError, ValueError) as error:
        # Python says RuntimeError of a circle of links.
        reason = error.strerror if isinstance(error, OSError) else os.strerror(errno.ELOOP)
        raise RunFileError(f"cannot read {path}: {reason}", str(path)) from error


def open_to_read(path: Path) -> RunConnection:
    """Open a run's file so that nothing can be changed in it.

    Raises:
        RunFileMissingError: There is no such file.
        NotARunFileError: It holds something else.
        SchemaVersionError: Another Podium wrote it.
        RunFileError: It cannot be read.
        sqlite3.Error: Likewise.
    """
    check_plain(path)
    try:
        return _opened(path, "mode=ro")
    except sqlite3.OperationalError as error:
        # In a folder that nobody may write SQLite cannot make the files that go with a write-ahead log. Without a
        # log the file is whole, and nobody can be writing it.
        log = path.with_name(path.name + "-wal")
        if log.exists():
            way_out = f"if its folder cannot be written, copy it together with {log.name} into one that can"
            raise RunFileError(f"cannot read {path}: {error}; {way_out}", str(path)) from error
        return _opened(path, "mode=ro&immutable=1")


def open_to_change(path: Path) -> RunConnection:
    """Open the file of a run that is over, whose lock the caller holds. Raises what ``open_to_read`` raises."""
    check_plain(path)
    _check_beside(path)
    _check_journal(path)
    return _opened(path, "mode=rw")


def patience_s(path: Path, slower: int = 1) -> float:
    """Return how long a look through a whole file may take, by the room that it takes on the disk.

    ``slower`` is how many times longer a change of the file may take.
    """
    return _LEAST_PATIENCE_S + slower * path.stat().st_blocks * 512 / _BYTES_PER_S


def bound_memory() -> None:
    """Let SQLite take 128 MiB at most in this process, which looks into files and records no run of its own."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}")


def _check_beside(path: Path) -> None:
    """Make sure that what SQLite opens beside a run's file is a file: reading a pipe would never end.

    Raises:
        RunFileError: Something else is there.
    """
    whole = os.path.realpath(path)
    for suffix in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(whole + suffix).st_mode
            if not stat.S_ISREG(mode):
                raise RunFileError(f"{whole}{suffix} is {_kind(mode)}, not a file; remove it", str(path))


def _opened(path: Path, options: str) -> RunConnection:
    _check_beside(path)
    uri = f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?{options}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, factory=RunConnection, cached_statements=256
    )
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("PRAGMA busy_timeout = 250")
        with connection.question(path, _LEAST_PATIENCE_S):
            connection.revision = check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_journal(path: Path) -> None:
    """Refuse a journal that names a further file: on its rollback SQLite deletes that one, whatever it is.

    Raises:
        RunFileError: There is such a journal.
    """
    journal = path.with_name(path.name + "-journal")
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(journal, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            end = os.lseek(handle, 0, os.SEEK_END)
            found = os.pread(handle, len(_JOURNAL_MAGIC), max(0, end - len(_JOURNAL_MAGIC)))
        finally:
            os.close(handle)
        if found == _JOURNAL_MAGIC:
            message = (
                f"{journal} names another file, which Podium never writes; remove the journal if you trust the run file"
            )
            raise RunFileError(message, str(path))


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")
