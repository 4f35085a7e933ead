"""A pool is changed although ranks of its groups are dead: with what the survivors hold, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.errors import LiveStateError, WorkerDiedError
from core.events import WorkerEnded
from core.pool import PoolState
from core.testing import RecordingObserver, local_controller
from tests.live_workers import Counting, Enduring, Faults, Learning, Stateless, Staying


@pytest.fixture
def seen() -> Iterator[RecordingObserver]:
    """Yield what is seen on a machine of eight slots."""
    with local_controller({"CPU": 64, "GPU": 8}) as (_, observer):
        yield observer
    Faults.stage, Faults.rank, Faults.times = "", 0, 1000


def two_nodes(max_colocate_count: int = 2) -> RayResourcePool:
    return RayResourcePool([2, 2], max_colocate_count=max_colocate_count, name_prefix="pool")


def group_on(pool: RayResourcePool, kind: type) -> RayWorkerGroup:
    return RayWorkerGroup(pool, RayClassWithInitArgs(kind), name_prefix="g", on_death="raise")


def kill(group: RayWorkerGroup, *ranks: int, seen: RecordingObserver) -> None:
    """End processes and wait until all know."""
    before = len(seen.of(WorkerEnded))
    for rank in ranks:
        group.workers[rank].kill()
    seen.await_count(WorkerEnded, before + len(ranks))
    with pytest.raises(WorkerDiedError):
        group.place()


def test_a_class_that_can_do_without_the_dead_goes_on_with_the_survivors(seen: RecordingObserver) -> None:
    pool = two_nodes()
    group = group_on(pool, Enduring)
    group.add(5)
    kill(group, 2, 3, seen=seen)
    pool.resize([2])
    assert group.place() == [(0, 2), (1, 2)]
    assert group.add(1) == [6, 6]
    # None stood for the others.
    assert group.told() == [[0, 1]] * 2


def test_any_survivor_has_what_is_replicated(seen: RecordingObserver) -> None:
    pool = two_nodes(max_colocate_count=1)
    group = group_on(pool, Learning)
    group.learn()
    digest = group.digest()[0]
    # Rank 0, whose state is taken otherwise, and a whole node; and there is no room beside the old ones.
    kill(group, 0, 2, 3, seen=seen)
    pool.resize([1])
    assert group.digest() == [digest]


def test_processes_that_stay_do_not_wait_for_those_that_are_gone(seen: RecordingObserver) -> None:
    pool = two_nodes()
    group = group_on(pool, Staying)
    kill(group, 2, 3, seen=seen)
    pool.resize([2])
    assert group.place() == [(0, 2), (1, 2)]
    assert group.moves() == [1, 1]


def test_a_class_that_needs_every_state_is_left_as_it_is_and_told_what_to_do(seen: RecordingObserver) -> None:
    pool = two_nodes()
    group = group_on(pool, Counting)
    other = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="other")
    kill(group, 2, 3, seen=seen)
    said = r"g cannot continue without the state of ranks 2, 3, who died: .*TypeError.*take None .* or close the group"
    with pytest.raises(LiveStateError, match=said) as caught:
        pool.resize([2])
    assert (caught.value.group, caught.value.worker_class) == ("g", "Counting")
    assert (pool.state, pool.store, other.world_size) == (PoolState.ACTIVE, [2, 2], 4)
    assert other.place() == [(rank, 4) for rank in range(4)]
    group.close()
    pool.resize([2])
    assert other.place() == [(0, 2), (1, 2)]


def test_survivors_are_not_ended_for_what_may_not_come() -> None:
    with local_controller({"CPU": 4, "GPU": 4}) as (_, seen):
        pool = two_nodes(max_colocate_count=1)
        group = group_on(pool, Enduring)
        kill(group, 3, seen=seen)
        before = group.workers
        with pytest.raises(LiveStateError, match=r"rank 3 of group g died, and there is no room .*max_colocate_count"):
            pool.resize([2])
        assert group.workers == before
        assert pool.state is PoolState.ACTIVE


def test_nobody_left_is_said(seen: RecordingObserver) -> None:
    pool = two_nodes()
    group = group_on(pool, Learning)
    kill(group, 0, 1, 2, 3, seen=seen)
    with pytest.raises(LiveStateError, match=r"all 4 ranks of group g died and none can save its state, or close"):
        pool.resize([2])
