"""Who writes a run's file: a lock file that the system releases when the writer exits for any reason."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from app.errors import RunLockedError
from app.store.private import open_beside, open_private

_TRIES, _PAUSE_S = 5, 0.02
# A process's id has at most seven digits.
_MOST_BYTES = 10


def lock_path(path: Path) -> Path:
    """Return the lock's file of a run's file."""
    return path.with_name(path.name + ".lock")


class FileLock:
    """An exclusive lock on a run's file, held by one process."""

    def __init__(self, path: Path) -> None:
        """Name the run's file; nothing is locked yet."""
        self._path = path
        self._file = -1

    def acquire(self, way_out: str = "choose another file for this run") -> None:
        """Take the lock and leave this process's id in it; ``way_out`` ends what is said to who does not get it.

        Raises:
            RunLockedError: Another writer holds it.
            OSError: The lock's file cannot be made.
        """
        name = lock_path(self._path)
        # A reader that looks whether the lock is free holds it for a moment.
        for _ in range(_TRIES):
            file = open_private(name, os.O_RDWR)
            if _try(file, fcntl.LOCK_EX) and _is_still(name, file):
                os.ftruncate(file, 0)
                os.pwrite(file, str(os.getpid()).encode(), 0)
                self._file = file
                return
            os.close(file)
            time.sleep(_PAUSE_S)
        pid = holder(self._path)
        raise RunLockedError(f"{self._path} is being written by process {pid}; {way_out}", str(self._path), pid)

    def release(self) -> None:
        """Let go; may be called twice."""
        if self._file >= 0:
            lock_path(self._path).unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def holder(path: Path) -> int:
    """Return the process that the lock names, 0 when it names none."""
    try:
        file = open_beside(lock_path(path))
    except OSError:
        return 0
    try:
        return int(os.read(file, _MOST_BYTES))
    except ValueError:
        return 0
    finally:
        os.close(file)


def is_free(path: Path) -> bool:
    """Return whether nobody writes the run's file."""
    try:
        file = open_beside(lock_path(path))
    except OSError:
        return True
    try:
        return _try(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _try(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(name: Path, file: int) -> bool:
    """Say whether the file locked is the one of that name; its last holder may have removed it meanwhile."""
    try:
        return os.stat(name).st_ino == os.fstat(file).st_ino
    except FileNotFoundError:
        return False
