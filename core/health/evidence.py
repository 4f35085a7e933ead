"""How a worker's process ended, judged by what can be found: pure judgement, and the looking that feeds it.

A process that is not the parent gets no exit status in the old way. From Linux 6.15 on the kernel reports it
for any process with an open pidfd (``PIDFD_GET_INFO``); before that, and on other machines, the cause is
found by its traces: the cluster's message, the end of the worker's log, the kernel's counters and log.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from core.errors import DeathKind
from core.worker.leaving import LEAVES
from core.worker.process_info import ProcessInfo, count_oom_kills

N_LOG_LINES = 30
_NODE_DIED = "its node died"
_LOG_BYTES = 64 * 1024
_STATUS_TRIES = 20
_STATUS_PAUSE_S = 0.005
_KERNEL_LOG_BYTES = 256 * 1024

_CRASHES = (
    (signal.SIGSEGV, r"Fatal Python error: Segmentation fault|\*\*\* SIGSEGV received"),
    (signal.SIGBUS, r"Fatal Python error: Bus error|\*\*\* SIGBUS received"),
    (signal.SIGFPE, r"Fatal Python error: Floating[ -]point exception|\*\*\* SIGFPE received"),
    (signal.SIGILL, r"Fatal Python error: Illegal instruction|\*\*\* SIGILL received"),
    (signal.SIGABRT, r"Fatal Python error: Aborted|\*\*\* SIGABRT received"),
    # Any other fatal error of the interpreter ends in abort().
    (signal.SIGABRT, r"Fatal Python error: "),
)
_OUT_OF_MEMORY = re.compile(
    r"exit type: NODE_OUT_OF_MEMORY|killed due to the node running low on memory|memory monitor|killed due to memory"
)
_LEFT = re.compile(rf"{re.escape(LEAVES)} (\d+)")
_RAYS_OWN = re.compile(r":(job_id|actor_name|task_name):")
_EXIT_CODE = re.compile(r"exit code:? (-?\d+)", re.IGNORECASE)
_WORKERS_OWN_SIGTERM = "receives a SIGTERM"


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found on the worker's machine after its death; ``unread`` says why its log was not.

    ``crash_line`` is what its log says of its end: that it crashed, or by which code it left.
    """

    log_tail: tuple[str, ...] = ()
    crash_line: str = ""
    n_oom_kills: int = -1
    kernel_lines: tuple[str, ...] = ()
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Clues:
    """All that is known of a process that is gone.

    ``status`` is the kernel's wait status, None if unknown; ``words`` are the cluster's own;
    ``n_oom_kills_before`` is the last count of kills for memory while it lived, -1 when it is not known;
    ``raylet_end`` says how the raylet of its node ended, empty while that lives.
    """

    words: str
    status: int | None = None
    findings: Findings = Findings()
    n_oom_kills_before: int = -1
    raylet_end: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a process ended; see ``core.events.DeathReport`` for the fields."""

    cause: str
    signal: int = 0
    exit_code: int | None = None
    oom: bool | None = None
    evidence: tuple[str, ...] = ()
    kind: DeathKind = DeathKind.UNKNOWN


def judge(clues: Clues) -> Verdict:
    """Say how a process ended, and by what evidence."""
    if clues.raylet_end:
        return Verdict(_NODE_DIED, evidence=(f"the kernel says: {clues.raylet_end}",), kind=DeathKind.NODE_DIED)
    oom, evidence = _memory(clues)
    reason = _reason_in(clues.words)
    if reason:
        evidence = (*evidence, f"the cluster says: {reason}")
    if clues.status is not None:
        evidence = (f"the kernel says: wait status {clues.status:#x}", *evidence)
    number, code, inferred = _end(clues)
    if inferred:
        evidence = (*evidence, inferred)
    cause, kind = _cause(clues, number, code, oom, reason)
    return Verdict(cause, number, code, oom, evidence, kind)


def _end(clues: Clues) -> tuple[int, int | None, str]:
    """Return the signal, 0 for none known, the exit code if there is one, and how it was inferred, if it was."""
    if clues.status is not None and os.WIFSIGNALED(clues.status):
        return os.WTERMSIG(clues.status), None, ""
    exit_code = _EXIT_CODE.search(clues.words)
    if exit_code is not None:
        # What Ray's worker asked to end with; its process may leave by another code after tidying up.
        number = int(signal.SIGTERM) if _WORKERS_OWN_SIGTERM in clues.words else 0
        return number, int(exit_code.group(1)), ""
    if clues.status is not None:
        return 0, os.waitstatus_to_exitcode(clues.status), ""
    if _named(clues.words) is not None:
        return 0, None, ""
    if _OUT_OF_MEMORY.search(clues.words):
        return int(signal.SIGKILL), None, ""
    if (left := _LEFT.search(clues.findings.crash_line)) is not None:
        return 0, int(left.group(1)), f"its log says: {clues.findings.crash_line}"
    for crash, pattern in _CRASHES:
        if re.search(pattern, clues.findings.crash_line):
            return int(crash), None, f"its log says: {clues.findings.crash_line}"
    unread = f" (its log was not read: {clues.findings.unread})" if clues.findings.unread else ""
    return (
        int(signal.SIGKILL),
        None,
        f"inferred: no crash is in its log{unread} and no exit code is known, so it was killed by signal 9 (SIGKILL), "
        "or left by os._exit()",
    )


def _memory(clues: Clues) -> tuple[bool | None, tuple[str, ...]]:
    """Return whether it was killed for memory, None if unknown, with the evidence."""
    monitor = _OUT_OF_MEMORY.search(clues.words)
    before, after = clues.n_oom_kills_before, clues.findings.n_oom_kills
    evidence = []
    if clues.findings.kernel_lines:
        evidence += [f"the kernel's log says: {line}" for line in clues.findings.kernel_lines]
    if before >= 0 and after >= 0:
        moved = f"went from {before} to {after}" if after > before else f"stayed at {after}"
        evidence.append(f"the control group's count of kills for memory {moved}")
    killed = any("out of memory" in line.lower() for line in clues.findings.kernel_lines)
    by_signal = clues.status is None or (
        os.WIFSIGNALED(clues.status) and os.WTERMSIG(clues.status) == int(signal.SIGKILL)
    )
    if monitor or killed or (by_signal and 0 <= before < after):
        return True, tuple(evidence)
    # A process that ended by itself, or whose count did not change, was not killed for memory.
    known = not by_signal or (before >= 0 and after >= 0)
    return (False if known else None), tuple(evidence)


def _cause(clues: Clues, number: int, code: int | None, oom: bool | None, reason: str) -> tuple[str, DeathKind]:
    if oom:
        if _OUT_OF_MEMORY.search(clues.words):
            return "out of memory: killed by the cluster's memory monitor", DeathKind.OUT_OF_MEMORY
        return f"out of memory: killed by the kernel with {_name(number)}", DeathKind.OUT_OF_MEMORY
    named = _named(clues.words)
    if named is not None:
        return named
    if code is not None:
        by = f" after {_name(number)}" if number else ""
        return f"ended by itself with exit code {code}{by}", DeathKind.EXITED
    if number == int(signal.SIGKILL):
        sure = "" if clues.status is not None else ", by all signs"
        memory = "" if oom is False else "; whether for memory is not known"
        return f"killed from outside by {_name(number)}{sure}{memory}", DeathKind.KILLED
    if number in {int(crash) for crash, _ in _CRASHES}:
        return f"crashed by {_name(number)}", DeathKind.CRASHED
    if number:
        return f"killed by {_name(number)}", DeathKind.KILLED
    return reason or "its end left no trace", DeathKind.UNKNOWN


def _named(words: str) -> tuple[str, DeathKind] | None:
    """Return a cause that the cluster names by itself, None when it only guesses."""
    if "killed by `ray.kill`" in words:
        return "ended by ray.kill, or by the end of its last handle", DeathKind.ENDED_BY_RAY
    if "node has died" in words or "node is dead" in words or "node was terminated" in words:
        return _NODE_DIED, DeathKind.NODE_DIED
    if "exit_actor() is called" in words:
        return "ended by itself with exit_actor()", DeathKind.EXITED
    if "owner has died" in words or "owner died" in words:
        return "ended because the process that started it is gone", DeathKind.OWNER_DIED
    return None


def _reason_in(words: str) -> str:
    """Return the cluster's reason in a line, without its list of guesses."""
    text = " ".join(words.split())
    start = max(text.find("The actor is dead because"), text.find("Worker exit type"), 0)
    text = re.split(r"Some common causes include|There are some potential root causes", text[start:])[0]
    return text.strip()[:300]


