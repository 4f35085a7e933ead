"""Drivers killed in a loop under load, and more calls than lists elsewhere hold: all there, by number.

``PODIUM_KILLS=20`` kills each kind twenty times; without it twice by SIGKILL and once by each of the others.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.recorder import Recorder
from app.store.check import check
from app.store.lock import is_free
from app.store.reader import STALE_NS, Reader
from app.store.writer import Writer, WriterOptions
from core import Dispatch, RayClassWithInitArgs, RayWorkerGroup, Worker, register
from core.testing import local_controller
from tests.store_scene import facts

pytestmark = pytest.mark.integration

N_KILLS = int(os.environ.get("PODIUM_KILLS", "0"))
KILLS = [
    (number, n)
    for number, few in ((signal.SIGKILL, 2), (signal.SIGABRT, 1), (signal.SIGTERM, 1))
    for n in range(N_KILLS or few)
]
MISSING_NS = 250_000_000
N_TIMES = 100_000

# About 400 calls a second. When each was observed is kept in memory that outlives the driver; a number is printed only
# after a flush said that all up to it are on file.
DRIVER = """
import mmap, sys, time
from pathlib import Path
from app.recorder import Recorder
from app.store.writer import Writer
from tests.store_scene import facts, one_call, people

recorder = Recorder(Writer(Path(sys.argv[1]), facts()))
recorder.start()
for event in people():
    recorder.observe(event)
with open(sys.argv[2], "r+b") as file:
    times = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
call_id = 0
while True:
    call_id += 1
    for event in one_call(call_id, call_id * 20):
        recorder.observe(event)
    times[call_id] = time.monotonic_ns()
    if call_id % 100 == 0:
        assert recorder.flush(30)
        print(call_id, flush=True)
    time.sleep(0.002)
"""


class Nothing(Worker):
    """A worker that does nothing."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nothing(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("number", "n"), KILLS)
def test_of_a_driver_that_is_killed_under_load_a_quarter_of_a_second_is_lost_at_most(
    number: signal.Signals, n: int, tmp_path: Path
) -> None:
    path, kept = tmp_path / "run.db", tmp_path / "times"
    kept.write_bytes(bytes(8 * N_TIMES))
    n_safe = _kill(path, kept, number, after_s=random.Random(f"{number}{n}").uniform(0.0, 0.3))
    times = _times(kept)
    assert is_free(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        (last,) = connection.execute("SELECT max(id) FROM call WHERE status = 1").fetchone()
        (n_spans,) = connection.execute("SELECT count(*) FROM rank_span WHERE call_id <= ?", (last,)).fetchone()
    assert n_safe <= last <= len(times)
    assert n_spans == 2 * last
    assert check(path).missing == ()
    # A driver that the machine itself held up could neither record nor be recorded meanwhile.
    late = [at for at in times if at > times[-1] - 1_000_000_000]
    held_up_ns = max(b - a for a, b in itertools.pairwise(late))
    assert times[-1] - times[last - 1] <= MISSING_NS + held_up_ns
    with contextlib.closing(Reader(path, wall_ns=lambda: time.time_ns() + 2 * STALE_NS)) as reader:
        assert reader.run().state == "died"


def _kill(path: Path, kept: Path, number: signal.Signals, after_s: float) -> int:
    """Start a driver, kill it in the midst of its work, and return up to which call it was told that all is safe."""
    command = [sys.executable, "-c", DRIVER, str(path), str(kept)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert driver.stdout is not None
    with driver.stdout as printed:
        try:
            for _ in range(3):
                assert printed.readline()
            time.sleep(after_s)
        finally:
            driver.send_signal(number)
            driver.wait(30)
        rest = printed.read().split()
    assert driver.returncode == -number
    return int(rest[-1]) if rest else 300


def _times(kept: Path) -> list[int]:
    """Return when each call was observed, from the first on."""
    with kept.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        numbers = struct.unpack(f"={N_TIMES}q", memory[:])
    return [at for at in numbers[1:] if at]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """Record into a file of the test's own."""
    now = replace(facts(os.getpid()), started_ns=time.time_ns())
    recorder = Recorder(Writer(tmp_path / "run.db", now, WriterOptions(min_free_bytes=0)))
    recorder.start()
    yield recorder
    recorder.close()


def test_twelve_thousand_calls_are_all_there_by_number_each_with_its_rank(recorder: Recorder) -> None:
    n_calls = 12_345
    with local_controller() as (controller, _):
        controller.runtime.bus.subscribe(recorder, recorder.flush)
        with RayWorkerGroup([1], RayClassWithInitArgs(Nothing), use_gpu=False) as group:
            for _ in range(n_calls):
                group.nothing()
        controller.runtime.bus.unsubscribe(recorder)
    recorder.close()
    found = check(recorder.path)
    assert (found.n_calls, found.n_spans, found.n_dropped) == (n_calls, n_calls, 0)
    assert (found.missing, found.faults) == ((), ())
    with contextlib.closing(Reader(recorder.path)) as reader:
        overview = reader.overview()
        assert [method.n_calls for method in overview.methods] == [n_calls]
        assert [rank.n_calls for rank in overview.ranks] == [n_calls]
        assert reader.latencies(None, None)[0].n_calls == n_calls
