"""Deaths of real processes, one after another in one group of four: heard, explained, on file; then a restart."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import core
from app.recorder import Recorder, start_run
from core import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ReplicatedState,
    Worker,
    create_colocated_worker_cls,
    register,
)
from core.errors import CallTimeoutError, WorkerDiedError
from core.events import CallStalled, GroupRebuilt, WorkerEnded
from core.group.worker_group import state_of
from core.health.in_flight import calls_in_flight
from core.health.stacks import dump
from core.runtime import Runtime
from core.testing import RecordingObserver

pytestmark = pytest.mark.integration

# Case H10: a rank of a long broadcast is killed from outside.
H10_RANK, STOPPED_RANK = 1, 3


class Long(Worker):
    """A worker whose call lasts until a file is there."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def broadcast(self, until: str) -> int:
        """Last 30 s, or until the test has seen enough."""
        deadline = time.monotonic() + 30
        while not os.path.exists(until) and time.monotonic() < deadline:
            time.sleep(0.02)
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, timeout_s=1.0)
    def hasty(self) -> int:
        """Answer at once; the caller waits a second at most."""
        return self.rank

    def crash(self) -> None:
        """Leave a crash in the log."""
        print("about to crash", flush=True)
        os.abort()


class Actor(ReplicatedState, Worker):
    """Holds weights that are equal on all ranks, and that no new worker has."""

    replicated_values = ("n_steps",)

    def __init__(self) -> None:
        """Begin untrained."""
        super().__init__()
        self.model = torch.nn.Linear(1, 1)
        torch.nn.init.zeros_(self.model.weight)
        self.n_steps = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train(self, dies: int = -1) -> tuple[int, float, int]:
        """Make a step; return how many there were, the weight and the process. One rank may die in it."""
        if self.rank == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.n_steps += 1
        with torch.no_grad():
            self.model.weight += 0.5
        return self.n_steps, self.model.weight.item(), os.getpid()


class Buffer(Worker):
    """Holds rows of its own on each rank."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.rows: list[int] = []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def keep(self, row: int) -> list[int]:
        """Keep a row; return all."""
        self.rows.append(100 * self.rank + row)
        return self.rows

    def save_state(self) -> list[int]:
        """Return the rows."""
        return self.rows

    def load_state(self, states: list[list[int] | None]) -> None:
        """Take over the own rank's; those of a rank that died are lost."""
        self.rows = states[self.rank] or []


def eventually(true: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until ``true`` is."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@dataclass(frozen=True)
class Scene:
    """The group, what was told, and the file that holds it."""

    runtime: Runtime
    seen: RecordingObserver
    recorder: Recorder
    group: RayWorkerGroup
    pids: list[int]
    ready: str
    not_ready: str

    def ended(self, rank: int) -> WorkerEnded:
        """Wait for the end of a worker's process, then for that to be told; ``benchmarks/deaths.py`` times it."""
        assert eventually(lambda: not os.path.exists(f"/proc/{self.pids[rank]}"), 30)
        assert eventually(lambda: rank in {event.rank for event in self.seen.of(WorkerEnded)}, 5)
        return next(event for event in self.seen.of(WorkerEnded) if event.rank == rank)

    def drained(self) -> None:
        """Wait until every rank that lives has answered."""
        assert eventually(lambda: not calls_in_flight(self.runtime), 20)

    def on_file(self, rank: int) -> tuple[int, str]:
        """Return pid and cause of a death as another process reads them now."""
        with closing(sqlite3.connect(f"file:{self.recorder.path}?mode=ro", uri=True)) as connection:
            (row,) = connection.execute("SELECT pid, cause FROM death WHERE rank = ?", (rank,)).fetchall()
        return row[0], row[1]


@pytest.fixture(scope="module")
def scene(ray_runtime: tuple[Runtime, RecordingObserver], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    runtime, seen = ray_runtime
    folder = tmp_path_factory.mktemp("deaths")
    ready = folder / "ready"
    ready.touch()
    recorder = start_run(
        folder, name="deaths", script="", started_ns=runtime.clock.now_ns(), podium_version="", ray_version=""
    )
    runtime.bus.subscribe(recorder, recorder.flush)
    core.set_health(stall_s=0.5)
    pool = RayResourcePool([4], use_gpu=False, max_colocate_count=1)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Long), name_prefix="long")
    pids = group.broadcast(str(ready))
    yield Scene(runtime, seen, recorder, group, pids, str(ready), str(folder / "enough"))
    Path(folder / "enough").touch()
    group.close()
    runtime.bus.unsubscribe(recorder)
    recorder.close()


def later(seconds: float, what: Callable[[], object]) -> None:
    """Do something soon, on another thread."""
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()


def test_a_stopped_worker_is_not_dead_and_named_by_deadline_stall_and_stacks(scene: Scene) -> None:
    pid = scene.pids[STOPPED_RANK]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CallTimeoutError) as caught:
            scene.group.hasty()
        assert caught.value.missing_ranks == (STOPPED_RANK,)
        assert f"rank {STOPPED_RANK} (in hasty for 1." in str(caught.value)
        assert "its process is stopped" in str(caught.value)
        (stall,) = [event for event in scene.seen.of(CallStalled) if event.method == "hasty"][:1]
        assert stall.ranks == (STOPPED_RANK,)
        (call,) = calls_in_flight(scene.runtime)
        stacks = dump(scene.runtime, call.call_id)
        assert list(stacks) == [STOPPED_RANK]
        assert f"process {pid} is stopped" in stacks[STOPPED_RANK]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert scene.group.hasty() == [0, 1, 2, 3]
    assert not [event for event in scene.seen.of(WorkerEnded) if event.died]


