"""Giving a group other workers: the group stays, its calls go to the new ones, what the old ones made is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from core import (
    DataProto,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
    get,
)
from core.controller import Controller
from core.errors import PoolClosedError, WorkerDiedError, WorkerMethodError, WorkerStartError
from core.events import GroupRebuilt, WorkerEnded, WorkerStarted
from core.group.worker_group import state_of
from core.lifecycle.replace_workers import abandon, hand_over, prepare, save_state, switch
from core.pool.derive import subset
from core.testing import RecordingObserver
from tests.live_workers import Counting, Faults, Learning, Plain, Stateless

Local = tuple[Controller, RecordingObserver]


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    Faults.stage, Faults.rank = "", 0


def rows(n_rows: int) -> DataProto:
    return DataProto.from_dict({"id": torch.arange(float(n_rows))})


def rebuild(group: RayWorkerGroup, reason: str = "a test") -> None:
    """Give a group new workers on the slots it has, with its state."""
    prepared = prepare(state_of(group), group.resource_pool.placement_now)
    hand_over(state_of(group), prepared, save_state(state_of(group), 5.0), 5.0)
    switch(state_of(group), prepared, reason)


def test_the_object_the_driver_holds_calls_the_new_workers(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Stateless))
    names, port = group.worker_names, group.master_port
    rebuild(group)
    assert group.place() == [(0, 2), (1, 2)]
    assert not set(group.worker_names) & set(names)
    assert group.master_port != port


def test_the_record_has_the_ends_and_the_starts_around_the_rebuild(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Stateless), name_prefix="actor")
    n_before = len(local[1].events)
    rebuild(group, "the operator wished it")
    told = [
        event for event in local[1].events[n_before:] if isinstance(event, WorkerEnded | GroupRebuilt | WorkerStarted)
    ]
    assert [type(event) for event in told] == [WorkerEnded] * 2 + [GroupRebuilt] + [WorkerStarted] * 2
    assert all(event.group == "actor" for event in told)
    assert not any(event.died for event in told if isinstance(event, WorkerEnded))
    (rebuilt,) = local[1].of(GroupRebuilt)
    assert (rebuilt.world_size, rebuilt.reason) == (2, "the operator wished it")


def test_state_goes_to_every_new_rank_with_all_old_ranks_in_order(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([3]), RayClassWithInitArgs(Counting, 4))
    group.add(3)
    rebuild(group)
    assert group.add(0) == [7, 7, 7]
    assert group.told() == [[0, 1, 2]] * 3


def test_replicated_modules_optimizers_and_counters_survive_bit_for_bit(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Learning))
    for _ in range(3):
        group.learn()
    before = group.digest()
    rebuild(group)
    assert group.digest() == before
    assert group.learn() == [4, 4]


def test_fewer_workers_on_some_of_the_slots(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(Counting, 5))
    placement = group.resource_pool.placement_now
    prepared = prepare(state_of(group), subset(placement, placement.slots[:2]))
    assert len(prepared.actors) == 2
    assert group.place() == [(rank, 4) for rank in range(4)]
    abandon(state_of(group), prepared)
    assert group.add(1) == [6] * 4


def test_results_and_futures_of_the_old_workers_can_be_used_after_the_change(local: Local) -> None:
    pool = RayResourcePool([2])
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
    other = RayWorkerGroup(pool, RayClassWithInitArgs(Plain))
    future = group.double_later(rows(4))
    again = group.double_later(rows(2))
    rebuild(group)
    assert other.double(future).batch["id"].tolist() == [0, 4, 8, 12]
    assert group.double(again).batch["id"].tolist() == [0, 4]
    assert future.get().batch["id"].tolist() == [0, 2, 4, 6]


def test_roles_that_share_processes_are_given_the_new_ones_together(local: Local) -> None:
    roles = {"actor": RayClassWithInitArgs(Counting, 1), "critic": RayClassWithInitArgs(Stateless)}
    whole = RayWorkerGroup(RayResourcePool([2]), create_colocated_worker_cls(roles))
    views = whole.spawn(roles)
    views["actor"].add(5)
    rebuild(views["actor"])
    assert views["actor"].add(0) == whole.actor_add(0) == [6, 6]
    assert views["critic"].place() == [(0, 2), (1, 2)]
    assert views["actor"].worker_names == views["critic"].worker_names == whole.worker_names
    assert {event.group for event in local[1].of(GroupRebuilt)} == {whole.name, "actor", "critic"}


def test_a_constructor_that_raises_leaves_the_group_as_it_was(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Counting, 2))
    Faults.stage, Faults.rank = "__init__", 1
    with pytest.raises(WorkerStartError, match="rank 1"):
        prepare(state_of(group), group.resource_pool.placement_now)
    assert group.add(1) == [3, 3]


@pytest.mark.parametrize("stage", ["save_state", "load_state"])
def test_a_hook_that_raises_names_group_rank_and_method(local: Local, stage: str) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Counting), name_prefix="actor")
    prepared = prepare(state_of(group), group.resource_pool.placement_now)
    Faults.stage, Faults.rank = stage, 1
    with pytest.raises(WorkerMethodError, match=rf"actor\.{stage} raised RuntimeError on rank 1"):
        hand_over(state_of(group), prepared, save_state(state_of(group), 5.0), 5.0)
    abandon(state_of(group), prepared)
    assert group.add(1) == [1, 1]


def test_a_group_closed_meanwhile_takes_no_new_workers(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Stateless))
    prepared = prepare(state_of(group), group.resource_pool.placement_now)
    group.close()
    with pytest.raises(PoolClosedError, match="was closed while its workers were replaced"):
        switch(state_of(group), prepared, "a test")


def test_a_call_that_waits_at_the_gate_goes_on_with_the_new_workers(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Counting, 1))
    group.resource_pool.gate.pause()
    out: list[object] = []
    caller = threading.Thread(target=lambda: out.append((group.told(), group.worker_names)))
    caller.start()
    while not group.resource_pool.gate.n_waiting:
        pass
    rebuild(group)
    group.resource_pool.gate.resume()
    caller.join(10)
    assert out == [([[0, 1], [0, 1]], group.worker_names)]


def test_ending_old_workers_is_no_death_and_the_end_of_a_new_one_is(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Stateless))
    rebuild(group)
    assert not any(event.died for event in local[1].of(WorkerEnded))
    group.workers[1].kill()
    with pytest.raises(WorkerDiedError):
        group.place()
    assert [event.rank for event in local[1].await_count(WorkerEnded, 3) if event.died] == [1]


def test_values_of_calls_before_are_there_after(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Stateless))
    Faults.gate.set()
    refs = group.wait_later()
    # A call in flight would end with its workers; the value is not asked for yet.
    local[0].runtime.cluster.wait(refs, 2, 20)
    rebuild(group)
    assert get(refs) == [0, 1]
    Faults.gate.clear()
