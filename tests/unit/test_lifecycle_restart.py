"""A group whose policy is to be restarted: the call that had the death raises, the next one runs on new workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

import core
from core import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    create_colocated_worker_cls,
    register,
)
from core.errors import UsageError, WorkerDiedError, WorkerStartError
from core.events import CallStarted, GroupRebuilt, Notice, WorkerEnded, WorkerStarted
from core.group.group_state import GroupState
from core.group.worker_group import state_of
from core.group.worker_set import WorkerSet
from core.lifecycle import restart
from core.lifecycle.replace_workers import hand_over
from core.lifecycle.survivors import collect_states
from core.testing import RecordingObserver, local_controller
from core.worker.live import ReplicatedState


class Counter(Worker):
    """Counts its calls; has nothing to hand over."""

    gate = threading.Event()
    faults: ClassVar[list[str]] = []
    n_runs: ClassVar[int] = 0

    def __init__(self) -> None:
        """Begin at 0, or do not come up."""
        super().__init__()
        self.count = 0
        if self.faults:
            raise RuntimeError(self.faults.pop())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self) -> tuple[int, int]:
        """Count, and return rank and count."""
        self.count += 1
        return self.rank, self.count

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait(self) -> None:
        """Wait for the test."""
        Counter.n_runs += 1
        self.gate.wait(20)


class Saved(Counter):
    """Hands its count to the rank of the same number."""

    def save_state(self) -> int:
        """Return the count."""
        return self.count

    def load_state(self, states: list[int | None]) -> None:
        """Take over the own rank's, or the largest of the others'."""
        own = states[self.rank]
        self.count = max(state for state in states if state is not None) if own is None else own


class SavedLater(Saved):
    """Saves and loads on an event loop."""

    async def save_state(self) -> int:  # type: ignore[override]
        """Return the count."""
        await asyncio.sleep(0)
        return self.count

    async def load_state(self, states: list[int | None]) -> None:  # type: ignore[override]
        """Take the count over."""
        await asyncio.sleep(0)
        super().load_state(states)


class Needy(Saved):
    """Cannot do without any rank's state."""

    def load_state(self, states: list[int | None]) -> None:
        """Raise for a state that is missing."""
        if None in states:
            raise ValueError("a shard is missing")
        super().load_state(states)


class Wary(Saved):
    """Raises in ``load_state`` as often as a test wants."""

    n_raises: ClassVar[int] = 0

    def load_state(self, states: list[int | None]) -> None:
        """Raise on rank 0, or take the state over."""
        if self.rank == 0 and Wary.n_raises > 0:
            Wary.n_raises -= 1
            raise ConnectionError("connection reset by peer")
        super().load_state(states)


class Replicated(ReplicatedState, Counter):
    """Holds the same on every rank."""

    replicated_values = ("count",)

    def __init__(self) -> None:
        """Begin with a module."""
        super().__init__()
        self.module = torch.nn.Linear(1, 1)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def weight(self) -> float:
        """Return the module's weight."""
        return self.module.weight.item()


@pytest.fixture
def seen() -> Iterator[RecordingObserver]:
    Counter.gate.clear()
    Counter.faults.clear()
    Counter.n_runs = Wary.n_raises = 0
    with local_controller() as (_, observer):
        try:
            yield observer
        finally:
            Counter.gate.set()


def group(kind: type, **more: Any) -> RayWorkerGroup:
    """Return a group of three that is restarted."""
    pool = RayResourcePool([3], max_colocate_count=1)
    return RayWorkerGroup(pool, RayClassWithInitArgs(kind), name_prefix="g", **{"on_death": "restart", **more})


def kill(one: RayWorkerGroup, rank: int, seen: RecordingObserver) -> None:
    """Kill a worker and wait until that is known."""
    n_before = len(seen.of(WorkerEnded))
    one.workers[rank].kill()
    assert seen.await_count(WorkerEnded, n_before + 1)[-1].died


def test_the_next_call_after_a_death_runs_on_new_workers_and_that_is_recorded(seen: RecordingObserver) -> None:
    one = group(Counter)
    assert one.add() == [(0, 1), (1, 1), (2, 1)]
    before = one.worker_names
    kill(one, 1, seen)
    assert one.add() == [(0, 1), (1, 1), (2, 1)]
    assert one.add() == [(0, 2), (1, 2), (2, 2)]
    (rebuilt,) = seen.of(GroupRebuilt)
    assert rebuilt.reason == "restarted after rank 1 died, without any state, Counter has no save_state and load_state"
    assert not set(before) & set(one.worker_names)
    assert [event.rank for event in seen.of(WorkerStarted)] == [0, 1, 2, 0, 1, 2]
    assert [(event.rank, event.died) for event in seen.of(WorkerEnded)] == [(1, True), (0, False), (2, False)]
    assert seen.of(Notice)[-1].text.startswith("group g was restarted after rank 1 died, without any state")


