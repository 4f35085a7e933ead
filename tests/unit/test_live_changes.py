"""Resize, split, merge and move of pools on the local cluster, from the driver's own code and from other threads."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import core
from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, create_colocated_worker_cls, get
from core.control import Operation, OperationState, Part, Pause, Resize, Resume, Split
from core.controller import Controller
from core.errors import (
    GenerationConflictError,
    LiveStateError,
    PlacementError,
    PoolClosedError,
    StateError,
    UnevenSplitError,
    UsageError,
)
from core.events import CallStarted, GroupRebuilt, OperationChanged, PoolChanged, PoolCreated, PoolStateChanged
from core.pool import PoolState
from core.testing import RecordingObserver, local_controller
from tests.live_workers import Asking, Counting, Faults, Learning, Meshed, Plain, Stateless

Local = tuple[Controller, RecordingObserver]
_TIGHT = {"CPU": 4.0, "GPU": 4.0}


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    Faults.gate.clear()
    yield
    Faults.gate.set()
    Faults.stage, Faults.rank = "", 0


@pytest.fixture
def tight() -> Iterator[Local]:
    """A machine with room for four processes and not one more."""
    with local_controller(_TIGHT) as both:
        yield both


def eventually(true: Callable[[], bool]) -> bool:
    """Wait for what another thread does."""
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.002)
    return true()


def rows(n_rows: int) -> DataProto:
    return DataProto.from_dict({"id": torch.arange(float(n_rows))})


def doubled(group: RayWorkerGroup, n_rows: int) -> bool:
    """Whether a call returns what it must."""
    return bool(group.double(rows(n_rows)).batch["id"].tolist() == [2.0 * row for row in range(n_rows)])


def free(controller: Controller) -> float:
    amounts = controller.runtime.cluster.free  # type: ignore[attr-defined]
    return float(amounts["CPU"])


def states(seen: RecordingObserver, operation: Operation) -> list[str]:
    """Return the states an operation went through, each once."""
    told = [event.state for event in seen.of(OperationChanged) if event.operation_id == operation.id]
    return list(dict.fromkeys(told))


def await_state(controller: Controller, operation: Operation, state: OperationState) -> Operation:
    assert eventually(lambda: controller.plane.operation(operation.id).state is state), controller.plane.operation(
        operation.id
    )
    return controller.plane.operation(operation.id)


class TestResize:
    def test_up_and_down_with_the_state_of_all_groups(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="trainers")
        actor = RayWorkerGroup(pool, RayClassWithInitArgs(Learning), name_prefix="actor")
        other = RayWorkerGroup(pool, RayClassWithInitArgs(Counting, 5), name_prefix="other")
        actor.learn()
        (digest,) = set(actor.digest())
        for sizes in ([4], [1], [2, 3], [1, 1], [3]):
            pool.resize(sizes)
            assert pool.store == sizes
            assert actor.world_size == other.world_size == pool.world_size == sum(sizes)
            assert actor.place() == [(rank, sum(sizes)) for rank in range(sum(sizes))]
            assert set(actor.digest()) == {digest}
            assert other.add(0) == [5] * sum(sizes)
            assert doubled(actor, 12 * sum(sizes))
        assert pool.generation == 6
        assert [event.generation for event in local[1].of(PoolChanged)] == [2, 3, 4, 5, 6]

    def test_growing_keeps_the_slots_and_shrinking_gives_whole_groups_back(self) -> None:
        with local_controller({"CPU": 64.0, "GPU": 8.0}) as (controller, _):
            pool = RayResourcePool([2], max_colocate_count=4)
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
            assert group.resource_pool is pool
            before = {id(native) for native in pool.get_placement_groups()}
            pool.resize([4])
            assert before < {id(native) for native in pool.get_placement_groups()}
            assert free(controller) == 64 - 4 * 4
            pool.resize([2])
            assert before == {id(native) for native in pool.get_placement_groups()}
            assert free(controller) == 64 - 2 * 4

    def test_h12_a_call_in_flight_returns_at_the_old_size_and_the_next_runs_at_the_new(self, tight: Local) -> None:
        # Case H12: ray#12562, #16403, #20647
        controller, seen = tight
        pool = RayResourcePool([4], max_colocate_count=1, name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Counting))
        refs = group.wait_later()
        operation = controller.plane.submit(Resize("pool", "ada", (2,)))
        await_state(controller, operation, OperationState.WAITING_FOR_SAFE_POINT)
        assert group.world_size == 4
        out: list[object] = []
        caller = threading.Thread(target=lambda: out.append(group.double(rows(10)).batch["id"].tolist()))
        caller.start()
        assert eventually(lambda: controller.plane.operation(operation.id).state is OperationState.RUNNING)
        assert out == []
        Faults.gate.set()
        caller.join(20)
        assert get(refs) == [0, 1, 2, 3]
        assert out == [[2.0 * row for row in range(10)]]
        assert group.world_size == 2
        assert free(controller) == 2.0
        done = await_state(controller, operation, OperationState.SUCCEEDED)
        assert (done.before, done.after, done.who) == ("4", "2", "ada")
        assert done.downtime_s > 0
        assert states(seen, operation) == [
            "pending", "preparing", "waiting_for_safe_point", "running", "succeeded"
        ]  # fmt: skip

    def test_a_pool_that_does_not_fit_is_refused_with_the_room_there_is(self, tight: Local) -> None:
        pool = RayResourcePool([2], max_colocate_count=1, name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        with pytest.raises(PlacementError, match="cannot be placed"):
            pool.resize([5])
        with pytest.raises(PlacementError):
            tight[0].plane.submit(Resize("pool", "ada", (5,)))
        assert doubled(group, 4)
        assert tight[0].plane.operations() == ()


class TestSplitAndMerge:
    def test_there_and_back_with_the_state_of_each_rank(self, local: Local) -> None:
        controller, seen = local
        pool = RayResourcePool([4], name_prefix="all")
        actor = RayWorkerGroup(pool, RayClassWithInitArgs(Learning), name_prefix="actor")
        rollout = RayWorkerGroup(pool, RayClassWithInitArgs(Learning, 3), name_prefix="rollout")
        actor.learn()
        (trained,), (other,) = set(actor.digest()), set(rollout.digest())
        made = controller.split(pool, {"train": (1, [actor]), "gen": (3, ["rollout"])})
        assert (actor.world_size, rollout.world_size) == (1, 3)
        assert actor.resource_pool is made["train"]
        assert set(actor.digest()) == {trained}
        assert set(rollout.digest()) == {other}
        assert pool.state is PoolState.CLOSED
        assert [snapshot.name for snapshot in controller.plane.pools()] == ["gen", "train"]
        merged = controller.merge(["gen", "train"], "again")
        assert actor.world_size == rollout.world_size == merged.world_size == 4
        assert merged.store == [4]
        assert set(actor.digest()) == {trained}
        assert actor.learn() == [2] * 4
        assert {event.pool for event in seen.of(PoolCreated)} == {"all", "train", "gen", "again"}

    def test_a_new_group_can_be_started_on_the_pool_that_was_merged(self, local: Local) -> None:
        one, other = RayResourcePool([1], name_prefix="one"), RayResourcePool([1], name_prefix="other")
        first = RayWorkerGroup(one, RayClassWithInitArgs(Stateless))
        group = RayWorkerGroup(other, RayClassWithInitArgs(Stateless))
        assert group.resource_pool is other
        local[0].merge([one, other], "both")
        assert RayWorkerGroup(one, RayClassWithInitArgs(Plain)).world_size == 2
        parts = {"a": (1, [group.name for group in one.present.tenants]), "b": (1, [])}
        with pytest.raises(LiveStateError):
            local[0].split("both", parts)
        assert first.world_size == 2

    def test_a_new_group_on_a_pool_that_was_split_is_refused_with_the_pools_there_are(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        local[0].split(pool, {"a": (1, [group]), "b": (1, [])})
        with pytest.raises(PoolClosedError, match=r"split into a \[1\], b \[1\] by driver"):
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        assert RayWorkerGroup(local[0].pool("b"), RayClassWithInitArgs(Stateless)).place() == [(0, 1)]

    def test_leaving_the_block_of_a_split_pool_closes_what_came_of_it(self) -> None:
        with local_controller({"CPU": 40.0, "GPU": 4.0}) as (controller, _):
            with RayResourcePool([4], name_prefix="pool") as pool:
                group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
                made = controller.split(pool, {"a": (2, [group]), "b": (2, [])})
                made["b"].close()
                assert free(controller) == 0.0
            assert made["a"].state is PoolState.CLOSED
            assert free(controller) == 40.0

    def test_a_merged_pool_lives_until_both_it_came_of_are_closed(self) -> None:
        with local_controller({"CPU": 40.0, "GPU": 4.0}) as (controller, _):
            one, other = RayResourcePool([1], name_prefix="one"), RayResourcePool([2], name_prefix="other")
            groups = [RayWorkerGroup(pool, RayClassWithInitArgs(Stateless)) for pool in (one, other)]
            merged = controller.merge([one, other], "both")
            one.close()
            assert [group.place() for group in groups] == [[(rank, 3) for rank in range(3)]] * 2
            other.close()
            assert merged.state is PoolState.CLOSED
            assert free(controller) == 40.0

    def test_pools_nobody_holds_any_more_give_their_slots_back(self) -> None:
        with local_controller({"CPU": 40.0, "GPU": 4.0}) as (controller, _):
            pool = RayResourcePool([4], name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
            controller.split(pool, {"a": (2, [group]), "b": (2, [])})
            del pool, group
            gc.collect()
            assert eventually(lambda: free(controller) == 40.0)

    def test_a_part_that_shrinks_leaves_spare_slots_which_it_takes_again(self) -> None:
        with local_controller({"CPU": 8.0, "GPU": 4.0}) as (controller, _):
            pool = RayResourcePool([4], max_colocate_count=2, name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
            made = controller.split(pool, {"a": (2, [group]), "b": (2, [])})
            plan = controller.plane.plan(Resize("a", "ada", (1,)))
            assert "1 slots stay reserved without a pool" in plan.lost_state[-1]
            made["a"].resize([1])
            assert group.place() == [(0, 1)]
            assert free(controller) == 0.0
            made["a"].resize([2])
            assert group.world_size == 2
            made["a"].close()
            made["b"].close()
            assert free(controller) == 8.0

    def test_roles_in_one_process_move_as_one_named_by_any_of_them(self, local: Local) -> None:
        roles = {"actor": RayClassWithInitArgs(Counting, 1), "critic": RayClassWithInitArgs(Learning)}
        pool = RayResourcePool([4], name_prefix="pool")
        whole = RayWorkerGroup(pool, create_colocated_worker_cls(roles), name_prefix="whole")
        views = whole.spawn(roles)
        views["actor"].add(2)
        digest = views["critic"].digest()[0]
        local[0].split(pool, {"a": (3, ["actor", "critic"]), "b": (1, [])})
        assert whole.world_size == views["actor"].world_size == views["critic"].world_size == 3
        assert views["actor"].add(0) == [3] * 3
        assert set(views["critic"].digest()) == {digest}
        with pytest.raises(UsageError, match="cannot go to x and to y; roles that share"):
            local[0].split("a", {"x": (1, ["actor"]), "y": (2, ["critic"])})

    def test_a_part_without_groups_is_resized_too(self) -> None:
        with local_controller({"CPU": 8.0, "GPU": 4.0}) as (controller, _):
            pool = RayResourcePool([3], max_colocate_count=2, name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
            made = controller.split(pool, {"a": (1, [group]), "b": (2, [])})
            made["b"].resize([3])
            assert made["b"].store == [3]
            assert free(controller) == 0.0
            made["b"].resize([2])
            made["b"].close()
            assert group.place() == [(0, 1)]


class TestMove:
    def test_a_group_goes_to_another_pool_and_others_stay(self, local: Local) -> None:
        one, other = RayResourcePool([1], name_prefix="one"), RayResourcePool([3], name_prefix="other")
        moving = RayWorkerGroup(one, RayClassWithInitArgs(Counting, 2), name_prefix="moving")
        staying = RayWorkerGroup(other, RayClassWithInitArgs(Plain), name_prefix="staying")
        names = staying.worker_names
        local[0].move(moving, "other")
        assert moving.add(1) == [3] * 3
        assert staying.worker_names == names
        assert (one.groups, other.groups) == ((), ("moving", "staying"))
        assert (one.generation, other.generation) == (2, 2)
        staying.place()
        assert [event.generation for event in local[1].of(CallStarted)] == [2, 2]
        one.close()
        assert moving.add(1) == [4] * 3


class TestPlans:
    def test_a_plan_says_what_moves_and_changes_nothing(self, local: Local) -> None:
        pool = RayResourcePool([4], max_colocate_count=3, name_prefix="pool")
        actor = RayWorkerGroup(pool, RayClassWithInitArgs(Learning), name_prefix="actor")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="rollout")
        group.wait_later()
        plan = local[0].plane.plan(Split("pool", "x", (Part("a", 1, ("actor",)), Part("b", 3, ("rollout",)))))
        assert [(c.pool, c.before, c.after, c.generation) for c in plan.pools] == [
            ("pool", (4,), (), 1), ("a", (), (1,), 0), ("b", (), (3,), 0)
        ]  # fmt: skip
        assert [(m.group, m.to_pool, m.world_size_before, m.world_size_after, m.how) for m in plan.groups] == [
            ("actor", "a", 4, 1, "state"), ("rollout", "b", 4, 3, "stateless")
        ]  # fmt: skip
        assert plan.prepared
        assert plan.in_flight[0].startswith("call 1 rollout.wait_later, ")
        assert "rollout" in plan.lost_state[0]
        assert actor.world_size == 4
        assert local[0].plane.operations() == ()
        assert pool.generation == 1

    def test_without_room_beside_the_old_workers_it_says_so(self, local: Local) -> None:
        pool = RayResourcePool([2], max_colocate_count=1, name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="actor")
        assert group.resource_pool is pool
        plan = local[0].plane.plan(Split("pool", "x", (Part("a", 1, ("actor",)), Part("b", 1))))
        assert not plan.prepared
        assert "max_colocate_count=1" in plan.not_prepared_reason
        assert "starts of the workers took actor" in plan.estimate_from

    def test_without_room_on_the_cluster_it_says_so(self, tight: Local) -> None:
        pool = RayResourcePool([4], max_colocate_count=1, name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="actor")
        assert group.resource_pool is pool
        plan = tight[0].plane.plan(Resize("pool", "x", (2,)))
        assert not plan.prepared
        assert "no room for old and new slots at once" in plan.not_prepared_reason

    def test_estimates_come_from_what_changes_took(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        assert group.resource_pool is pool
        assert "no change was made in this run yet" in local[0].plane.plan(Resize("pool", "x", (3,))).estimate_from
        pool.resize([3])
        assert "in the last 1 changes of this run" in local[0].plane.plan(Resize("pool", "x", (2,))).estimate_from


class TestOperations:
    def test_one_at_a_time_and_the_second_is_told_of_the_first(self, local: Local) -> None:
        controller = local[0]
        pool, other = RayResourcePool([2], name_prefix="pool"), RayResourcePool([1], name_prefix="other")
        groups = [RayWorkerGroup(one, RayClassWithInitArgs(Stateless)) for one in (pool, other)]
        first = controller.plane.submit(Resize("pool", "ada", (1,)))
        with pytest.raises(StateError, match=rf"{first.id} \(resize of pool by ada\) is in progress"):
            controller.plane.submit(Resize("other", "bob", (2,)))
        with pytest.raises(GenerationConflictError, match=rf"generation 1 is being changed .*{first.id} .* by ada"):
            controller.plane.submit(Resize("pool", "bob", (3,), expected_generation=1))
        assert controller.plane.submit(Pause("other", "bob")).state is OperationState.SUCCEEDED
        assert controller.plane.submit(Resume("other", "bob")).state is OperationState.SUCCEEDED
        await_state(controller, first, OperationState.WAITING_FOR_SAFE_POINT)
        groups[1].place()
        await_state(controller, first, OperationState.SUCCEEDED)
        assert groups[0].world_size == 1

    @pytest.mark.parametrize("border", ["call", "checkpoint", "core.checkpoint", "step", "own change"])
    def test_every_border_is_a_safe_point(self, local: Local, border: str) -> None:
        controller = local[0]
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        operation = controller.plane.submit(Resize("pool", "ada", (1,)))
        await_state(controller, operation, OperationState.WAITING_FOR_SAFE_POINT)
        match border:
            case "call":
                group.place()
            case "checkpoint":
                controller.checkpoint()
            case "core.checkpoint":
                core.checkpoint()
            case "step":
                next(iter(core.steps(1)))
            case _:
                pool.resize([3])
        assert controller.plane.operation(operation.id).state is OperationState.SUCCEEDED
        assert not controller.runtime.safe_point.is_due

    def test_a_driver_that_waits_at_a_paused_gate_makes_the_change_there(self, local: Local) -> None:
        controller = local[0]
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Counting))
        controller.pause(pool)
        out: list[object] = []
        driver = threading.Thread(target=lambda: out.append(group.place()))
        driver.start()
        assert eventually(lambda: pool.gate.n_waiting == 1)
        operation = controller.plane.submit(Split("pool", "ada", (Part("a", 1, (group.name,)), Part("b", 1))))
        await_state(controller, operation, OperationState.SUCCEEDED)
        assert out == []
        assert controller.plane.pool("a").state == controller.plane.pool("b").state == "paused"
        controller.resume("a")
        driver.join(10)
        assert out == [[(0, 1)]]

    def test_a_pause_that_waits_is_done_after_the_change_and_its_pool_stays_paused(self, local: Local) -> None:
        controller = local[0]
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        refs = group.wait_later()
        pause = controller.pause(pool)
        operation = controller.plane.submit(Resize("pool", "ada", (1,)))
        await_state(controller, operation, OperationState.WAITING_FOR_SAFE_POINT)
        threading.Timer(0.1, Faults.gate.set).start()
        controller.checkpoint()
        await_state(controller, operation, OperationState.SUCCEEDED)
        await_state(controller, pause, OperationState.SUCCEEDED)
        assert pool.state is PoolState.PAUSED
        assert get(refs) == [0, 1]
        controller.resume(pool)
        assert group.place() == [(0, 1)]

    def test_one_that_waits_can_be_taken_back_and_leaves_nothing(self) -> None:
        with local_controller({"CPU": 40.0, "GPU": 8.0}) as (controller, seen):
            pool = RayResourcePool([2], name_prefix="pool", max_colocate_count=2)
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
            operation = controller.plane.submit(Resize("pool", "ada", (4,)))
            await_state(controller, operation, OperationState.WAITING_FOR_SAFE_POINT)
            assert free(controller) == 32.0
            assert controller.plane.cancel(operation.id).state is OperationState.CANCELLED
            assert eventually(lambda: free(controller) == 36.0)
            assert group.world_size == 2
            assert doubled(group, 4)
            with pytest.raises(StateError, match="is cancelled"):
                controller.plane.cancel(operation.id)
            assert states(seen, operation)[-1] == "cancelled"
            assert eventually(lambda: sum(map(len, controller.runtime.slot_tenants.values())) == 2)

    def test_one_that_meets_no_safe_point_expires_and_leaves_nothing(self) -> None:
        with local_controller({"CPU": 40.0, "GPU": 8.0}) as (controller, _):
            pool = RayResourcePool([2], name_prefix="pool", max_colocate_count=2)
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
            operation = controller.plane.submit(Resize("pool", "ada", (4,), deadline_s=1.5))
            done = await_state(controller, operation, OperationState.EXPIRED)
            assert "no safe point within 1.5 s" in done.error
            assert eventually(lambda: free(controller) == 36.0)
            assert doubled(group, 4)
            assert pool.generation == 1

    def test_a_drain_past_the_deadline_expires_and_leaves_nothing(self, local: Local) -> None:
        controller = local[0]
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        refs = group.wait_later()
        operation = controller.plane.submit(Resize("pool", "ada", (1,)))
        await_state(controller, operation, OperationState.WAITING_FOR_SAFE_POINT)
        under_way = controller.plane._under_way
        assert under_way is not None
        under_way.executor.deadline = time.monotonic() + 0.3
        controller.checkpoint()
        done = controller.plane.operation(operation.id)
        assert done.state is OperationState.EXPIRED
        assert "1 calls on pool were still in flight" in done.error
        assert "wait_later" in done.error
        assert pool.state is PoolState.ACTIVE
        Faults.gate.set()
        assert get(refs) == [0, 1]
        assert doubled(group, 4)

    def test_a_group_made_meanwhile_makes_the_plan_stale(self, local: Local) -> None:
        controller = local[0]
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="one")
        operation = controller.plane.submit(Resize("pool", "ada", (1,)))
        await_state(controller, operation, OperationState.WAITING_FOR_SAFE_POINT)
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="two")
        controller.checkpoint()
        done = controller.plane.operation(operation.id)
        assert done.state is OperationState.FAILED
        assert "had the groups one when this was planned and has one, two now" in done.error
        assert doubled(group, 4)

    def test_the_first_event_has_the_plan_and_the_last_the_stand_still(self, local: Local) -> None:
        seen = local[1]
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        assert group.resource_pool is pool
        pool.resize([1])
        events = seen.of(OperationChanged)
        assert json.loads(events[0].plan)["pools"][0]["after"] == [1]
        assert {event.plan for event in events[1:]} == {""}
        assert events[-1].downtime_ns > 0
        assert (events[-1].before, events[-1].after, events[-1].who) == ("2", "1", "driver")
        assert any("starting 1 workers" in event.progress for event in events)

    def test_the_driver_ends_while_one_waits(self) -> None:
        with local_controller() as (controller, seen):
            pool = RayResourcePool([2], name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
            operation = controller.plane.submit(Resize("pool", "ada", (1,)))
            await_state(controller, operation, OperationState.WAITING_FOR_SAFE_POINT)
            assert group.world_size == 2
        assert controller.plane.operation(operation.id).state is OperationState.FAILED
        assert states(seen, operation)[-1] == "failed"

    def test_a_stale_generation_says_who_changed_what(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        assert group.resource_pool is pool
        pool.resize([3])
        with pytest.raises(GenerationConflictError, match=r"by driver \(resize op-.*: 2 -> 3\)"):
            local[0].plane.submit(Resize("pool", "ada", (1,), expected_generation=1))


def test_a_call_within_a_dispatch_function_is_no_border_and_waits_at_no_gate(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = local[0]
    pool = RayResourcePool([2], name_prefix="pool")
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Asking))
    place = group.place
    operations: list[Operation] = []

    def place_meanwhile() -> object:
        if not operations:
            operations.append(controller.plane.submit(Resize("pool", "ada", (1,))))
            await_state(controller, operations[0], OperationState.WAITING_FOR_SAFE_POINT)
            controller.pause(pool)
        return place()

    monkeypatch.setattr(group, "place", place_meanwhile)
    assert group.echo(5) == [5, 5]
    assert eventually(lambda: pool.state is PoolState.PAUSED)
    controller.resume(pool)
    assert group.echo(5) == [5]
    await_state(controller, operations[0], OperationState.SUCCEEDED)


def test_a_mesh_is_asked_for_anew(local: Local) -> None:
    pool = RayResourcePool([4], name_prefix="pool")
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Meshed))
    assert group.double_once(rows(6)).batch["id"].tolist() == [0, 2, 4, 6, 8, 10]
    for size in (2, 6):
        pool.resize([size])
        assert group.double_once(rows(6)).batch["id"].tolist() == [0, 2, 4, 6, 8, 10]


def test_rows_that_do_not_divide_any_more_say_since_when(local: Local) -> None:
    pool = RayResourcePool([2], name_prefix="pool")
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="actor")
    pool.resize([3])
    with pytest.raises(UnevenSplitError, match=r"actor has 3 ranks since .* UTC, it had 2: resize by driver \(op-"):
        group.double(rows(4))


class TestRecord:
    def test_states_and_generations_of_a_change_are_told_in_order(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="actor")
        pool.resize([1])
        told = [event.state for event in local[1].of(PoolStateChanged)]
        assert told == ["paused", "changing", "active"]
        assert [event.generation for event in local[1].of(PoolStateChanged)] == [1, 1, 2]
        (rebuilt,) = local[1].of(GroupRebuilt)
        assert (rebuilt.pool, rebuilt.world_size, rebuilt.generation) == ("pool", 1, 2)
        assert rebuilt.reason.startswith("resize by driver (op-")
        group.place()
        assert local[1].of(CallStarted)[-1].generation == 2

    def test_a_pool_of_an_earlier_name_goes_on_counting(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        local[0].split(pool, {"a": (1, [group]), "b": (1, [])})
        merged = local[0].merge(["a", "b"], "pool")
        assert merged.generation == 2
