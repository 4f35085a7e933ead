"""``podium`` ends when it is asked to: by Ctrl-C, SIGTERM, SIGHUP, and at once when it is asked again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.store.reader import Reader
from app.store.runs import run_paths
from tests.processes import clean_environment

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PODIUM = [sys.executable, "-m", "app"]
IGNORED = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
"""Starts a command with SIGINT ignored, as a shell without job control starts a background job."""

_BLOCKS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
os.execv(sys.argv[1], sys.argv[1:])
"""
BLOCKED = [sys.executable, "-c", _BLOCKS]

SLEEPS = "import time\nprint('working', flush=True)\ntime.sleep(60)\n"
CLEANS_UP = """
import time
try:
    print('working', flush=True)
    time.sleep(60)
finally:
    print('cleaning up', flush=True)
    time.sleep(60)
"""
HAS_HANDLERS = """
import signal, sys, time
left = []
def mine(number, frame):
    left.append(number)
    print('mine', number, flush=True)
signal.signal(signal.SIGTERM, mine)
signal.signal(signal.SIGINT, mine)
print('working', flush=True)
while len(left) < 2:
    time.sleep(0.05)
"""
USES_ASYNCIO = """
import asyncio
async def work():
    print('working', flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print('cancelled', flush=True)
        raise
asyncio.run(work())
"""
ENDS_SLOWLY = """
import time
from core import runtime
class Slow:
    name = 'slow'
    def release(self):
        print('closing', flush=True)
        time.sleep(60)
slow = Slow()
runtime.current().claim_pool_name('slow', slow)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``podium run`` of a script in a folder of its own; what is left of it is ended."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str, *before: str) -> subprocess.Popen[str]:
        (tmp_path / "driver.py").write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [*before, *PODIUM, "run", "driver.py"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    text = process.stdout.readline().strip()
    assert text, process.stderr.read()
    return text


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=30)
    return process.returncode, out, error


def state_in(folder: Path) -> str:
    reader = Reader(run_paths(folder / "runs")[0])
    try:
        return reader.run().state
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("number", "before", "code", "said"),
    [
        (signal.SIGINT, IGNORED, 130, "interrupted"),
        (signal.SIGTERM, BLOCKED, 143, "terminated by SIGTERM"),
        (signal.SIGHUP, [], 129, "terminated by SIGHUP"),
    ],
    ids=["SIGINT that was ignored", "SIGTERM that was blocked", "SIGHUP"],
)
def test_a_signal_ends_the_script_and_its_record(
    number: signal.Signals, before: list[str], code: int, said: str, start: Start, tmp_path: Path
) -> None:
    process = start(SLEEPS, *before)
    assert line(process) == "working"
    process.send_signal(number)
    returned, _, error = end(process)
    assert returned == code
    assert f"podium: {said}\n" in error
    assert "Traceback" not in error
    assert state_in(tmp_path) == "ended"
    assert not list((tmp_path / "runs").glob("*token"))


def test_a_hangup_that_is_ignored_stays_ignored(start: Start) -> None:
    process = start(
        "import signal\nprint(signal.getsignal(signal.SIGHUP).name)", "sh", "-c", 'trap "" HUP; exec "$@"', "sh"
    )
    assert end(process)[:2] == (0, "SIG_IGN\n")


def test_a_second_signal_ends_a_cleanup_of_the_script(start: Start, tmp_path: Path) -> None:
    process = start(CLEANS_UP)
    assert line(process) == "working"
    process.send_signal(signal.SIGINT)
    assert line(process) == "cleaning up"
    process.send_signal(signal.SIGINT)
    returned, _, error = end(process)
    assert returned == 130
    assert "podium: ending at once\n" in error
    assert state_in(tmp_path) == "ended"


def test_a_second_signal_ends_podiums_own_cleanup(start: Start, tmp_path: Path) -> None:
    process = start(ENDS_SLOWLY)
    assert line(process) == "closing"
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    while "a second signal ends it at once" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    assert state_in(tmp_path) == "ended"


def test_a_scripts_own_handlers_stay_its_own(start: Start, tmp_path: Path) -> None:
    process = start(HAS_HANDLERS)
    assert line(process) == "working"
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
        assert line(process) == f"mine {int(number)}"
    assert end(process)[0] == 0
    assert state_in(tmp_path) == "ended"


def test_asyncio_cancels_its_main_task_as_without_podium(start: Start) -> None:
    process = start(USES_ASYNCIO, *IGNORED)
    assert line(process) == "working"
    process.send_signal(signal.SIGINT)
    assert line(process) == "cancelled"
    assert end(process)[0] == 130


def test_ctrl_c_ends_podium_view_also_where_it_was_ignored(start: Start, tmp_path: Path) -> None:
    assert end(start("print('done')"))[0] == 0
    viewer = subprocess.Popen(
        [*IGNORED, *PODIUM, "view", str(run_paths(tmp_path / "runs")[0])],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
    )
    try:
        assert viewer.stderr is not None
        while "Ctrl-C" not in (text := viewer.stderr.readline()):
            assert text
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait(20) == 0
    finally:
        viewer.kill()
        viewer.communicate()


ON_RAY = """
import sys, threading, time
import core
from core import runtime

class Slow(core.Worker):
    @core.register(dispatch_mode=core.Dispatch.ONE_TO_ALL)
    def work(self):
        time.sleep(600)

def watch():
    while not runtime.current().live_calls:
        time.sleep(0.05)
    time.sleep(0.3)  # Ray waits for the answer, in its own code
    print('working', flush=True)

core.init(num_cpus=2, num_gpus=1, _temp_dir=FOLDER)
group = core.RayWorkerGroup(core.RayResourcePool([1], max_colocate_count=1), core.RayClassWithInitArgs(Slow))
threading.Thread(target=watch, daemon=True).start()
group.work()
"""


def test_a_driver_that_waits_on_ray_ends_by_sigterm_and_not_by_rays_handler(
    start: Start, short_dir: Path, tmp_path: Path
) -> None:
    process = start(ON_RAY.replace("FOLDER", repr(str(short_dir))))
    assert line(process) == "working"
    process.send_signal(signal.SIGTERM)
    returned, _, error = end(process)
    assert returned == 143  # Ray's handler ends with 1, after up to 30 s
    assert "podium: terminated by SIGTERM\n" in error
    assert state_in(tmp_path) == "ended"
