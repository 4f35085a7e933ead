"""Processes of this machine, as the kernel lists them, and who ends with whom."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.cluster.base import shares_a_process

_PR_SET_PDEATHSIG = 1

_AFTER = """
import os, select, signal, sys
driver, *pids = map(int, sys.argv[1:])
held = []
for pid in pids:
    try:
        held.append(os.pidfd_open(pid))
    except OSError:
        pass
try:
    ends = os.pidfd_open(driver)
    if os.getppid() == driver:
        select.select([ends], [], [])
except OSError:
    pass
for one in held:
    try:
        signal.pidfd_send_signal(one, signal.SIGKILL)
    except OSError:
        pass
"""
"""Waits for the end of a process, then kills others. A pidfd means one process only, also when its id comes again."""


def end_children(mark: str) -> int:
    """Kill the children of this process that have ``mark`` in their command line, with all their descendants.

    Returns how many processes that were. For a process that is about to be ended itself: nothing is waited for.
    """
    ending = children(mark)
    for pid in ending:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(ending)


def children(mark: str) -> list[int]:
    """Return the children of this process that have ``mark`` in their command line, and all their descendants."""
    by_parent: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                parent = int(stat.rpartition(")")[2].split()[1])
                by_parent.setdefault(parent, []).append(int(entry.name))
    found = [pid for pid in by_parent.get(os.getpid(), []) if mark in _command(pid)]
    for pid in found:
        found += by_parent.get(pid, [])
    return found


def end_after_me(pids: list[int]) -> subprocess.Popen[bytes] | None:
    """Have processes killed once this one has ended, however it ended; None where the kernel cannot do that.

    A small process of its own session waits for that: what a terminal, or a scheduler, sends to this one's does not
    reach it. ``let_live`` ends it when the others need not be killed any more.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    command = [sys.executable, "-I", "-S", "-c", _AFTER, str(os.getpid()), *map(str, pids)]
    quiet = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, cwd="/")
    except OSError:
        return None


def let_live(waiting: subprocess.Popen[bytes] | None) -> None:
    """End what ``end_after_me`` started, if it did: nothing is killed then."""
    if waiting is not None:
        waiting.kill()
        waiting.wait()


@contextmanager
def keep_sigterm_handler() -> Iterator[None]:
    """Put back the handler of SIGTERM that a driver installed before the block: ``ray.init`` installs one of its own.

    Ray's drains the node for up to 30 s first. A driver without a handler keeps Ray's.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def end_with_parent() -> bool:
    """Have the kernel kill this process when its parent ends, also when it is stopped and can do nothing for that.

    For a child process, such as a worker of Ray's raylet; call it on a thread that lives as long as the process. Does
    nothing in the driver's own process. Returns whether the kernel accepted it (Linux: ``PR_SET_PDEATHSIG``).
    """
    if shares_a_process() or not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    return ""
