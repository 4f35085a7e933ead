"""Where the ranks of a call are right now: their stacks, also while they are stuck in a call that never returns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from core.cluster import Cluster
from core.errors import UnknownNameError
from core.health.evidence import process_state
from core.health.in_flight import calls_in_flight
from core.health.monitor import monitor_of
from core.health.watched_process import WatchedProcess
from core.runtime import Runtime
from core.worker.process_info import STACKS_SIGNAL, ProcessInfo, machine

_ANSWER_S = 3.0
_SETTLED_S = 0.05
_SPY_S = 8.0
_MAX_THREADS = 16


def dump(runtime: Runtime, call_id: int, timeout_s: float = 15.0) -> dict[int, str]:
    """Return the stacks of the ranks that have not answered a call, as text by rank; on any thread.

    A rank's stacks are read by ``py-spy`` where that is installed and allowed, else written by the worker's own
    ``faulthandler`` when a signal asks it to: neither needs the worker to come back to Python. Where there are none the
    text says why, such as a process that is stopped.

    Raises:
        UnknownNameError: No call of that number is in flight.
    """
    call = next((call for call in calls_in_flight(runtime) if call.call_id == call_id), None)
    live_call = runtime.live_calls.get(call_id)
    if call is None or live_call is None:
        raise UnknownNameError(f"no call {call_id} is in flight", name=str(call_id))
    watched = monitor_of(live_call.runtime).ranks_of(call.group)
    ranks = [out.rank for out in call.out]
    if watched is None or not ranks:
        return dict.fromkeys(ranks, "its worker is not watched any more")
    processes = [watched.process(rank) for rank in ranks]
    with ThreadPoolExecutor(min(len(ranks), _MAX_THREADS), thread_name_prefix="podium-stacks") as pool:
        texts = pool.map(partial(_of_rank, watched.cluster, timeout_s=timeout_s), processes)
        return dict(zip(ranks, texts, strict=True))


def _of_rank(cluster: Cluster, process: WatchedProcess, timeout_s: float) -> str:
    if process.pid == os.getpid():
        return _of_thread(f"podium-{process.name}")
    if process.info.machine == machine():
        return of_process(process.info, process.pid)
    try:
        return str(cluster.run_on(process.node, of_process, (process.info, process.pid), timeout_s))
    except Exception as error:
        return f"node {process.node} did not answer: {type(error).__name__}: {error}"


def of_process(info: ProcessInfo, pid: int, by_spy: bool = True) -> str:
    """Return the stacks of a worker's process; runs on its machine. ``by_spy`` is False to do without py-spy."""
    state = process_state(pid)
    if not state or state == "Z":
        return f"process {pid} is gone"
    spied = _spied(pid) if by_spy else ""
    stopped = f"process {pid} is stopped (by SIGSTOP, or a debugger): it runs nothing until it gets SIGCONT\n"
    if spied:
        return (stopped if state == "T" else "") + spied
    if state == "T":
        return stopped
    if not info.stacks or not _listens(info, pid):
        return f"process {pid} answers no {STACKS_SIGNAL.name}: its worker class uses the signal itself"
    return _asked(info, pid)


def _spied(pid: int) -> str:
    """Return what py-spy reads from outside, without stopping the process; empty where it cannot."""
    here = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    spy = shutil.which("py-spy", path=here)
    if spy is None:
        return ""
    command = [spy, "dump", "--nonblocking", "--pid", str(pid)]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SPY_S, check=False)
        # It begins with the command line, in which a token could be.
        _, thread, stacks = done.stdout.partition("\nThread ")
        return (thread + stacks).lstrip() if done.returncode == 0 else ""
    return ""


def _listens(info: ProcessInfo, pid: int) -> bool:
    """Return whether the signal is safe to send: the process is that worker, and catches it."""
    try:
        opened = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return info.stacks in opened and bool(int(caught, 16) >> (STACKS_SIGNAL - 1) & 1)


_asking = threading.Lock()


def _asked(info: ProcessInfo, pid: int) -> str:
    """Ask the process for its stacks by a signal and return what it then writes."""
    path = Path(info.stacks)
    # Two who ask at a time would each take a part of the other's answer.
    with _asking:
        before = path.stat().st_size
        os.kill(pid, STACKS_SIGNAL)
        deadline_s = time.monotonic() + _ANSWER_S
        size, since_s = before, time.monotonic()
        while time.monotonic() < deadline_s:
            time.sleep(0.005)
            now = path.stat().st_size
            if now != size:
                size, since_s = now, time.monotonic()
            elif size > before and time.monotonic() - since_s > _SETTLED_S:
                break
        with path.open("rb") as file:
            file.seek(before)
            text = file.read().decode("utf-8", "replace")
    return text or f"process {pid} did not answer {STACKS_SIGNAL.name} within {_ANSWER_S:g} s"


def _of_thread(name: str) -> str:
    """Return the stack of a worker that is a thread of this process."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.name == name and thread.ident in frames:
            return "".join(traceback.format_stack(frames[thread.ident]))
    return f"there is no thread {name} any more"
