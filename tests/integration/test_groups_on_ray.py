"""Groups on a real Ray: what only real processes can show. One Ray for the module, few workers, groups reused."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.util.placement_group import placement_group_table

from core import (
    DataProto,
    DataProtoFuture,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    broadcast,
    get,
    get_master_addr_port,
)
from core.cluster import ReserveRequest
from core.control import Pause, Resume, RuntimeControl
from core.errors import (
    PlacementError,
    PodiumError,
    PoolClosedError,
    UsageError,
    WorkerDiedError,
    WorkerError,
    WorkerMethodError,
    WorkerStartError,
)
from core.events import CallFinished, CallStarted, RankFinished, WorkerEnded
from core.finalizers import drain
from core.runtime import Runtime, current
from core.testing import RecordingObserver
from tests.group_workers import AsyncRing, Faulty, Ring, Rows
from tests.unit.test_errors import TREE, sample

pytestmark = [pytest.mark.integration, pytest.mark.warm_workers]

RemoteAsyncRing = ray.remote(AsyncRing)
"""``AsyncRing`` as drivers of this field write it, wrapped before Ray is started."""

Watched = tuple[Runtime, RecordingObserver]


def rows(n_rows: int, auto_padding: bool = False) -> DataProto:
    """Make a batch whose rows carry ids from 0 on."""
    return DataProto.from_dict(
        {"id": torch.arange(n_rows, dtype=torch.float32).reshape(n_rows, 1)}, auto_padding=auto_padding
    )


def ids(batch: DataProto) -> list[int]:
    """Return the ids of a batch's rows."""
    return [int(row) for row in batch.batch["id"].flatten()]


