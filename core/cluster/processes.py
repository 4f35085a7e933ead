"""Processes of this machine, as the kernel lists them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def end_children(mark: str) -> int:
    """Kill the children of this process that have ``mark`` in their command line, with all their descendants.

    Returns how many processes that were. For a process that is about to be ended itself: nothing is waited for.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                parent = int(stat.rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    ending = [pid for pid in children.get(os.getpid(), []) if mark in _command(pid)]
    for pid in ending:
        ending += children.get(pid, [])
    for pid in ending:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(ending)


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    return ""
