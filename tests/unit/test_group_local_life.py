"""The life of groups and pools on the cluster inside this process: start, failure, names, ends."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import pytest

from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, ResourcePool, Worker, get, register
from core.controller import Controller
from core.errors import (
    CallTimeoutError,
    PlacementError,
    PoolClosedError,
    PoolSpecError,
    RegistrationError,
    UsageError,
    WorkerDiedError,
    WorkerMethodError,
    WorkerStartError,
)
from core.events import (
    CallFinished,
    GroupClosed,
    GroupCreated,
    Notice,
    PoolCreated,
    PoolStateChanged,
    RankFinished,
    WorkerEnded,
    WorkerStarted,
)
from core.finalizers import drain
from core.testing import RecordingObserver, local_controller
from tests.group_workers import Held, Rows, Waiting

Local = tuple[Controller, RecordingObserver]


class Breaks(Worker):
    """A worker that does not come up on one rank."""

    def __init__(self, rank: int, how: str = "raise") -> None:
        """Raise or hang on ``rank``."""
        super().__init__()
        if self.rank == rank:
            if how == "hang":
                Held.gate.wait(10)
            raise OSError(f"no weights at rank {rank}")


class Told(Worker):
    """A worker that says what it was told."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int, tuple[str, str]]:
        """Return rank, world size and rendezvous."""
        return self.rank, self.world_size, self.get_master_addr_port()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def environment(self) -> dict[str, str]:
        """Return the worker's own variables."""
        from core.cluster import environ

        return {name: environ()[name] for name in self.env_keys() if name in environ()}


class NeverCallsSuper(Worker):
    """A worker whose constructor leaves out ``super().__init__()``."""

    def __init__(self) -> None:
        """Set nothing."""


def args(cls: type = Rows, *values: Any) -> RayClassWithInitArgs:
    """Return a class with its constructor's arguments."""
    return RayClassWithInitArgs(cls, *values)


# Case H8 of the field (verl#725, #1965) and fault 5.
@pytest.mark.parametrize(
    ("processes", "local_sizes", "local_ranks"),
    [
        ([1, 3], [1, 3, 3, 3], [0, 0, 1, 2]),
        ([2, 4], [2, 2, 4, 4, 4, 4], [0, 1, 0, 1, 2, 3]),
        ([4], [4] * 4, [0, 1, 2, 3]),
    ],
)
def test_h8_unequal_nodes_start_every_worker_and_tell_each_its_place(
    local: Local, processes: list[int], local_sizes: list[int], local_ranks: list[int]
) -> None:
    pool = RayResourcePool(processes)
    group = RayWorkerGroup(pool, args(Told))
    size = sum(processes)
    assert (pool.world_size, group.world_size, len(group.workers)) == (size, size, size)
    assert pool.local_world_size_list() == local_sizes
    assert pool.local_rank_list() == local_ranks
    told = group.environment()
    assert [int(one["RANK"]) for one in told] == list(range(size))
    assert [int(one["LOCAL_WORLD_SIZE"]) for one in told] == local_sizes
    assert [int(one["RAY_LOCAL_WORLD_SIZE"]) for one in told] == local_sizes
    assert [int(one["LOCAL_RANK"]) for one in told] == local_ranks
    assert [int(one["RAY_LOCAL_RANK"]) for one in told] == local_ranks
    assert {one["WORLD_SIZE"] for one in told} == {str(size)}


def test_the_prefix_backend_and_rendezvous_are_told_and_rank_facts_are_read(local: Local) -> None:
    group = RayWorkerGroup([2], args(Told), name_prefix="actor_", use_gpu=False)
    told = group.environment()
    assert {(one["WG_PREFIX"], one["WG_BACKEND"]) for one in told} == {("actor_", "ray")}
    assert group.place() == [(rank, 2, (group.master_address, group.master_port)) for rank in range(2)]
    assert "RANK" not in os.environ