def test_a_call_in_flight_at_the_death_raises_and_is_not_repeated(seen: RecordingObserver) -> None:
    one = group(Counter)
    threading.Timer(0.1, lambda: one.workers[2].kill()).start()
    with pytest.raises(WorkerDiedError) as caught:
        one.wait()
    assert (caught.value.rank, caught.value.method) == (2, "wait")
    assert one.add() == [(0, 1), (1, 1), (2, 1)]
    assert Counter.n_runs == 3
    assert [event.method for event in seen.of(CallStarted)] == ["wait", "add"]


@pytest.mark.parametrize("rank", [0, 2])
def test_replicas_are_restored_from_whoever_survived(seen: RecordingObserver, rank: int) -> None:
    one = group(Replicated)
    one.add()
    weights = one.weight()
    kill(one, rank, seen)
    assert one.add() == [(0, 2), (1, 2), (2, 2)]
    assert len(set(one.weight())) == 1
    assert one.weight()[0] == weights[1 if rank == 0 else 0]
    assert seen.of(GroupRebuilt)[0].reason == f"restarted after rank {rank} died, with the survivors' state"


def test_who_died_stands_as_none_among_the_states(seen: RecordingObserver) -> None:
    one = group(Saved)
    one.add()
    kill(one, 1, seen)
    assert one.add() == [(0, 2), (1, 2), (2, 2)]
    assert seen.of(GroupRebuilt)[0].reason.endswith("with the survivors' state")


def test_a_state_that_cannot_be_put_together_is_said_and_the_group_begins_anew(seen: RecordingObserver) -> None:
    one = group(Needy)
    one.add()
    kill(one, 1, seen)
    assert one.add() == [(0, 1), (1, 1), (2, 1)]
    reason = seen.of(GroupRebuilt)[0].reason
    assert "without any state, load_state could not do with what was left" in reason
    assert "a shard is missing" in reason


def test_survivors_that_are_stuck_in_the_failed_call_are_not_waited_for_for_ever(
    seen: RecordingObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "STATE_S", 0.05)
    one = group(Saved)
    threading.Timer(0.1, lambda: one.workers[1].kill()).start()
    with pytest.raises(WorkerDiedError):
        one.wait()
    assert one.add() == [(0, 1), (1, 1), (2, 1)]
    assert "ranks 0, 2 did not save it within 0.05 s, still in a call" in seen.of(GroupRebuilt)[0].reason


def test_a_group_is_restarted_as_often_as_it_may_be(seen: RecordingObserver) -> None:
    one = group(Counter, max_restarts=1)
    kill(one, 0, seen)
    assert one.add()[0] == (0, 1)
    kill(one, 0, seen)
    with pytest.raises(WorkerDiedError, match="restarted as often as it may be"):
        one.add()
    assert len(seen.of(GroupRebuilt)) == 1


def test_new_workers_that_do_not_come_up_are_an_error_and_the_next_call_tries_again(seen: RecordingObserver) -> None:
    one = group(Counter)
    kill(one, 0, seen)
    Counter.faults.append("no memory left")
    with pytest.raises(WorkerStartError, match="no memory left"):
        one.add()
    assert one.add() == [(0, 1), (1, 1), (2, 1)]
    assert one.resource_pool.gate.n_in_flight == 0


def test_state_outlives_new_workers_that_do_not_come_up(seen: RecordingObserver) -> None:
    one = group(Replicated)
    one.add()
    kill(one, 0, seen)
    for _ in range(2):
        Counter.faults.append("no memory left")
        with pytest.raises(WorkerStartError, match="no memory left"):
            one.add()
    assert one.add() == [(0, 2), (1, 2), (2, 2)]
    assert "with the survivors' state" in seen.of(GroupRebuilt)[-1].reason
    assert state_of(one).restarts.saved is None


def test_ends_are_told_once_however_often_a_restart_is_tried(seen: RecordingObserver) -> None:
    one = group(Counter)
    kill(one, 0, seen)
    Counter.faults.append("no memory left")
    with pytest.raises(WorkerStartError):
        one.add()
    assert seen.of(Notice)[-1].text.startswith("restart 1 of 3 of group g failed, the next call tries again: ")
    one.add()
    assert [(event.rank, event.died) for event in seen.of(WorkerEnded)] == [(0, True), (1, False), (2, False)]
    assert seen.of(Notice)[-1].text.startswith("group g was restarted after rank 0 died, without any state")


def test_a_try_that_fails_counts_so_that_one_that_always_fails_comes_to_an_end(seen: RecordingObserver) -> None:
    one = group(Saved, max_restarts=2)
    kill(one, 0, seen)
    Counter.faults.extend(["no memory left"] * 6)
    for _ in range(2):
        with pytest.raises(WorkerStartError, match="no memory left"):
            one.add()
    assert "restart 2 of 2 of group g failed, no restart is left" in seen.of(Notice)[-1].text
    with pytest.raises(WorkerDiedError, match=r"max_restarts=2, tries that failed among them") as caught:
        one.add()
    assert caught.value.rank == 0
    assert not seen.of(GroupRebuilt)


