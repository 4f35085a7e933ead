"""Faults of the design we start from that are about pools, groups and workers: one test per kind, named by its number.

Kinds that another module tests by number are not repeated here.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from core import (
    DataProto,
    DataProtoFuture,
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    SubRayResourcePool,
    Worker,
    broadcast,
    check_workers_alive,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    merge_resource_pool,
    register,
    split_resource_pool,
)
from core.cluster import SpawnRequest
from core.cluster.local import LocalCluster
from core.cluster.local_actor import LocalActor
from core.cluster.local_refs import LocalRef
from core.controller import Controller
from core.errors import CallTimeoutError, UsageError, WorkerDiedError, WorkerStartError
from core.events import WorkerEnded
from core.runtime import Runtime
from core.testing import RecordingObserver, local_controller
from core.worker import Header, shell_class
from core.worker.ports import hold_port
from tests.group_workers import Async, Held, Rows


class Facts(Worker):
    """A worker that says where it is."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def facts(self) -> tuple[int, int, int, int]:
        """Return rank, world size, local rank and local world size."""
        return self.rank, self.world_size, self._facts.local_rank, self._facts.local_world_size


class Hanging(Worker):
    """A worker whose constructor waits for the test."""

    def __init__(self) -> None:
        """Wait."""
        super().__init__()
        Held.gate.wait(10)


def rows(n_rows: int) -> DataProto:
    """Make a batch that pads itself."""
    return DataProto.from_dict({"id": torch.arange(float(n_rows)).reshape(n_rows, 1)}, auto_padding=True)


@pytest.fixture
def controller() -> Iterator[Controller]:
    """A controller on the cluster inside this process."""
    with local_controller() as (controller, _):
        yield controller


def test_fault_3_a_method_that_gives_two_rows_per_row_gives_twenty_for_ten(controller: Controller) -> None:
    group = RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(Rows))
    out = group.act(rows(10), broadcast("interleave"))
    assert [int(row) for row in out.batch["id"].flatten()] == [row for row in range(10) for _ in range(2)]


def test_fault_5_every_process_of_unequal_nodes_is_started_and_counted(controller: Controller) -> None:
    for processes in ([2, 4], [4, 2]):
        with RayResourcePool(processes) as pool, RayWorkerGroup(pool, RayClassWithInitArgs(Facts)) as group:
            assert group.world_size == len(group.workers) == 6
            assert {world_size for _, world_size, _, _ in group.facts()} == {6}


def test_faults_27_and_28_a_sub_pool_tells_its_own_local_ranks_and_sizes(controller: Controller) -> None:
    pool = RayResourcePool([4, 4])
    part = SubRayResourcePool(pool.get_placement_groups(), start_bundle_index=3, subgroup_world_size=3)
    assert (part.world_size, part.store, part.local_rank_list()) == (3, [1, 2], [0, 0, 1])
    assert RayWorkerGroup(part, RayClassWithInitArgs(Facts)).facts() == [(0, 3, 0, 1), (1, 3, 0, 2), (2, 3, 1, 2)]
    part.store.append(9)
    assert (part.store, pool.store) == ([1, 2], [4, 4])


@pytest.mark.parametrize("function", [functools.partial(operator.add, [0]), operator.itemgetter(0), len, [1].count])
def test_fault_49_any_callable_can_travel_with_the_rows(controller: Controller, function: Any) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Rows))
    assert group.execute_func_rank_zero(function, [1, 2]) == function([1, 2])
    assert group.execute_with_func_generator(functools.partial(_counted, 10), rows(3)) == [12, 12]


def _counted(more: int, worker: Worker, batch: DataProto) -> int:
    return more + len(batch)


@pytest.mark.parametrize("colocate", [create_colocated_worker_cls, create_colocated_worker_cls_fused])
def test_fault_50_async_methods_of_a_fused_role_are_awaited(controller: Controller, colocate: Any) -> None:
    roles = {"plain": RayClassWithInitArgs(Rows), "waits": RayClassWithInitArgs(Async)}
    group = RayWorkerGroup(RayResourcePool([2]), colocate(roles))
    assert group.spawn(["waits"])["waits"].act_async(rows(3)).batch["y"].flatten().tolist() == [0, 2, 4]
    assert group.waits_act_async(rows(3)).batch["y"].flatten().tolist() == [0, 2, 4]


class _Later(Async):
    """An async method that takes anything; sync methods run one after the other, as in a class without async ones."""

    async def echo_later(self, value: Any) -> Any:
        """Return what came."""
        return value


@pytest.mark.parametrize("quick_method", ["echo", "echo_later"])
def test_fault_51_an_async_worker_that_waits_for_a_future_goes_on_with_other_calls(quick_method: str) -> None:
    ref = LocalRef()
    actor = shell_class(_Later)()
    future = DataProtoFuture(collect_fn=lambda parts: parts[0], futures=[ref])

    async def both() -> tuple[Any, Any]:
        waiting = asyncio.create_task(actor._podium_run(Header("echo_later", -1, 0, True, "").pack(), future))
        await asyncio.sleep(0)
        quick, _ = await actor._podium_run(Header(quick_method, -1, 0, True, "").pack(), 7)
        assert not waiting.done()
        done = LocalCluster().put("there")
        ref.future.set_result(done.future.result())
        slow, _ = await waiting
        return quick, slow

    assert asyncio.run(asyncio.wait_for(both(), 10)) == (7, "there")


def test_fault_53_halves_of_a_pool_are_merged(controller: Controller) -> None:
    halves = split_resource_pool(RayResourcePool([4]), 2)
    assert RayWorkerGroup(merge_resource_pool(*halves), RayClassWithInitArgs(Facts)).facts()[3] == (3, 4, 3, 4)


