"""A driver that is killed while it writes: one process, in the order of its life."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.errors import RunLockedError
from app.store.lock import is_free
from app.store.reader import STALE_NS, Reader
from app.store.writer import Writer
from tests.store_scene import facts
from web.calls import CallFilter

pytestmark = pytest.mark.integration

# Calls without an end in sight; each id is printed only after a flush said that the call is on file.
DRIVER = """
import sys
from pathlib import Path
from app.recorder import Recorder
from app.store.writer import Writer
from core.events import Notice
from tests.store_scene import at, facts, one_call, people, started
recorder = Recorder(Writer(Path(sys.argv[1]), facts()))
recorder.start()
for event in people():
    recorder.observe(event)
recorder.observe(started(1, 5))
call_id = 1
while True:
    for _ in range(50):
        call_id += 1
        for event in one_call(call_id, call_id * 20):
            recorder.observe(event)
    assert recorder.flush()
    print(call_id, flush=True)
"""


@dataclass(frozen=True)
class Killed:
    """A driver that was killed: its file, its process, what it was told is safe, and what a second writer was told."""

    path: Path
    pid: int
    n_safe: int
    second: RunLockedError
    state_before: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Start a driver, try to write its file too, and kill it while it writes."""
    path = tmp_path_factory.mktemp("crash") / "run.db"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout as printed:
        try:
            printed.readline()
            with pytest.raises(RunLockedError) as caught:
                Writer(path, facts()).start()
            with contextlib.closing(Reader(path)) as reader:
                before = reader.run().state
            printed.readline()
            time.sleep(0.03)
        finally:
            driver.kill()
            driver.wait()
        n_safe = int(printed.read().split()[-1])
    return Killed(path, driver.pid, n_safe, caught.value, before)


def later() -> int:
    """Return the wall clock of somebody who looks ten seconds later."""
    return time.time_ns() + 2 * STALE_NS


def test_a_second_writer_was_told_the_process_of_the_first(killed: Killed) -> None:
    assert killed.second.pid == killed.pid
    assert str(killed.pid) in str(killed.second)
    assert killed.state_before == "running"


def test_the_lock_is_free_as_soon_as_the_driver_is_gone(killed: Killed) -> None:
    assert is_free(killed.path)


def test_nothing_is_lost_that_a_flush_had_confirmed(killed: Killed) -> None:
    with contextlib.closing(Reader(killed.path, wall_ns=later)) as reader:
        newest = reader.calls(1, None, CallFilter()).items[0]
        assert newest.id >= killed.n_safe
        assert reader.run().n_calls == newest.id


def test_the_run_is_said_to_have_died_once_its_heartbeat_is_stale(killed: Killed) -> None:
    with contextlib.closing(Reader(killed.path, wall_ns=later)) as reader:
        assert reader.run().state == "died"


def test_the_call_in_flight_is_still_to_be_seen_with_the_ranks_that_never_answered(killed: Killed) -> None:
    with contextlib.closing(Reader(killed.path, wall_ns=later)) as reader:
        detail = reader.call(1)
        assert detail is not None
        assert (detail.call.status, detail.error_message) == ("died", "It was in flight when the driver died.")
        assert [(span.rank, span.status, span.ready_ms) for span in detail.spans] == [
            (0, "running", None),
            (1, "running", None),
        ]
        assert [row.id for row in reader.calls(10, None, CallFilter(status="died")).items] == [1]
        assert not reader.calls(10, None, CallFilter(status="running")).items
        (call,) = reader.in_flight(10)
        assert (call.id, [(rank.rank, rank.pid) for rank in call.out]) == (1, [(0, 1000), (1, 1001)])
        assert call.running_ms > 1000


def test_looking_at_a_dead_run_changes_neither_file_nor_log(killed: Killed) -> None:
    log = killed.path.with_name("run.db-wal")
    before = killed.path.read_bytes(), log.read_bytes()
    with contextlib.closing(Reader(killed.path, wall_ns=later)) as reader:
        reader.overview()
    assert (killed.path.read_bytes(), log.read_bytes()) == before


def test_a_copy_of_the_file_and_its_log_is_whole(killed: Killed, tmp_path: Path) -> None:
    for name in ("run.db", "run.db-wal"):
        shutil.copy(killed.path.with_name(name), tmp_path / name)
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("SELECT max(id) FROM call").fetchone()[0] >= killed.n_safe
