"""Free disk space of a run file: checked once a second, with a small reserve for when the disk is full."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import IO

_LOOK_S = 1.0


class DiskSpace:
    """Checks the free space of the disk and keeps a ballast file on it."""

    def __init__(self, folder: Path, min_free_bytes: int, ballast_bytes: int) -> None:
        """Name the folder; nothing is taken before ``hold``."""
        self._folder = folder
        self._min_free_bytes = min_free_bytes
        self._ballast_bytes = ballast_bytes
        self._ballast: IO[bytes] | None = None
        self._looked_at = 0.0
        self._short = ""

    def hold(self) -> None:
        """Allocate the ballast, unless that leaves less space than the minimum.

        It is a file without a name: the system frees its space when this process exits for any reason.
        """
        if self._ballast is not None or self.free_bytes() < self._min_free_bytes + self._ballast_bytes:
            return
        with contextlib.suppress(OSError):
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, self._ballast_bytes))
            except OSError:
                file.close()
                raise
            self._ballast = file

    def release_ballast(self) -> bool:
        """Release the ballast and return whether there was one."""
        file, self._ballast = self._ballast, None
        if file is None:
            return False
        with contextlib.suppress(OSError), file:
            # A forked child may have the file open too, and would keep its space.
            os.ftruncate(file.fileno(), 0)
        return True

    def free_bytes(self) -> int:
        """Return what the disk has free for this user; unknown counts as enough."""
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return 2**63 - 1
        return found.f_bavail * found.f_frsize

    def shortage(self) -> str:
        """Describe a shortage of disk space, empty when there is none; checked once a second."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            free = self.free_bytes()
            self._short = ""
            if free < self._min_free_bytes:
                self._short = f"{free:,} bytes are free on the disk; recording stops below {self._min_free_bytes:,}"
        return self._short