def test_fault_54_seeding_random_does_not_give_a_name_twice(controller: Controller) -> None:
    pool = RayResourcePool([1])
    names = []
    for _ in range(2):
        random.seed(7)
        names += RayWorkerGroup(pool, RayClassWithInitArgs(Rows)).worker_names
    assert len(set(names)) == 2


class Noting(LocalCluster):
    """A cluster that remembers what it was asked to start."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        super().__init__()
        self.asked: list[SpawnRequest] = []

    def spawn(self, request: SpawnRequest) -> LocalActor:
        """Remember the request and start the worker."""
        self.asked.append(request)
        return super().spawn(request)


def test_fault_58_workers_take_cpus_of_their_bundle_and_a_bundle_only_those_of_its_groups() -> None:
    cluster = Noting()
    with Controller(Runtime(lambda: cluster)):
        with RayResourcePool([2], use_gpu=False, max_colocate_count=1) as pool:
            assert pool.get_placement_groups()[0].amounts == {"CPU": 2.0}
            RayWorkerGroup(pool, RayClassWithInitArgs(Rows))
        asked = RayClassWithInitArgs(Rows)
        asked.update_options({"num_cpus": 0.5})
        RayWorkerGroup(RayResourcePool([1]), asked)
    assert [(one.num_cpus, one.options.get("num_cpus")) for one in cluster.asked] == [(1.0, None)] * 2 + [(1.0, 0.5)]


def test_fault_59_a_port_that_a_group_was_given_is_held_for_it(controller: Controller) -> None:
    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Rows))
    port = int(group.master_port)
    with pytest.raises(UsageError, match="none of the 1 ports"):
        hold_port([port])
    group.close()


class Rollout(Rows):
    """A class whose name says nothing, in a role whose name has "rollout" in it."""


def test_fault_60_a_roles_methods_have_its_prefix_whatever_its_name_and_its_class(controller: Controller) -> None:
    roles = {"my_rollout": RayClassWithInitArgs(Rollout), "other": RayClassWithInitArgs(Async)}
    group = RayWorkerGroup(RayResourcePool([1]), create_colocated_worker_cls(roles))
    assert group.my_rollout_echo(1) == group.other_echo(1) == [1]
    assert not hasattr(group, "echo")
    assert group.other_act_async(rows(1)).batch["y"].tolist() == [[0.0]]


def test_fault_61_the_users_classes_are_as_they_were(controller: Controller) -> None:
    # Python makes an empty one on the class at the first look at its annotations, whoever looks.
    assert all(isinstance(kind.__annotations__, dict) for kind in (Rollout, Async))
    before = {name: value for kind in (Rollout, Async) for name, value in vars(kind).items()}
    roles = {"a": RayClassWithInitArgs(Rollout), "b": RayClassWithInitArgs(Async)}
    RayWorkerGroup(RayResourcePool([1]), create_colocated_worker_cls(roles)).spawn(roles)
    RayWorkerGroup(RayResourcePool([1]), roles["a"])
    assert {name: value for kind in (Rollout, Async) for name, value in vars(kind).items()} == before


def test_fault_62_a_death_is_told_once_with_rank_and_cause(controller: Controller) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Rows), name_prefix="watched_")
    seen = RecordingObserver()
    controller.runtime.bus.subscribe(seen)
    group.workers[1].kill("was killed by the test")
    (death,) = seen.await_count(WorkerEnded, 1)
    assert group.execute_rank_zero_sync("unregistered", 1) == (0, 1)
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match="was killed by the test"):
            group.execute_all_sync("unregistered", 1)
    assert [(one.rank, one.died) for one in seen.of(WorkerEnded)] == [(1, True)]
    assert death.report is not None
    assert (death.report.worker, death.method, death.call_id) == ("watched_Rows_0:1", "", 0)
    assert "was killed by the test" in death.report.cause


def test_fault_64_a_stale_address_of_another_ray_is_never_asked_for_the_dead(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Rows))
    monkeypatch.setenv("RAY_ADDRESS", "10.255.255.1:1")
    seen = RecordingObserver()
    controller.runtime.bus.subscribe(seen)
    group.workers[0].kill()
    assert seen.await_count(WorkerEnded, 1, 5)[0].died


def test_check_workers_alive_ends_the_driver_when_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        """Stands for the end of the process."""

    def end(number: int) -> None:
        assert number == signal.SIGABRT
        raise Ended

    monkeypatch.setattr(signal, "raise_signal", end)
    looked = iter([True, True, True, False])
    with pytest.raises(Ended):
        check_workers_alive(["a", "b"], lambda worker: next(looked), gap_time=0.001)


def test_fault_66_the_time_to_wait_for_workers_is_kept(controller: Controller) -> None:
    Held.gate.clear()
    try:
        with pytest.raises((CallTimeoutError, WorkerStartError), match="not up after"):
            RayWorkerGroup([1], RayClassWithInitArgs(Hanging), use_gpu=False, ray_wait_register_center_timeout=0.05)
    finally:
        Held.gate.set()


def test_fault_71_roles_share_their_groups_pool_and_handles_and_copy_nothing(controller: Controller) -> None:
    roles = {"a": RayClassWithInitArgs(Rows), "b": RayClassWithInitArgs(Rows)}
    group = RayWorkerGroup(RayResourcePool([2]), create_colocated_worker_cls(roles))
    for role in group.spawn(roles).values():
        assert role.resource_pool is group.resource_pool
        assert all(one is other for one, other in zip(role.workers, group.workers, strict=True))