def test_h10_killed_worker_is_explained(scene: Scene) -> None:
    pid = scene.pids[H10_RANK]
    killed_s: list[float] = []
    stacks: dict[int, str] = {}

    def kill() -> None:
        stacks.update(dump(scene.runtime, calls_in_flight(scene.runtime)[0].call_id))
        killed_s.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    later(1.0, kill)
    with pytest.raises(WorkerDiedError) as caught:
        scene.group.broadcast(scene.not_ready)
    assert time.monotonic() - killed_s[0] < 5
    error = caught.value
    assert (error.group, error.rank, error.pid, error.method) == ("long", H10_RANK, pid, "broadcast")
    assert (error.signal, error.oom) in {(9, False), (9, None)}
    for part in (f"rank {H10_RANK} of long", f"pid {pid}", "in broadcast", "killed", "signal 9"):
        assert part in str(error)
    assert "at that moment: ranks 0, 2, 3 in broadcast for 1." in str(error)
    # The event was on file before the error was raised.
    assert scene.on_file(H10_RANK)[0] == pid
    assert "signal 9" in scene.on_file(H10_RANK)[1]
    report = scene.ended(H10_RANK).report
    assert report is not None
    assert report.memory_bytes > 2**20
    assert report.memory_limit_bytes > report.memory_bytes
    assert report.role == "Long"
    # Every rank was in the method, as its own stacks say.
    assert sorted(stacks) == [0, 1, 2, 3]
    assert all("broadcast" in text for text in stacks.values())
    Path(scene.not_ready).touch()


def test_a_death_between_calls_is_noticed_whatever_other_cluster_is_on_the_host(
    scene: Scene, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.255.255.1:6379")
    (short_dir / "ray_current_cluster").write_text("10.255.255.1:6379", encoding="utf-8")
    scene.drained()
    os.kill(scene.pids[0], signal.SIGTERM)
    death = scene.ended(0)
    assert (death.pid, death.method) == (scene.pids[0], "")
    assert "(SIGTERM)" in death.reason
    with pytest.raises(WorkerDiedError, match=r"hasty was asked of no rank; make another group") as caught:
        scene.group.hasty()
    assert caught.value.rank in {0, H10_RANK}


def test_a_crash_is_told_with_what_the_worker_wrote_last(scene: Scene) -> None:
    with pytest.raises(WorkerDiedError):
        scene.group.execute_all_sync("crash")  # refused: ranks are dead
    scene.runtime.cluster.ask(scene.group.workers[2], "crash", (), {})
    death = scene.ended(2)
    assert death.reason == "crashed by signal 6 (SIGABRT)"
    assert death.report is not None
    assert "about to crash" in death.report.log_tail
    assert any("in crash" in line for line in death.report.log_tail)


def test_a_worker_that_is_killed_while_it_is_stopped_has_died(scene: Scene) -> None:
    os.kill(scene.pids[STOPPED_RANK], signal.SIGSTOP)
    os.kill(scene.pids[STOPPED_RANK], signal.SIGKILL)
    death = scene.ended(STOPPED_RANK)
    assert "signal 9 (SIGKILL)" in death.reason


def test_a_group_is_restarted_with_its_state_as_often_as_it_may_be_and_then_raises(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    roles = {"actor": RayClassWithInitArgs(Actor), "buffer": RayClassWithInitArgs(Buffer)}
    colocated = create_colocated_worker_cls(roles)
    with RayWorkerGroup(pool, colocated, name_prefix="both", on_death="restart", max_restarts=2) as group:
        actor, buffer = group.spawn(roles).values()
        assert [told[:2] for told in actor.train()] == [(1, 0.5)] * 2
        assert buffer.keep(1) == [[1], [101]]
        # In its method: rank 0, whose replica would be saved; what the call had done on rank 1 is done.
        with pytest.raises(WorkerDiedError, match="in train") as caught:
            actor.train(dies=0)
        assert (caught.value.rank, caught.value.signal) == (0, 9)
        assert eventually(lambda: not calls_in_flight(scene.runtime), 20)
        trained = actor.train()
        assert [told[:2] for told in trained] == [(3, 1.5)] * 2
        assert buffer.keep(2) == [[2], [101, 102]]
        # While it idles: rank 1, heard of only as the next call is made.
        os.kill(trained[1][2], signal.SIGKILL)
        assert eventually(lambda: not os.path.exists(f"/proc/{trained[1][2]}"), 30)
        assert eventually(lambda: 1 in state_of(group).workers_for("train").deaths.dead, 5)
        assert [told[:2] for told in actor.train()] == [(4, 2.0)] * 2
        assert buffer.keep(3) == [[2, 3], [103]]
        with pytest.raises(WorkerDiedError, match="in train"):
            actor.train(dies=1)
        with pytest.raises(WorkerDiedError, match=r"was asked of no rank; .*max_restarts=2"):
            actor.train()
    pool.close()
    # The role that was in a call speaks for the process.
    assert "in        call" in capsys.readouterr().err
    reasons = [f"restarted after rank {rank} died, with the survivors' state" for rank in (0, 1)]
    assert [event.reason for event in scene.seen.of(GroupRebuilt) if event.group == "actor"] == reasons
    assert scene.recorder.flush()
    told = "SELECT {} FROM {} JOIN worker_group g ON g.id = group_id WHERE g.name = 'actor' ORDER BY at_ns"
    with closing(sqlite3.connect(f"file:{scene.recorder.path}?mode=ro", uri=True)) as connection:
        assert connection.execute(told.format("rank, call_id > 0", "death")).fetchall() == [(0, 1), (1, 0), (1, 1)]
        assert [row[0] for row in connection.execute(told.format("reason", "group_generation"))][1:] == reasons
