"""What a worker's process provides so that others can find out how it ended and what it is doing.

A process that is not the parent cannot ask for an exit status as a parent can. So each worker reports its log file and
the kills that its memory cgroup has counted when it is built, and lets a signal write its stacks to a file: the signal
is served by C code, also while the worker is stuck in a call that never returns to Python.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from core.cluster.base import shares_a_process

STACKS_SIGNAL = signal.SIGUSR2
"""Asks a worker for its stacks. A worker class that handles this signal itself keeps it."""

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Where to look for what a worker leaves behind.

    ``machine`` is equal for two processes when they see each other by their pids: one boot of one kernel, one
    namespace. ``log`` (what it says on stderr), ``output`` (on stdout) and ``stacks`` are files on that machine, empty
    when there are none; ``n_oom_kills`` is what the
    file ``memory_events`` had counted when the worker came up, -1 when it cannot be known; ``memory_limit_bytes`` is 0
    then. ``raylet_pid`` is the raylet that started the worker, 0 when there is none.
    """

    machine: str = ""
    log: str = ""
    output: str = ""
    stacks: str = ""
    memory_events: str = ""
    n_oom_kills: int = -1
    memory_limit_bytes: int = 0
    raylet_pid: int = 0


def machine() -> str:
    """Return an id of the machine, or of the container with its own pids; empty if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def enable_diagnostics() -> ProcessInfo:
    """Switch on what shows how this worker ends and what it does, and say where to look for it.

    A worker that shares its process with the driver has none of its own.
    """
    if shares_a_process():
        return ProcessInfo()
    log, output = _file_behind(2), _file_behind(1)
    with suppress(OSError, RuntimeError, ValueError):
        # Ray has switched it on for one thread; the others are what one looks for after a hang.
        faulthandler.enable(file=2, all_threads=True)
    events = _memory_events()
    return ProcessInfo(
        machine=machine(),
        log=log,
        output="" if output == log else output,
        stacks=_accept_stacks_signal(Path(log).parent if log else Path(tempfile.gettempdir())),
        memory_events=str(events or ""),
        n_oom_kills=count_oom_kills(str(events or "")),
        memory_limit_bytes=_memory_limit_bytes(events),
        # One that has gone already has left the worker to the first process of all.
        raylet_pid=os.getppid() if os.getppid() > 1 else 0,
    )


def count_oom_kills(memory_events: str) -> int:
    """Return how many processes of a control group were killed for memory so far, -1 when it cannot be known."""
    try:
        lines = Path(memory_events).read_text(encoding="ascii").splitlines() if memory_events else []
    except OSError:
        return -1
    counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(counts.get("oom_kill", -1))


def _file_behind(descriptor: int) -> str:
    """Return the path of a regular file that a descriptor writes to, empty for anything else."""
    with suppress(OSError):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return path if os.path.isfile(path) else ""
    return ""


_stacks: list[str] = []


def _accept_stacks_signal(folder: Path) -> str:
    """Let the signal write every thread's stack to a file of this process; return its path, empty when it cannot."""
    if _stacks:
        return _stacks[0]
    if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        return ""
    path = folder / f"podium-stacks-{os.getpid()}.txt"
    try:
        # Open as long as the process lives: the C code that writes needs a descriptor that is there.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=handle, all_threads=True)
    except (OSError, RuntimeError, ValueError, AttributeError):
        return ""
    _stacks.append(str(path))
    return _stacks[0]


def _memory_events() -> Path | None:
    """Return the file in which this process's control group counts kills for memory, of either version."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = _CGROUPS, "memory.events"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.oom_control"
        else:
            continue
        # Inside a container the path may be the host's while the mount begins at the container's own group.
        for folder in (root / path.lstrip("/"), root):
            if count_oom_kills(str(folder / name)) >= 0:
                return folder / name
    return None


def _memory_limit_bytes(memory_events: Path | None) -> int:
    """Return the smallest limit that this process lives under: the machine's memory, or a control group's."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    folder = memory_events.parent if memory_events is not None else None
    while folder is not None and folder.is_relative_to(_CGROUPS):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text(encoding="ascii")))
        folder = folder.parent
    return min(limits)