def _name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def examine(info: ProcessInfo, pid: int) -> Findings:
    """Return what a process left; runs on its machine."""
    output, errors = _text(info.output), _text(info.log)
    crashes = [
        line.strip() for line in errors if LEAVES in line or any(re.search(pattern, line) for _, pattern in _CRASHES)
    ]
    return Findings(
        log_tail=(*output[-N_LOG_LINES // 2 :], *errors[-N_LOG_LINES:]),
        crash_line=crashes[-1] if crashes else "",
        n_oom_kills=count_oom_kills(info.memory_events),
        kernel_lines=_kernel_lines(pid),
        unread="" if info.log else "it has none",
    )


def _text(path: str) -> tuple[str, ...]:
    """Return the lines at the end of a log, without the marks that Ray leaves for its own use."""
    if not path:
        return ()
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line[:500] for line in text.splitlines() if line.strip() and not _RAYS_OWN.match(line))


def _kernel_lines(pid: int) -> tuple[str, ...]:
    """Return what the kernel's log says of a process, where it may be read."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    records: list[str] = []
    try:
        size = 0
        while size < _KERNEL_LOG_BYTES:
            record = os.read(handle, 8192)
            size += len(record)
            records.append(record.decode("utf-8", "replace"))
    except OSError:  # BlockingIOError at its end, EPIPE where it was overwritten
        pass
    finally:
        os.close(handle)
    of_it = re.compile(rf"\b(?:[Kk]illed process {pid}\b|\[{pid}\].*(?:segfault|trap|general protection))")
    return tuple(record.split(";", 1)[-1].splitlines()[0][:300] for record in records if of_it.search(record))[-3:]


def exit_status(pidfd: int) -> int | None:
    """Return the wait status of the process behind a descriptor, None where this kernel has none."""
    # struct pidfd_info, include/uapi/linux/pidfd.h: a mask first, the exit code at byte 60 of the first version.
    size, wants_exit = 64, 1 << 3
    info = bytearray(size)
    struct.pack_into("=Q", info, 0, wants_exit)
    with suppress(OSError):
        fcntl.ioctl(pidfd, (3 << 30) | (size << 16) | (0xFF << 8) | 11, info)
        (mask,) = struct.unpack_from("=Q", info, 0)
        if mask & wants_exit:
            return int(struct.unpack_from("=i", info, 60)[0])
    return None


def wait_status(pidfd: int, pid: int) -> int | None:
    """Return the wait status of a process that has ended; the kernel may have it a moment after it says so."""
    for _ in range(_STATUS_TRIES):
        status = exit_status(pidfd)
        if status is None:
            status = zombie_status(pid)
        if status is not None:
            return status
        time.sleep(_STATUS_PAUSE_S)
    return None


def raylet_end_in_words(pid: int, status: int | None) -> str:
    """Say how the raylet of a node ended."""
    how = "exited"
    if status is not None and os.WIFSIGNALED(status):
        how = f"was killed by {_name(os.WTERMSIG(status))}"
    elif status is not None:
        how = f"exited with code {os.waitstatus_to_exitcode(status)}"
    return f"raylet (pid {pid}) of this node {how}"


def raylet_end_of_killed(pid: int, status: int | None) -> str:
    """Say how the raylet of a process ended that was killed by SIGKILL; empty when it lives, or for any other end.

    The kernel kills a worker whose raylet is gone (``end_with_parent``). The raylet's main thread, which made the
    worker, is a zombie from that moment on; the end of the raylet itself is reported when all its threads are.
    """
    if not pid or status is None or not os.WIFSIGNALED(status) or os.WTERMSIG(status) != int(signal.SIGKILL):
        return ""
    return "" if process_state(pid) not in {"Z", "X", ""} else raylet_end_in_words(pid, zombie_status(pid))


def zombie_status(pid: int) -> int | None:
    """Return the wait status of a process that ended and that its parent has not asked for yet, else None."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if fields[0] == "Z":
            # Field 52 of proc(5); the first one here is field 3. It is 0 for who may not see it.
            return int(fields[49]) or None
    return None


def rss_bytes(pid: int) -> int:
    """Return the memory that a process has resident, 0 when it cannot be read."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def process_state(pid: int) -> str:
    """Return a process's state as the kernel has it, such as "S" or "T" (stopped), empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
