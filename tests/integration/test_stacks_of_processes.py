"""Where a process is that is stuck: through its own faulthandler, and through py-spy where that is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.health.stacks import of_process
from core.worker.process_info import ProcessInfo

pytestmark = pytest.mark.integration

_WORKER = """
import threading
from core.worker.process_info import enable_diagnostics

def stuck():
    lock = threading.Lock()
    lock.acquire()
    print(enable_diagnostics().stacks, flush=True)
    lock.acquire()

stuck()
"""


@dataclass(frozen=True)
class Stuck:
    """A process that waits for a lock for ever, and its traces."""

    process: subprocess.Popen[str]
    traces: ProcessInfo

    @property
    def pid(self) -> int:
        """Return its pid."""
        return self.process.pid


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stuck]:
    with (tmp_path_factory.mktemp("logs") / "worker.err").open("w") as log:
        command = [sys.executable, "-c", _WORKER]
        root = Path(__file__).parents[2]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=root) as process:
            assert process.stdout is not None
            try:
                yield Stuck(process, ProcessInfo(stacks=process.stdout.readline().strip()))
            finally:
                process.kill()


def test_a_process_that_is_stuck_writes_its_stacks_when_asked_and_again(stuck: Stuck) -> None:
    assert os.path.basename(stuck.traces.stacks) == f"podium-stacks-{stuck.pid}.txt"
    for _ in range(2):
        text = of_process(stuck.traces, stuck.pid, by_spy=False)
        assert "in stuck" in text
        assert text.count("most recent call first") == 1
    assert stuck.process.poll() is None


def test_a_stopped_process_is_said_to_be_stopped(stuck: Stuck) -> None:
    stuck.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stuck.pid, os.WSTOPPED)
    try:
        assert "is stopped" in of_process(stuck.traces, stuck.pid, by_spy=False)
    finally:
        stuck.process.send_signal(signal.SIGCONT)


@pytest.mark.skipif(
    shutil.which("py-spy", path=os.path.dirname(sys.executable)) is None, reason="py-spy is an optional tool"
)
def test_what_py_spy_reads_comes_without_the_command_line(stuck: Stuck) -> None:
    text = of_process(stuck.traces, stuck.pid)
    assert "stuck" in text
    assert "enable_diagnostics" not in text


def test_a_process_that_would_die_of_the_signal_is_not_sent_it(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    with path.open("w") as file, subprocess.Popen(["sleep", "100"], pass_fds=[file.fileno()]) as process:
        try:
            for traces in (ProcessInfo(), ProcessInfo(stacks=str(path)), ProcessInfo(stacks="/elsewhere")):
                assert "uses the signal itself" in of_process(traces, process.pid, by_spy=False)
            assert process.poll() is None
        finally:
            process.kill()
    assert of_process(ProcessInfo(), process.pid) == f"process {process.pid} is gone"
