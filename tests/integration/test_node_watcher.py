"""What a watcher sees of processes on its machine: real ones, that are killed, that leave, that lose their raylet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from core.health.evidence import Clues, judge
from core.health.node_watch import NodeWatcher
from core.worker import ProcessInfo

pytestmark = pytest.mark.integration


@pytest.fixture
def start() -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start processes that leave with the code they are told on their standard input."""
    started: list[subprocess.Popen[str]] = []

    def one() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "import os; print(flush=True); os._exit(int(input()))"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def test_an_end_is_seen_at_once_and_with_its_status(start: Callable[[], subprocess.Popen[str]]) -> None:
    watcher, killed, left = NodeWatcher(), start(), start()
    watched = [(process.pid, ProcessInfo()) for process in (killed, left)]
    assert not any(sight.has_ended for sight in watcher.watch(watched, 0.0))
    at_s: list[float] = []

    def kill() -> None:
        at_s.append(time.monotonic())
        killed.kill()

    threading.Timer(0.1, kill).start()
    dead, alive = watcher.watch(watched, 20.0)
    assert time.monotonic() - at_s[0] < 5
    assert (dead.has_ended, alive.has_ended) == (True, False)
    assert alive.memory_bytes > 2**20
    assert dead.findings is not None
    verdict = judge(Clues("", dead.status, dead.findings))
    # Where the kernel does not tell, it is inferred.
    assert (verdict.signal, verdict.exit_code) == (int(signal.SIGKILL), None)
    left.communicate("7")
    (alone,) = watcher.watch(watched[1:], 20.0)
    assert alone.has_ended
    # The process was waited for before anybody looked: only the kernel's own record of it is left.
    assert alone.status in {7 << 8, None}


def test_one_that_was_gone_before_is_told_without_waiting(start: Callable[[], subprocess.Popen[str]]) -> None:
    gone, living = start(), start()
    gone.communicate("0")
    began_s = time.monotonic()
    first, second = NodeWatcher().watch([(gone.pid, ProcessInfo()), (living.pid, ProcessInfo())], 20.0)
    assert time.monotonic() - began_s < 5
    assert (first.has_ended, first.status, second.has_ended) == (True, None, False)


def test_who_loses_the_raylet_of_its_node_is_lost_with_it(start: Callable[[], subprocess.Popen[str]]) -> None:
    watcher, raylet, other, worker = NodeWatcher(), start(), start(), start()
    watched = [(worker.pid, ProcessInfo(raylet_pid=raylet.pid)), (os.getpid(), ProcessInfo(raylet_pid=other.pid))]
    watcher.watch(watched, 0.0)
    raylet.kill()
    lost, kept = watcher.watch(watched, 20.0)
    assert not lost.has_ended
    assert lost.raylet_end.startswith(f"raylet (pid {raylet.pid}) of this node ")
    assert kept.raylet_end == ""
    assert judge(Clues("", None, raylet_end=lost.raylet_end)).cause == "its node died"
