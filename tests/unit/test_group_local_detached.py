"""Detached groups on the cluster inside this process: they outlive everything but ``close``, and are found again."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch

from core import (
    DataProto,
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    broadcast,
    create_colocated_worker_cls,
    register,
)
from core.cluster.local import LocalCluster
from core.controller import Controller
from core.errors import CallTimeoutError, PlacementError, PoolClosedError, UnknownNameError, UsageError, WorkerDiedError
from core.events import GroupClosed, WorkerEnded, WorkerStarted
from core.finalizers import drain
from core.testing import RecordingObserver
from tests.group_workers import Rows

Local = tuple[Controller, RecordingObserver]


class Memory(Worker):
    """A worker that remembers."""

    def __init__(self, value: int = 0, cuda_visible_devices: str | None = None) -> None:
        """Keep the value and what was said of devices."""
        super().__init__(cuda_visible_devices)
        self.value = value
        self.told = cuda_visible_devices

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, amount: int) -> int:
        """Add to what is remembered."""
        self.value += amount
        return self.value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int]:
        """Return rank and world size as this worker knows them."""
        return self.rank, self.world_size


MEMORY = RayClassWithInitArgs(Memory, 10)


def alive(controller: Controller, names: list[str]) -> bool:
    """Tell whether all workers of these names can be found."""
    try:
        return all(controller.runtime.cluster.find(name) for name in names)
    except UnknownNameError:
        return False


@pytest.fixture
def pool(local: Local) -> RayResourcePool:
    """A detached pool of two."""
    return RayResourcePool([2], detached=True, max_colocate_count=2)


def test_detached_workers_outlive_the_group_that_was_dropped_and_keep_their_state(
    local: Local, pool: RayResourcePool
) -> None:
    group = RayWorkerGroup(pool, MEMORY, name_prefix="kept_", detached=True)
    assert group.add(1) == [11, 11]
    names = group.worker_names
    del group
    gc.collect()
    assert drain()
    assert alive(local[0], names)
    again = RayWorkerGroup.from_detached(worker_names=names, ray_cls_with_init=MEMORY, name_prefix="again")
    assert again.add(1) == [12, 12]
    assert [(end.died, end.reason) for end in local[1].of(WorkerEnded)] == [
        (False, "the driver is done, the workers live on")
    ] * 2
    assert [event.group for event in local[1].of(GroupClosed)] == ["kept"]


def test_a_found_group_knows_its_ranks_rendezvous_and_slots(local: Local, pool: RayResourcePool) -> None:
    group = RayWorkerGroup(pool, MEMORY, name_prefix="kept_", detached=True)
    found = RayWorkerGroup.from_detached(worker_names=group.worker_names, ray_cls_with_init=MEMORY)
    assert (found.world_size, found.place()) == (2, [(0, 2), (1, 2)])
    assert (found.master_address, found.master_port) == (group.master_address, group.master_port)
    assert found.worker_names == group.worker_names
    assert found.workers == group.workers
    assert found.resource_pool.local_rank_list() == [0, 1]
    assert found.resource_pool.get_placement_groups() == []
    started = [event for event in local[1].of(WorkerStarted) if event.group == found.name]
    assert [(event.rank, event.name) for event in started] == list(enumerate(group.worker_names))


def test_workers_are_led_by_their_handles_in_the_order_given_also_of_several_groups(
    local: Local, pool: RayResourcePool
) -> None:
    one, other = (RayWorkerGroup(pool, RayClassWithInitArgs(Memory, value), detached=True) for value in (0, 100))
    both = RayWorkerGroup(worker_handles=[*other.workers, *one.workers], ray_cls_with_init=MEMORY)
    assert both.add(1) == [101, 101, 1, 1]
    assert both.world_size == 4


def test_a_batch_goes_through_a_found_group_as_through_any(local: Local, pool: RayResourcePool) -> None:
    made = RayWorkerGroup(pool, RayClassWithInitArgs(Rows), detached=True)
    found = RayWorkerGroup.from_detached("found", made.worker_names, None, RayClassWithInitArgs(Rows))
    batch = DataProto.from_dict({"id": torch.arange(5.0).reshape(5, 1)}, auto_padding=True)
    assert found.act(batch, broadcast("interleave")).batch["id"].flatten().tolist() == [
        row for row in range(5) for _ in range(2)
    ]


def test_roles_of_found_processes_are_spawned_and_each_lets_go_by_itself(local: Local, pool: RayResourcePool) -> None:
    roles = {"memory": MEMORY, "rows": RayClassWithInitArgs(Rows)}
    whole = RayWorkerGroup(pool, create_colocated_worker_cls(roles), detached=True)
    assert whole.memory_add(1) == [11, 11]
    names = whole.worker_names
    del whole
    gc.collect()
    assert drain()
    found = RayWorkerGroup.from_detached(worker_names=names, ray_cls_with_init=create_colocated_worker_cls(roles))
    spawned = found.spawn(roles)
    assert (spawned["memory"].add(1), spawned["rows"].echo(3)) == ([12, 12], [3, 3])
    spawned["memory"].close()
    assert alive(local[0], names), "the processes are those of all roles"
    assert spawned["rows"].echo(4) == [4, 4]
    found.close()
    assert not alive(local[0], names)


def test_fault_10_a_group_after_a_detached_one_of_the_same_class_is_not_detached(
    local: Local, pool: RayResourcePool
) -> None:
    before = MEMORY.spawn_options()
    detached = RayWorkerGroup(pool, MEMORY, name_prefix="first_", detached=True)
    plain = RayWorkerGroup(pool, MEMORY, name_prefix="second_")
    assert MEMORY.spawn_options() == before
    names, others = detached.worker_names, plain.worker_names
    del detached, plain
    gc.collect()
    assert drain()
    assert alive(local[0], names)
    assert not alive(local[0], others)


def test_close_ends_detached_workers_and_a_with_block_leaves_them(local: Local, pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, MEMORY, detached=True) as group:
        names = group.worker_names
    with pytest.raises(PoolClosedError):
        group.add(1)
    assert alive(local[0], names)
    assert pool.groups == ()
    found = RayWorkerGroup.from_detached(worker_names=names, ray_cls_with_init=MEMORY)
    found.close()
    found.close()
    assert not alive(local[0], names)
    assert [end.reason for end in local[1].of(WorkerEnded)][-2:] == ["the group was closed"] * 2


def test_a_detached_pool_keeps_its_slots_until_it_is_closed() -> None:
    with Controller.local({"CPU": 4, "GPU": 2}) as controller:
        cluster = controller.runtime.cluster
        assert isinstance(cluster, LocalCluster)
        with RayResourcePool([2], max_colocate_count=2, detached=True) as pool:
            kept = RayWorkerGroup(pool, MEMORY, detached=True)
            plain = RayWorkerGroup(pool, MEMORY)
            names, others = kept.worker_names, plain.worker_names
        assert cluster.free == {"CPU": 0, "GPU": 0}
        assert alive(controller, names)
        assert not alive(controller, others)
        pool.close()
        assert cluster.free == {"CPU": 4, "GPU": 2}


def test_a_list_makes_a_detached_pool_for_a_detached_group(local: Local) -> None:
    group = RayWorkerGroup([1], MEMORY, use_gpu=False, detached=True)
    assert group.resource_pool.detached
    group.close()
    assert local[0].runtime.pools() == {}


def test_detached_workers_on_slots_that_end_with_the_driver_are_refused(local: Local) -> None:
    with pytest.raises(UsageError, match="need a detached pool"):
        RayWorkerGroup(RayResourcePool([1]), MEMORY, detached=True)


def test_no_group_can_be_started_on_the_slots_of_found_workers(local: Local, pool: RayResourcePool) -> None:
    made = RayWorkerGroup(pool, MEMORY, detached=True)
    found = RayWorkerGroup.from_detached(worker_names=made.worker_names, ray_cls_with_init=MEMORY)
    with pytest.raises(PlacementError, match="workers that were found"):
        RayWorkerGroup(found.resource_pool, MEMORY)
    found.resource_pool.close()
    assert not alive(local[0], made.worker_names)


def test_what_cannot_be_found_or_led_is_said_by_name(local: Local, pool: RayResourcePool) -> None:
    with pytest.raises(UnknownNameError, match="nobody_0:0"):
        RayWorkerGroup.from_detached(worker_names=["nobody_0:0"], ray_cls_with_init=MEMORY)
    made = RayWorkerGroup(pool, MEMORY, detached=True)
    name, handle = made.worker_names[0], made.workers[0]
    nonsense: list[dict[str, Any]] = [
        {"worker_names": [name, name]},
        {"worker_names": [name], "worker_handles": made.workers},
        {"worker_names": []},
        {},
    ]
    for wrong in nonsense:
        with pytest.raises(UsageError):
            RayWorkerGroup.from_detached(ray_cls_with_init=MEMORY, **wrong)
    with pytest.raises(UsageError, match="one of the two"):
        RayWorkerGroup(pool, MEMORY, worker_names=[name])
    made.close()
    with pytest.raises(WorkerDiedError):
        RayWorkerGroup.from_detached(worker_handles=[handle], ray_cls_with_init=MEMORY)


def test_a_class_with_its_arguments_starts_one_worker_on_a_bundle(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    pool = RayResourcePool([2])
    cluster = local[0].runtime.cluster
    actor = MEMORY(pool.get_placement_groups()[0], 1)
    assert cluster.fetch([cluster.ask(actor, "add", (5,), {})], 10) == [15]
    for nonsense in ((pool.get_placement_groups()[0], 2), (None, 0)):
        with pytest.raises(UsageError, match="bundle"):
            MEMORY(*nonsense)


def test_sharing_with_another_worker_hands_its_devices_to_the_constructor(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("CUDA_VISIBLE_DEVICES", "3,4")):
        monkeypatch.setenv(name, value)
    cluster = local[0].runtime.cluster
    first = MEMORY(RayResourcePool([1]).get_placement_groups()[0], 0)
    beside = MEMORY(None, 0, sharing_with=first)
    (devices,) = cluster.fetch([cluster.ask(beside, "get_cuda_visible_devices", (), {})], 10)
    led = RayWorkerGroup.from_detached(worker_handles=[first, beside], ray_cls_with_init=MEMORY)
    assert (devices, led.add(1), led.execute_all_sync("__getattribute__", "told")) == ("3,4", [11, 11], [None, "3,4"])
    cluster.kill(first)
    with pytest.raises(WorkerDiedError):
        MEMORY(None, 0, sharing_with=first)


def test_a_busy_worker_that_does_not_describe_itself_in_time_is_an_error(local: Local, pool: RayResourcePool) -> None:
    made = RayWorkerGroup(pool, RayClassWithInitArgs(Rows), detached=True)
    made.nap_later(0.3)
    began = time.monotonic()
    with pytest.raises(CallTimeoutError, match=r"Rows_0:1 did not say who it is"):
        RayWorkerGroup.from_detached(
            worker_names=made.worker_names,
            ray_cls_with_init=RayClassWithInitArgs(Rows),
            ray_wait_register_center_timeout=0.05,
        )
    assert time.monotonic() - began < 0.3