@pytest.mark.parametrize("n_raises", [0, 1])
def test_state_outlives_a_new_worker_that_dies_while_it_takes_it_over(
    seen: RecordingObserver, monkeypatch: pytest.MonkeyPatch, n_raises: int
) -> None:
    """Also when the first to say so is another one, which lost it in a collective: its ``load_state`` raises."""
    one = group(Wary)
    one.add()
    kill(one, 1, seen)
    Wary.n_raises = n_raises

    def dying(root: GroupState, workers: WorkerSet, states: Any, timeout_s: float) -> None:
        monkeypatch.undo()
        if not n_raises:
            workers.actors[1].kill()
        try:
            hand_over(root, workers, states, timeout_s)
        finally:
            workers.actors[1].kill()

    monkeypatch.setattr(restart, "hand_over", dying)
    with pytest.raises(WorkerStartError, match="its state is kept") as caught:
        one.add()
    assert (caught.value.rank, caught.value.method) == (1, "load_state")
    assert one.add() == [(0, 2), (1, 2), (2, 2)]
    assert seen.of(GroupRebuilt)[-1].reason.endswith("with the survivors' state")


def test_a_survivor_that_died_unheard_is_done_without(seen: RecordingObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    one = group(Replicated)
    one.add()
    kill(one, 0, seen)

    def dying(live: Any, saving: Any, survivors: list[int], timeout_s: float) -> Any:
        live.workers.actors[1].kill()
        return collect_states(live, saving, survivors, timeout_s)

    monkeypatch.setattr(restart, "collect_states", dying)
    assert one.add() == [(0, 2), (1, 2), (2, 2)]
    assert seen.of(GroupRebuilt)[-1].reason.endswith("with the survivors' state")


def fused(**roles: type) -> dict[str, RayWorkerGroup]:
    """Return the groups of roles that share the processes of one that is restarted."""
    colocated = create_colocated_worker_cls({name: RayClassWithInitArgs(kind) for name, kind in roles.items()})
    pool = RayResourcePool([3], max_colocate_count=1)
    return RayWorkerGroup(pool, colocated, name_prefix="g", on_death="restart").spawn(roles)


@pytest.mark.parametrize("rank", [0, 2])
def test_roles_in_one_process_keep_what_each_can(seen: RecordingObserver, rank: int) -> None:
    groups = fused(actor=Replicated, buffer=Saved, later=SavedLater, critic=Counter)
    for one in groups.values():
        one.add()
    weights = groups["actor"].weight()
    groups["actor"].workers[rank].kill()
    seen.await_count(WorkerEnded, len(groups))  # one for each role of the process
    assert groups["buffer"].add() == [(0, 2), (1, 2), (2, 2)]
    assert groups["actor"].add() == [(0, 2), (1, 2), (2, 2)]
    assert groups["later"].add() == [(0, 2), (1, 2), (2, 2)]
    assert groups["critic"].add() == [(0, 1), (1, 1), (2, 1)]
    assert groups["actor"].weight() == [weights[1 if rank == 0 else 0]] * 3
    expected = "with the survivors' state, but without that of Counter, no save_state and load_state"
    assert {event.reason for event in seen.of(GroupRebuilt)} == {f"restarted after rank {rank} died, {expected}"}


def test_a_restart_that_failed_under_one_role_goes_on_under_another(seen: RecordingObserver) -> None:
    groups = fused(actor=Replicated, critic=Replicated)
    for one in groups.values():
        one.add()
    groups["actor"].workers[1].kill()
    seen.await_count(WorkerEnded, 3)
    Counter.faults.append("no memory left")
    with pytest.raises(WorkerStartError, match="no memory left"):
        groups["actor"].add()
    assert groups["critic"].add() == [(0, 2), (1, 2), (2, 2)]
    assert groups["actor"].add() == [(0, 2), (1, 2), (2, 2)]


def test_what_a_driver_says_holds_for_groups_that_do_not_say(seen: RecordingObserver) -> None:
    core.set_health(on_death="restart", max_restarts=1)
    one = group(Counter, on_death=None)
    kill(one, 0, seen)
    assert one.add()[0] == (0, 1)
    other = group(Counter, on_death="raise")
    kill(other, 0, seen)
    with pytest.raises(WorkerDiedError, match="was asked of no rank; make another group"):
        other.add()


@pytest.mark.parametrize(
    "wrong", [{"on_death": "explode"}, {"on_death": None, "max_restarts": 2}, {"max_restarts": -1}]
)
def test_a_policy_that_makes_no_sense_is_refused(seen: RecordingObserver, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"on_death|max_restarts"):
        group(Counter, **wrong)
