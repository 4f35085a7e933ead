"""The last word of a driver that a signal ends: its threads' stacks, beside the run's file."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from io import TextIOWrapper
from pathlib import Path

from app.store.private import open_private
from app.store.runs import crash_path


class CrashFile:
    """Has `faulthandler` write into ``<run>.crash.txt`` while the run goes on.

    No Python handler could do it: with the main thread stuck in native code it would never run. SIGKILL leaves nothing.
    """

    def __init__(self, run_path: Path) -> None:
        """Name the run's file; nothing is made before ``open``."""
        self._path = crash_path(run_path)
        self._file: TextIOWrapper | None = None
        self._was_on = False
        self._owner = 0

    def open(self) -> None:
        """Make the file and have stacks written into it; without one the driver goes on all the same."""
        with contextlib.suppress(OSError):
            self._file = os.fdopen(open_private(self._path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8")
            self._was_on, self._owner = faulthandler.is_enabled(), os.getpid()
            faulthandler.enable(self._file, all_threads=True)
            # A forked child's fault is not the driver's.
            os.register_at_fork(after_in_child=self._in_child)

    def close(self) -> None:
        """Give faulthandler back as it was, and leave no empty file; may be called twice."""
        file, self._file = self._file, None
        if file is None or os.getpid() != self._owner:
            return
        faulthandler.disable()
        if self._was_on:
            with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
                faulthandler.enable(sys.__stderr__ or 2)
        file.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_size == 0:
                self._path.unlink()

    def _in_child(self) -> None:
        if self._file is not None:
            faulthandler.disable()