def test_a_constructor_that_never_calls_super_still_knows_its_rank(local: Local) -> None:
    group = RayWorkerGroup([2], args(NeverCallsSuper))
    assert group.execute_with_func_generator(lambda worker: [worker.rank]) == [0, 1]


def test_fault_9_a_rendezvous_of_the_users_own_is_kept_and_half_a_one_refused(local: Local) -> None:
    group = RayWorkerGroup([1], args(Told), master_addr="10.1.2.3", master_port=4321)
    assert group.place() == [(0, 1, ("10.1.2.3", "4321"))]
    assert (group.master_address, group.master_port) == ("10.1.2.3", "4321")
    for half in ({"master_addr": "10.1.2.3"}, {"master_port": 4321}, {"master_addr": "a", "master_port": "x"}):
        with pytest.raises(UsageError, match="master_port"):
            RayWorkerGroup([1], args(Told), **half)


def test_two_groups_never_get_one_port(local: Local) -> None:
    pool = RayResourcePool([1])
    groups = [RayWorkerGroup(pool, args()) for _ in range(5)]
    assert len({group.master_port for group in groups}) == 5


def test_a_port_is_taken_from_the_range_and_a_full_range_is_an_error(local: Local) -> None:
    group = RayWorkerGroup([1], args(), master_port_range=(23456, 23556))
    port = int(group.master_port)
    assert 23456 <= port < 23556
    with pytest.raises(UsageError, match="none of the 1 ports offered"):
        RayWorkerGroup([1], args(), master_port_range=(port, port + 1))


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "MASTER_PORT", "WG_PREFIX", "LOCAL_RANK", "RAY_LOCAL_RANK"])
def test_a_protected_variable_in_worker_env_is_refused_by_name(local: Local, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RayWorkerGroup([1], args(), worker_env={name: "1"})
    assert local[0].runtime.pools() == {}


def test_fault_67_a_worker_that_raises_takes_its_group_with_it_and_frees_the_slots(local: Local) -> None:
    pool = RayResourcePool([3], max_colocate_count=1)
    with pytest.raises(WorkerStartError) as caught:
        RayWorkerGroup(pool, args(Breaks, 1), name_prefix="actor")
    error = caught.value
    assert (error.group, error.rank, error.method, error.node) == ("actor", 1, "__init__", "127.0.0.1")
    assert "OSError: no weights at rank 1" in str(error)
    assert "test_group_local_life.py" in error.traceback_text
    assert pool.groups == ()
    assert RayWorkerGroup(pool, args()).echo(1) == [1, 1, 1]


def test_fault_67_a_pool_made_for_a_group_that_failed_is_given_back() -> None:
    with local_controller({"CPU": 20}) as (controller, _):
        for arguments in (args(Breaks, 0), args(Rows, "one argument", "too many")):
            with pytest.raises(WorkerStartError):
                RayWorkerGroup([2], arguments, use_gpu=False)
            assert controller.runtime.pools() == {}
        assert RayWorkerGroup([2], args(), use_gpu=False).echo(1) == [1, 1]


def test_fault_65_workers_that_do_not_come_up_in_time_are_an_error(local: Local) -> None:
    Held.gate.clear()
    pool = RayResourcePool([2])
    with pytest.raises(CallTimeoutError, match=r"2 workers of group Breaks were not up after 0\.2 s"):
        RayWorkerGroup(pool, args(Breaks, 1, "hang"), ray_wait_register_center_timeout=0.2)
    Held.gate.set()
    assert pool.groups == ()


def test_fault_68_an_error_names_method_rank_and_the_users_exception(local: Local) -> None:
    group = RayWorkerGroup([4], args(), name_prefix="actor")
    with pytest.raises(WorkerMethodError) as caught:
        group.fail(2)
    error = caught.value
    assert (error.group, error.rank, error.method, error.cause_type) == ("actor", 2, "fail", "KeyError")
    assert error.node == "127.0.0.1"
    assert isinstance(error.__cause__, KeyError)
    assert "group_workers.py" in error.traceback_text
    assert "core/worker" not in error.traceback_text
    assert group.echo(1) == [1] * 4


def test_a_method_that_is_not_there_is_an_error_of_the_worker(local: Local) -> None:
    group = RayWorkerGroup([2], args())
    with pytest.raises(WorkerMethodError, match="AttributeError"):
        group.execute_all_sync("no_such_method")
    with pytest.raises(AttributeError):
        group.no_such_method()


def test_the_next_call_behind_a_failed_one_says_what_it_waits_for(local: Local) -> None:
    Held.gate.clear()
    group = RayWorkerGroup([2], args(Waiting))
    group.execute_with_func_generator(lambda worker: None)
    refs = group.execute_all("slow_on_one")
    with pytest.raises(WorkerMethodError):
        get(refs)
    _settled(local[1], refs)
    later = group.echo_later(1)
    Held.gate.set()
    assert get(later) == [1, 1]
    texts = [event.text for event in local[1].of(Notice)]
    assert any("waits behind rank 1, still in call" in text and "slow_on_one which failed" in text for text in texts)


def _settled(seen: RecordingObserver, refs: list[Any]) -> None:
    """Wait until the record knows of the first rank that failed."""
    while not any(event.status == "error" for event in seen.of(RankFinished)):
        seen.await_count(RankFinished, len(seen.of(RankFinished)) + 1)


def test_a_killed_worker_ends_its_call_and_is_named(local: Local) -> None:
    Held.gate.clear()
    group = RayWorkerGroup([2], args(Waiting), name_prefix="actor_")
    refs = group.wait_later()
    group.workers[1].kill()
    with pytest.raises(WorkerDiedError):
        get(refs)
    with pytest.raises(WorkerDiedError) as caught:
        group.echo(1)
    assert (caught.value.rank, caught.value.group, caught.value.worker) == (1, "actor", group.worker_names[1])
    Held.gate.set()
    (death,) = [event for event in local[1].of(WorkerEnded) if event.died]
    assert (death.rank, death.group) == (1, "actor")


def test_a_death_in_another_group_does_not_mark_the_rank_that_met_it(local: Local) -> None:
    Held.gate.clear()
    pool = RayResourcePool([2])
    source, sink = RayWorkerGroup(pool, args(Waiting)), RayWorkerGroup(pool, args())
    ref = source.wait_later()[1]
    source.workers[1].kill()
    with pytest.raises((WorkerDiedError, WorkerMethodError)):
        sink.echo(ref)
    Held.gate.set()
    assert sink.echo(1) == [1, 1]


def test_names_lead_from_prefix_class_node_and_local_rank(local: Local) -> None:
    group = RayWorkerGroup([1, 2], args(), name_prefix="p_")
    assert group.worker_names == ["p_Rows_0:0", "p_Rows_1:0", "p_Rows_1:1"]
    assert group.name_prefix == "p_"


def test_fault_54_two_groups_without_a_prefix_have_names_of_their_own(local: Local) -> None:
    pool = RayResourcePool([1])
    one, other, odd = (RayWorkerGroup(pool, args(), name_prefix=prefix) for prefix in (None, None, "Rows_2"))
    assert not set(one.worker_names) & set(other.worker_names)
    assert len({one.name, other.name, odd.name}) == 3


def test_fault_10_a_class_with_its_arguments_serves_many_groups_and_is_never_changed(local: Local) -> None:
    class_args = args(Told)
    class_args.update_options({"max_concurrency": 2})
    before = class_args.spawn_options()
    pool = RayResourcePool([1])
    for prefix in ("a", "b"):
        assert RayWorkerGroup(pool, class_args, name_prefix=prefix).place()[0][0] == 0
    assert class_args.spawn_options() == before
    assert class_args.spawn_options() is not before


def test_fault_11_a_single_additional_resource_is_asked_for() -> None:
    class_args = args()
    class_args.set_additional_resource({"ssd": 1})
    class_args.update_options({"resources": {"disk": 2}})
    assert class_args.spawn_options() == {"resources": {"disk": 2, "ssd": 1}}


def test_only_classes_are_taken() -> None:
    with pytest.raises(UsageError, match=r"plain or wrapped by ray\.remote; got int"):
        RayClassWithInitArgs(3)


@pytest.mark.parametrize("processes", [[0], [-1], [2, 0], [True], [1.5], ["4"]])
def test_fault_70_counts_that_make_no_sense_are_refused(local: Local, processes: list[Any]) -> None:
    with pytest.raises(PoolSpecError, match="whole numbers of processes above zero"):
        ResourcePool(processes)
    with pytest.raises(PoolSpecError):
        RayResourcePool(processes)
    assert local[0].runtime.pools() == {}


def test_fault_70_the_callers_list_is_neither_kept_nor_changed(local: Local) -> None:
    processes = [2]
    pool = RayResourcePool(processes)
    processes.append(5)
    pool.store.append(7)
    pool.add_node(1)
    assert pool.store == [2, 1]
    assert processes == [2, 5]


def test_fault_70_a_node_is_refused_once_the_slots_are_there(local: Local) -> None:
    pool = RayResourcePool([2])
    pool.get_placement_groups()
    with pytest.raises(PoolSpecError, match="has its slots already"):
        pool.add_node(1)
    assert pool.world_size == 2


def test_a_pool_without_nodes_says_so_when_it_is_used(local: Local) -> None:
    with pytest.raises(PoolSpecError, match="has no nodes"):
        RayWorkerGroup(RayResourcePool(), args())


def test_fault_29_the_placement_is_made_once_and_another_request_is_refused(local: Local) -> None:
    pool = RayResourcePool([2, 1])
    assert pool.get_placement_groups() == pool.get_placement_groups()
    with pytest.raises(PoolSpecError, match="make another"):
        pool.get_placement_groups(strategy="PACK")
    with pytest.raises(PoolSpecError, match="make another"):
        pool.get_placement_groups(device_name="npu")


def test_fault_55_a_cpu_has_no_accelerator_and_an_unknown_device_is_refused(local: Local) -> None:
    assert RayWorkerGroup([1], args(), device_name="cpu").echo(1) == [1]
    with pytest.raises(PoolSpecError, match="'tpu' is not known"):
        RayWorkerGroup([1], args(), device_name="tpu")


def test_fault_56_a_pool_that_does_not_fit_says_what_is_missing_and_holds_nothing() -> None:
    with local_controller({"CPU": 16, "GPU": 4}) as (controller, _):
        pool = RayResourcePool([4], max_colocate_count=10)
        with pytest.raises(PlacementError) as caught:
            RayWorkerGroup(pool, args())
        assert dict(caught.value.needed) == {"CPU": 40, "GPU": 4}
        assert dict(caught.value.available) == {"CPU": 16, "GPU": 4}
        assert "4 bundles" in str(caught.value)
        pool.close()
        assert RayWorkerGroup(RayResourcePool([4], max_colocate_count=4), args()).echo(1) == [1] * 4
        assert controller.runtime.cluster.kind == "local"


def test_closing_gives_back_slots_ends_groups_and_may_be_done_twice() -> None:
    with local_controller({"CPU": 4}) as (controller, seen):
        with RayResourcePool([2], use_gpu=False, max_colocate_count=2) as pool:
            group = RayWorkerGroup(pool, args())
            assert group.echo(1) == [1, 1]
        pool.close()
        group.close()
        for call in (lambda: group.echo(1), lambda: RayWorkerGroup(pool, args()), pool.get_placement_groups):
            with pytest.raises(PoolClosedError):
                call()
        assert (group.workers, group.worker_names) == ([], [])
        assert controller.runtime.cluster.free == {"CPU": 4}  # type: ignore[attr-defined]
        assert len(seen.of(GroupClosed)) == 1
        assert [event.died for event in seen.of(WorkerEnded)] == [False, False]


def test_workers_that_are_closed_during_a_call_are_not_told_as_dead(local: Local) -> None:
    Held.gate.clear()
    group = RayWorkerGroup([2], args(Waiting))
    group.wait_later()
    group.close()
    Held.gate.set()
    local[1].await_count(RankFinished, 2)
    assert [(event.rank, event.died) for event in local[1].of(WorkerEnded)] == [(0, False), (1, False)]


def test_a_group_that_is_closed_leaves_its_place_to_another(local: Local) -> None:
    pool = RayResourcePool([1], max_colocate_count=1)
    with RayWorkerGroup(pool, args()), pytest.raises(PlacementError, match="max_colocate_count=1"):
        RayWorkerGroup(pool, args())
    assert RayWorkerGroup(pool, args()).echo(1) == [1]


def test_a_dropped_group_is_gone_and_a_dropped_pool_gives_back_its_slots() -> None:
    with local_controller({"CPU": 2}) as (controller, seen):
        pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
        group = RayWorkerGroup(pool, args())
        group.echo(1)
        gone = weakref.ref(group)
        del group
        gc.collect()
        assert gone() is None
        seen.await_count(GroupClosed, 1)
        assert pool.groups == ()
        del pool
        gc.collect()
        assert controller.runtime.pools() == {}
        assert drain()
        assert controller.runtime.cluster.free == {"CPU": 2}  # type: ignore[attr-defined]


def test_two_pools_of_one_name_are_refused_until_the_first_is_closed(local: Local) -> None:
    first = RayResourcePool([1], name_prefix="rollout")
    with pytest.raises(UsageError, match="a pool named 'rollout' exists already"):
        RayResourcePool([1], name_prefix="rollout")
    first.close()
    assert RayResourcePool([1], name_prefix="rollout").name == "rollout"
    one, other = RayResourcePool([1]), RayResourcePool([1])
    assert {one.name, other.name} == {"pool", "pool_2"}


def test_the_record_is_told_of_pool_group_and_workers(local: Local) -> None:
    pool = RayResourcePool([1, 2], name_prefix="rollout")
    group = RayWorkerGroup(pool, args(), name_prefix="actor")
    seen = local[1]
    (made,) = seen.of(PoolCreated)
    assert (made.pool, made.process_on_nodes, len(made.slots)) == ("rollout", (1, 2), 3)
    (created,) = seen.of(GroupCreated)
    assert (created.group, created.pool, created.world_size) == ("actor", "rollout", 3)
    assert created.worker_class == "tests.group_workers.Rows"
    assert [(one.rank, one.local_rank, one.name) for one in seen.of(WorkerStarted)] == [
        (0, 0, group.worker_names[0]),
        (1, 0, group.worker_names[1]),
        (2, 1, group.worker_names[2]),
    ]
    pool.close()
    assert seen.of(PoolStateChanged)[-1].state == "closed"


def test_what_a_group_needs_is_said_when_it_is_missing(local: Local) -> None:
    with pytest.raises(UsageError, match="needs a resource pool"):
        RayWorkerGroup()
    with pytest.raises(RegistrationError, match="'error', 'pad', 'split'"):
        RayWorkerGroup([1], args(), uneven="often")
    assert local[0].runtime.pools() == {}


def test_calls_from_several_threads_each_get_their_own_answer(local: Local) -> None:
    group = RayWorkerGroup([2], args())
    wrong: list[object] = []

    def calls(number: int) -> None:
        for turn in range(20):
            out = group.echo((number, turn))
            if out != [(number, turn)] * 2:
                wrong.append(out)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert len(local[1].of(CallFinished)) == 120