def eventually(true: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Wait until ``true`` is, for what Ray does behind the caller's back."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def free(resource: str) -> float:
    """Return how much of a resource nobody holds."""
    return float(ray.available_resources().get(resource, 0.0))  # type: ignore[no-untyped-call]


def this_node() -> str:
    """Return this machine's address, as Ray has it."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def standing_placement_groups() -> list[str]:
    """Return the states of the placement groups that are not removed."""
    return [entry["state"] for entry in placement_group_table().values() if entry["state"] != "REMOVED"]


def names_that_start(prefix: str) -> list[str]:
    """Return the names of live actors with this prefix."""
    return [name for name in ray.util.list_named_actors() if name.startswith(prefix)]


def last_spans(seen: RecordingObserver, call_id: int, n_ranks: int) -> list[RankFinished]:
    """Return the spans of a call by rank, once all are there."""

    def spans() -> list[RankFinished]:
        return [event for event in seen.of(RankFinished) if event.call_id == call_id]

    assert eventually(lambda: len(spans()) == n_ranks)
    return sorted(spans(), key=lambda span: span.rank)


@pytest.fixture(scope="module")
def rings(ray_runtime: Watched) -> Iterator[tuple[RayWorkerGroup, RayWorkerGroup]]:
    """Two groups of eight on one pool of eight logical GPUs, each with a process group of its own."""
    with RayResourcePool([8], max_colocate_count=2, name_prefix="eight") as pool:
        plain = RayWorkerGroup(
            pool, RayClassWithInitArgs(Ring), name_prefix="plain_", worker_env={"PODIUM_TEST": "told"}
        )
        yield plain, RayWorkerGroup(pool, RayClassWithInitArgs(RemoteAsyncRing), name_prefix="mixed_")


@pytest.fixture(scope="module")
def plain(rings: tuple[RayWorkerGroup, RayWorkerGroup]) -> RayWorkerGroup:
    """The group with sync methods only."""
    return rings[0]


@pytest.fixture(scope="module")
def mixed(rings: tuple[RayWorkerGroup, RayWorkerGroup]) -> RayWorkerGroup:
    """The other group on the same slots, of a class wrapped by ``ray.remote`` that has async methods."""
    return rings[1]


@pytest.fixture(scope="module")
def two(ray_runtime: Watched) -> Iterator[RayResourcePool]:
    """A pool of two CPU slots, for one group at a time."""
    with RayResourcePool([2], use_gpu=False, max_colocate_count=1, name_prefix="two") as pool:
        yield pool


def test_two_drivers_of_one_namespace_may_have_pools_of_one_name(ray_runtime: Watched) -> None:
    cluster = ray_runtime[0].cluster
    # A worker that leads workers of its own is such a driver too.
    placements = [cluster.reserve(ReserveRequest("same", (1,), {"CPU": 0.01}), 20.0) for _ in range(2)]
    for placement in placements:
        cluster.release(placement)


# Before the two groups of eight take every device.
def test_local_rank_device_of_a_worker_that_sees_every_device_is_the_one_that_ray_gave_it(
    ray_runtime: Watched,
) -> None:
    with RayResourcePool([2], max_colocate_count=1, name_prefix="all_devices") as pool:
        visible = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Ring), worker_env=visible)
        given = group.execute_all_sync("execute_with_func_generator", _given_devices)
        told = group.environment()
        assert [one["CUDA_VISIBLE_DEVICES"].split(",")[int(one["LOCAL_RANK"])] for one in told] == given
        assert [one["RAY_LOCAL_RANK"] for one in told] == ["0", "1"]


def test_eight_workers_are_told_who_they_are_and_see_one_device_each(
    rings: tuple[RayWorkerGroup, RayWorkerGroup],
) -> None:
    told = rings[0].environment()
    assert [one["RANK"] for one in told] == [str(rank) for rank in range(8)]
    assert [one["RAY_LOCAL_RANK"] for one in told] == [str(rank) for rank in range(8)]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RAY_LOCAL_WORLD_SIZE"):
        assert {one[name] for one in told} == {"8"}, name
    assert {one["WG_PREFIX"] for one in told} == {"plain_"}
    assert {one["WG_BACKEND"] for one in told} == {"ray"}
    assert {one["PODIUM_TEST"] for one in told} == {"told"}
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told} == {
        (rings[0].master_address, rings[0].master_port)
    }


@pytest.mark.parametrize("index", [0, 1])
def test_each_group_on_a_pool_sees_the_devices_in_rank_order(
    rings: tuple[RayWorkerGroup, RayWorkerGroup], index: int
) -> None:
    told = rings[index].environment()
    assert [one["CUDA_VISIBLE_DEVICES"] for one in told] == [str(rank) for rank in range(8)]
    assert rings[index].execute_all_sync("get_cuda_visible_devices") == [str(rank) for rank in range(8)]


# Case 11 of the field (local_rank_device): torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) must be valid.
@pytest.mark.parametrize("index", [0, 1])
def test_local_rank_device_is_an_index_into_the_devices_that_a_worker_sees(
    rings: tuple[RayWorkerGroup, RayWorkerGroup], index: int
) -> None:
    assert {one["LOCAL_RANK"] for one in rings[index].environment()} == {"0"}
    on_node = rings[index].execute_all_sync("execute_with_func_generator", lambda worker: worker.local_rank_on_node)
    assert on_node == list(range(8))


def _given_devices(worker: Ring) -> str:
    """Run in a worker: return the id of the device that Ray gave it."""
    del worker
    return str(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])


def test_two_process_groups_side_by_side_have_ports_of_their_own(rings: tuple[RayWorkerGroup, RayWorkerGroup]) -> None:
    assert rings[0].sum_of_ranks() == [28.0] * 8
    assert rings[1].sum_of_ranks() == [28.0] * 8
    assert rings[0].master_port != rings[1].master_port


# Case H4 of the field (verl#149): a batch smaller than the group.
def test_h4_a_batch_smaller_than_the_group_gives_each_rank_one_row(
    rings: tuple[RayWorkerGroup, RayWorkerGroup], ray_runtime: Watched
) -> None:
    assert ids(rings[0].act(rows(3, auto_padding=True), broadcast("keep"))) == [0, 1, 2]
    ended = ray_runtime[1].of(CallFinished)[-1]
    assert (ended.shard_sizes, ended.padding_rows, ended.rows) == ((1,) * 8, 5, 3)


def test_a_third_group_on_a_pool_for_two_is_refused_with_the_names_of_both(
    rings: tuple[RayWorkerGroup, RayWorkerGroup],
) -> None:
    with pytest.raises(PlacementError, match=r"mixed, plain.*max_colocate_count=2"):
        RayWorkerGroup(rings[0].resource_pool, RayClassWithInitArgs(Rows))


# Case H1 of the field (verl PR #1356).
@pytest.mark.parametrize("keyword", [False, True])
def test_h1_auto_pad_leaves_the_callers_batch_alone(plain: RayWorkerGroup, keyword: bool) -> None:
    batch = rows(5, auto_padding=True)
    how = broadcast("add column")
    for _ in range(2):
        out = plain.act(batch=batch, how=how) if keyword else plain.act(batch, how)
        assert ids(out) == [0, 1, 2, 3, 4]
        assert out.batch["y"].flatten().tolist() == [0, 2, 4, 6, 8]
        assert len(batch) == 5
        assert "y" not in batch.batch.keys()  # noqa: SIM118 - a TensorDict's own `in` is something else


# Case H2 of the field (verl PR #2324).
@pytest.mark.parametrize("later", [False, True])
def test_h2_auto_pad_with_every_row_twice_gives_exactly_ten_rows(plain: RayWorkerGroup, later: bool) -> None:
    batch = rows(5, auto_padding=True)
    out = plain.act_later(batch, broadcast("interleave")).get() if later else plain.act(batch, broadcast("interleave"))
    assert ids(out) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


# Case H6 of the field.
def test_h6_rank_zero_gets_the_plain_argument(plain: RayWorkerGroup) -> None:
    assert plain.echo_zero(7) == (0, 7)
    assert plain.echo_zero(value=[1, 2, 3, 4]) == (0, [1, 2, 3, 4])
    assert get(plain.echo_zero_later(7)) == (0, 7)
    assert plain.echo_rank_zero(7) == (0, 7)


# Case H11 of the field (verl#2299).
def test_h11_queueing_and_running_are_told_apart_per_rank(plain: RayWorkerGroup, ray_runtime: Watched) -> None:
    seen = ray_runtime[1]
    plain.echo(0)
    get([*plain.nap_later(0.1), *plain.nap_later(0.1)])
    calls = [event.call_id for event in seen.of(CallStarted) if event.method == "nap_later"]
    first, second = (last_spans(seen, call, 8) for call in calls)
    for spans in (first, second):
        run_s = [(span.finished_ns - span.started_ns) / 1e9 for span in spans if span.finished_ns and span.started_ns]
        assert run_s == pytest.approx([0.1 * rank for rank in range(8)], abs=0.1)
        assert int(np.argmax(run_s)) == 7
    queue_s = [(span.started_ns - span.submitted_ns) / 1e9 for span in second if span.started_ns]
    assert queue_s[7] == pytest.approx(0.7, abs=0.15)
    assert queue_s[0] < 0.1


def test_every_span_lies_inside_its_submission_and_its_answer(plain: RayWorkerGroup, ray_runtime: Watched) -> None:
    plain.echo(0)
    call_id = ray_runtime[1].of(CallFinished)[-1].call_id
    for span in last_spans(ray_runtime[1], call_id, 8):
        assert span.started_ns is not None
        assert span.finished_ns is not None
        assert span.submitted_ns <= span.started_ns <= span.finished_ns <= span.ready_ns


def test_workers_may_write_to_what_they_get_and_it_stays_local(plain: RayWorkerGroup) -> None:
    big = DataProto.from_dict({"id": torch.zeros(8, 300_000)})
    out = plain.execute_with_func_generator(_add_rank, big)
    assert out.batch["id"][:, 0].tolist() == list(range(8))
    assert not big.batch["id"].any()


def _add_rank(worker: Rows, batch: DataProto) -> DataProto:
    batch.batch["id"] += worker.rank
    return batch


def test_a_large_argument_of_all_ranks_arrives_whole_on_each(plain: RayWorkerGroup) -> None:
    value = np.arange(100_000)
    for out in plain.echo(value):
        assert np.array_equal(out, value)


def test_the_names_of_workers_lead_to_them(plain: RayWorkerGroup) -> None:
    assert plain.worker_names == [f"plain_Ring_0:{rank}" for rank in range(8)]
    for rank, name in enumerate(plain.worker_names):
        assert ray.get(ray.get_actor(name).unregistered.remote("hello")) == (rank, "hello")


def test_an_error_comes_through_a_real_actor_with_its_type_and_fields(plain: RayWorkerGroup) -> None:
    with pytest.raises(WorkerMethodError) as caught:
        plain.fail(2)
    error = caught.value
    assert (error.group, error.rank, error.method, error.cause_type) == ("plain", 2, "fail", "KeyError")
    assert error.node == this_node()
    assert isinstance(error.__cause__, KeyError)
    assert "no such thing on rank 2" in str(error)
    assert "group_workers.py" in error.traceback_text
    assert plain.echo(1) == [1] * 8


def test_every_error_of_the_tree_is_raised_in_a_real_actor_and_arrives_with_type_and_fields(
    plain: RayWorkerGroup,
) -> None:
    def raising(error: PodiumError) -> None:
        raise error

    for kind in TREE:
        sent = sample(kind)
        with pytest.raises(PodiumError) as caught:
            plain.execute_func_rank_zero(raising, sent)
        arrived: BaseException | None = caught.value
        if issubclass(kind, WorkerError):
            # A rank's error that a worker meets in its own method is that method's failure, and the cause of it.
            assert isinstance(arrived, WorkerMethodError)
            arrived = arrived.cause
        assert type(arrived) is kind
        for field in fields(kind):
            got, given = getattr(arrived, field.name), getattr(sent, field.name)
            assert got == given or (field.name == "cause" and repr(got) == repr(given)), (kind, field.name)


def test_async_methods_run_and_fail_like_others_in_a_class_wrapped_by_ray_remote(mixed: RayWorkerGroup) -> None:
    out = mixed.act_async(rows(5, auto_padding=True))
    assert ids(out) == [0, 1, 2, 3, 4]
    assert out.batch["y"].flatten().tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(WorkerMethodError) as caught:
        mixed.fail_async()
    assert caught.value.cause_type == "LookupError"
    assert mixed.worker_names[0] == "mixed_AsyncRing_0:0"


def test_a_future_of_one_group_goes_straight_to_another(plain: RayWorkerGroup, mixed: RayWorkerGroup) -> None:
    future = plain.act_later(rows(20, auto_padding=True), broadcast("interleave"))
    assert isinstance(future, DataProtoFuture)
    doubled = mixed.act_async(future)
    assert ids(doubled) == [row for row in range(20) for _ in range(2)]
    assert ids(mixed.act_pad(batch=future, how=broadcast("keep"))) == ids(future.get())


def test_an_error_behind_a_future_names_the_group_it_came_from(plain: RayWorkerGroup, mixed: RayWorkerGroup) -> None:
    future = plain.fail_later(rows(8))
    with pytest.raises(WorkerMethodError, match="no rows for rank 1") as caught:
        mixed.act_async(future)
    assert caught.value.group == "mixed"
    with pytest.raises(WorkerMethodError, match="no rows for rank 1") as first:
        future.get()
    assert (first.value.group, first.value.rank, first.value.cause_type) == ("plain", 1, "ValueError")


def test_a_paused_pool_holds_its_calls_and_lets_them_go_on(plain: RayWorkerGroup, ray_runtime: Watched) -> None:
    control = RuntimeControl(ray_runtime[0])
    control.submit(Pause("eight", who="test"))
    out: list[Any] = []
    caller = threading.Thread(target=lambda: out.append(plain.echo(3)))
    caller.start()
    assert eventually(lambda: plain.resource_pool.gate.n_waiting == 1)
    assert not out
    control.submit(Resume("eight", who="test"))
    caller.join(20)
    assert out == [[3] * 8]


def test_a_closed_pool_gives_back_its_slots_and_ends_its_groups(rings: tuple[RayWorkerGroup, RayWorkerGroup]) -> None:
    assert free("GPU") == 0
    rings[0].resource_pool.close()
    assert eventually(lambda: free("GPU") == 8 and free("CPU") == 16)
    assert not standing_placement_groups()
    assert eventually(lambda: not names_that_start("plain_") and not names_that_start("mixed_"))
    with pytest.raises(PoolClosedError):
        rings[1].environment()


# Case H7 of the field (verl#6663), and a sibling with its bundles on several nodes.
@pytest.mark.parametrize("processes", [[4], [1, 1, 1, 1]])
def test_h7_an_infeasible_pool_fails_fast_and_leaves_nothing_pending(
    ray_runtime: Watched, processes: list[int]
) -> None:
    assert eventually(lambda: free("CPU") == 16)
    began = time.monotonic()
    with RayResourcePool(processes, use_gpu=False, max_colocate_count=10, timeout_s=5) as pool:
        with pytest.raises(PlacementError) as caught:
            pool.get_placement_groups()
        assert time.monotonic() - began < 10
    text = str(caught.value)
    assert "4 bundles of 10 CPUs need 40 CPUs" in text
    assert "16 CPUs available" in text
    assert caught.value.bundle == (("CPU", 10.0),)
    assert caught.value.needed == (("CPU", 40.0),)
    assert caught.value.available == (("CPU", 16.0),)
    assert eventually(lambda: not standing_placement_groups())


@pytest.mark.parametrize("fault", ["weights", "exit"])
def test_a_worker_that_does_not_come_up_takes_its_group_with_it(two: RayResourcePool, fault: str) -> None:
    with pytest.raises(WorkerStartError) as caught:
        RayWorkerGroup(two, RayClassWithInitArgs(Faulty, fault), name_prefix=f"faulty_{fault}")
    assert (caught.value.rank, caught.value.method) == (1, "__init__")
    assert caught.value.node == this_node()
    if fault == "weights":
        assert "cannot load weights" in str(caught.value)
        assert "group_workers.py" in caught.value.traceback_text
    assert eventually(lambda: not names_that_start(f"faulty_{fault}"))
    assert two.groups == ()


def test_slots_that_a_failed_group_had_serve_another_whose_dead_worker_is_named_with_its_pid(
    two: RayResourcePool, ray_runtime: Watched
) -> None:
    with RayWorkerGroup(two, RayClassWithInitArgs(Rows), name_prefix="victim") as group:
        pids = group.nap(0.0)
        threading.Timer(0.5, os.kill, (pids[1], signal.SIGKILL)).start()
        began = time.monotonic()
        with pytest.raises(WorkerDiedError) as caught:
            group.nap(30.0)
        assert time.monotonic() - began < 5.5
        assert (caught.value.rank, caught.value.pid, caught.value.method) == (1, pids[1], "nap")
        assert caught.value.group == "victim"
        with pytest.raises(WorkerDiedError):
            group.echo(1)
    (death,) = [event for event in ray_runtime[1].of(WorkerEnded) if event.group == "victim" and event.died]
    assert (death.rank, death.pid, death.method) == (1, pids[1], "nap")


def test_a_dropped_group_is_gone_with_its_workers(two: RayResourcePool) -> None:
    group = RayWorkerGroup(two, RayClassWithInitArgs(Rows), name_prefix="dropped")
    assert len(group.act(rows(2), broadcast("keep"))) == 2
    assert names_that_start("dropped")
    del group
    gc.collect()
    assert eventually(lambda: not names_that_start("dropped"))
    assert two.groups == ()


@ray.remote(num_cpus=0)
class Elsewhere:
    """Another process: it is sent groups, and sends one on."""

    def use(self, group: RayWorkerGroup) -> tuple[list[int], int, int]:
        """Call a group, count what was recorded here, and close it."""
        seen = RecordingObserver()
        current().bus.subscribe(seen)
        answered = group.echo(5)
        kept = len(group.act(rows(4), broadcast("keep")))
        seen.await_count(CallFinished, 2)
        group.close()
        return answered, kept, len(seen.of(CallFinished))

    def give(self, group: RayWorkerGroup) -> RayWorkerGroup:
        """Return a group to who asks."""
        return group


def test_a_group_travels_between_processes_and_its_workers_stay_their_owners(
    two: RayResourcePool, ray_runtime: tuple[Runtime, RecordingObserver]
) -> None:
    group = RayWorkerGroup(two, RayClassWithInitArgs(Rows), name_prefix="travels")
    elsewhere = Elsewhere.remote()  # type: ignore[attr-defined]
    n_before = len(ray_runtime[1].of(CallFinished))
    assert ray.get(elsewhere.use.remote(group)) == ([5, 5], 4, 2)
    assert len(ray_runtime[1].of(CallFinished)) == n_before
    came: RayWorkerGroup = ray.get(elsewhere.give.remote(group))
    assert came.echo(6) == [6, 6]
    came.close()
    assert group.echo(7) == [7, 7]
    address, port = ray.get(get_master_addr_port.options(num_cpus=0).remote())
    assert address == group.master_address
    assert int(port) > 0
    ray.kill(elsewhere)
    group.close()


def test_workers_of_a_dropped_group_live_until_their_handles_are_dropped(two: RayResourcePool) -> None:
    handles = RayWorkerGroup(two, RayClassWithInitArgs(Rows), name_prefix="kept").workers
    gc.collect()
    assert drain()
    addresses = ray.get([handle._get_node_ip.remote() for handle in handles])
    ports = ray.get([handle._get_free_port.remote() for handle in handles for _ in range(2)])
    assert len(set(addresses)) == 1
    assert len(set(ports)) == 4
    assert len(names_that_start("kept")) == 2
    del handles
    gc.collect()
    assert eventually(lambda: not names_that_start("kept"))
    assert drain()
    assert two.groups == ()


def test_a_protected_variable_in_worker_env_is_refused_before_anything_starts(two: RayResourcePool) -> None:
    with pytest.raises(UsageError, match="WORLD_SIZE"):
        RayWorkerGroup(two, RayClassWithInitArgs(Rows), worker_env={"WORLD_SIZE": "8"})
