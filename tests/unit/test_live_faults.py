"""What goes wrong in the middle of a change is taken back: pools, groups, states and slots are as they were."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.cluster import Placement, ReserveRequest
from core.control import Operation, OperationState, Pause, Resize
from core.controller import Controller
from core.errors import (
    LiveStateError,
    PlacementError,
    PodiumError,
    PoolClosedError,
    WorkerDiedError,
    WorkerMethodError,
    WorkerStartError,
)
from core.events import OperationChanged, PoolStateChanged, WorkerEnded
from core.pool import PoolState
from core.testing import RecordingObserver, local_controller
from tests.live_workers import Counting, Faults, Learning, Staying

Local = tuple[Controller, RecordingObserver]


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    Faults.gate.clear()
    yield
    Faults.let_go()


def eventually(true: Callable[[], bool]) -> bool:
    """Wait for what another thread does."""
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.002)
    return true()


def end_soon(controller: Controller) -> None:
    """Bring the deadline of the change under way near, once it is prepared: that takes long on a busy machine."""
    under_way = controller.plane._under_way
    assert under_way is not None
    under_way.executor.deadline = time.monotonic() + 0.3


class Scene:
    """Two groups on a pool of four, with state, on a machine that has room beside them or not."""

    def __init__(self, stack: ExitStack, resources: Mapping[str, float], max_colocate_count: int) -> None:
        """Start them; ``stack`` ends them, whatever becomes of the test."""
        self._stack = stack
        self.controller, self.seen = stack.enter_context(local_controller(resources))
        # Before the rest: workers that wait for the test would keep it up.
        stack.callback(Faults.let_go)
        cluster: Any = self.controller.runtime.cluster
        self.cluster = cluster
        self.pool = RayResourcePool([4], max_colocate_count=max_colocate_count, name_prefix="pool")
        self.actor = RayWorkerGroup(self.pool, RayClassWithInitArgs(Counting, 1), name_prefix="actor")
        self.learner = RayWorkerGroup(self.pool, RayClassWithInitArgs(Learning), name_prefix="learner")
        self.actor.add(4)
        self.learner.learn()
        self.digest = self.learner.digest()
        self.free = self.cluster.free
        self.slots = set(self.controller.runtime.holdings.holders())
        self.seats = {key: set(names) for key, names in self.controller.runtime.slot_tenants.items()}

    def close(self) -> None:
        """End it."""
        self._stack.close()

    def change(self, kind: str) -> None:
        """Do one of the changes from the driver's own code."""
        match kind:
            case "grow":
                self.pool.resize([5])
            case "shrink":
                self.pool.resize([2])
            case "split":
                self.controller.split(self.pool, {"a": (1, [self.actor]), "b": (3, [self.learner])})

    def is_as_it_was(self, same_slots: bool = True) -> None:
        """Compare everything that could be left over."""
        runtime = self.controller.runtime
        assert self.pool.state is PoolState.ACTIVE
        assert self.pool.generation == 1
        assert self.pool.store == [4]
        assert [pool.name for pool in self.controller.plane.pools()] == ["pool"]
        assert self.actor.world_size == self.learner.world_size == 4
        assert self.actor.add(0) == [5] * 4
        assert self.learner.digest() == self.digest
        assert self.learner.place() == [(rank, 4) for rank in range(4)]
        assert eventually(lambda: bool(self.cluster.free == self.free)), (self.cluster.free, self.free)
        if same_slots:
            assert set(runtime.holdings.holders()) == self.slots
            assert {key: set(names) for key, names in runtime.slot_tenants.items()} == self.seats
        assert len(runtime.holdings.holders()) == 4
        assert sorted(map(len, runtime.slot_tenants.values())) == [2] * 4
        assert not runtime.safe_point.is_due
        assert not any(event.died for event in self.seen.of(WorkerEnded))


ROOMY = ({"CPU": 64.0, "GPU": 16.0}, 4)
FULL_SLOTS = ({"CPU": 64.0, "GPU": 16.0}, 2)
FULL_CLUSTER = ({"CPU": 8.0, "GPU": 4.0}, 2)


Scenes = Callable[[Mapping[str, float], int], Scene]


@pytest.fixture
def scenes() -> Iterator[Scenes]:
    """Yield what makes scenes; all are ended, also those of a test that fails: it would take the others along."""
    with ExitStack() as stack:
        yield partial(Scene, stack)


@pytest.fixture(params=[ROOMY, FULL_SLOTS, FULL_CLUSTER], ids=["roomy", "full slots", "full cluster"])
def scene(request: pytest.FixtureRequest, scenes: Scenes) -> Scene:
    """The scene with room for everything, with slots that are full, and with a cluster that is."""
    return scenes(*request.param)


@pytest.mark.parametrize("kind", ["shrink", "split"])
@pytest.mark.parametrize(
    ("stage", "error"),
    [("__init__", WorkerStartError), ("save_state", WorkerMethodError), ("load_state", WorkerMethodError)],
)
def test_a_stage_that_raises_is_taken_back(scene: Scene, kind: str, stage: str, error: type[PodiumError]) -> None:
    Faults.stage, Faults.rank, Faults.times = stage, 0, 1
    with pytest.raises(error, match="was to fail"):
        scene.change(kind)
    scene.is_as_it_was(same_slots=kind == "split" or scene.free["CPU"] > 0)
    (last,) = scene.controller.plane.operations()
    assert last.state is OperationState.FAILED
    assert "was to fail" in last.error
    scene.change(kind)
    assert scene.actor.world_size == (2 if kind == "shrink" else 1)
    assert set(scene.actor.add(0)) == {5}


@pytest.mark.parametrize("kind", ["grow", "shrink"])
def test_a_placement_that_fails_is_taken_back(scene: Scene, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "grow" and scene.free["CPU"] == 0:
        pytest.skip("refused before anything is tried")
    reserve, left = scene.cluster.reserve, [1]

    def failing(request: ReserveRequest, timeout_s: float) -> Placement:
        if left:
            left.pop()
            raise PlacementError("a node went away", pool=request.pool)
        placement: Placement = reserve(request, timeout_s)
        return placement

    monkeypatch.setattr(scene.cluster, "reserve", failing)
    with pytest.raises(PlacementError, match="a node went away"):
        scene.change(kind)
    scene.is_as_it_was(same_slots=scene.free["CPU"] > 0)


def test_a_new_worker_that_dies_before_the_switch_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, scenes: Scenes
) -> None:
    scene = scenes(*ROOMY)
    operation = scene.controller.plane.submit(Resize("pool", "ada", (2,)))
    under_way = scene.controller.plane._under_way
    assert under_way is not None
    assert eventually(lambda: scene.controller.runtime.safe_point.is_due)
    under_way.executor._staged.prepared["learner"].actors[1].kill()
    scene.controller.checkpoint()
    done = scene.controller.plane.operation(operation.id)
    assert done.state is OperationState.FAILED
    assert "learner" in done.error
    scene.is_as_it_was()


def test_an_old_worker_that_is_dead_fails_the_change_and_the_rest_goes_on(scenes: Scenes) -> None:
    scene = scenes(*ROOMY)
    scene.actor.workers[2].kill()
    # As soon as the death is known the survivors are asked, and their class cannot do without the dead one's state.
    with pytest.raises((WorkerDiedError, LiveStateError), match=r"rank 2 of actor|actor cannot .* of rank 2"):
        scene.pool.resize([2])
    assert scene.pool.state is PoolState.ACTIVE
    assert scene.learner.digest() == scene.digest
    assert scene.cluster.free == scene.free


def test_a_state_that_takes_too_long_expires_and_is_taken_back(scene: Scene) -> None:
    operation = scene.controller.plane.submit(Resize("pool", "ada", (2,)))
    assert eventually(lambda: scene.controller.runtime.safe_point.is_due)
    end_soon(scene.controller)
    Faults.stage, Faults.rank = "slow save_state", 1
    scene.controller.checkpoint()
    Faults.stage = ""
    done = scene.controller.plane.operation(operation.id)
    assert done.state is OperationState.EXPIRED
    assert "save_state of actor was not done on all 4 ranks" in done.error
    Faults.gate.set()
    scene.is_as_it_was()


def test_when_neither_the_change_nor_the_way_back_works_the_pool_is_failed_and_says_so(scenes: Scenes) -> None:
    scene = scenes(*FULL_CLUSTER)
    Faults.stage, Faults.rank, Faults.times = "load_state", 0, 2
    with pytest.raises(WorkerMethodError):
        scene.pool.resize([2])
    assert scene.pool.state is PoolState.FAILED
    with pytest.raises(PoolClosedError, match="could neither be done nor undone") as caught:
        scene.learner.place()
    assert caught.value.state == "failed"
    assert scene.seen.of(PoolStateChanged)[-1].state == "failed"
    assert scene.controller.plane.pool("pool").state == "failed"
    scene.pool.close()
    assert scene.cluster.free == {"CPU": 8.0, "GPU": 4.0}


def test_an_interrupt_in_the_drain_ends_the_driver_and_leaves_the_pool_as_it_was(
    monkeypatch: pytest.MonkeyPatch, scenes: Scenes
) -> None:
    scene = scenes(*ROOMY)
    refs = scene.actor.wait_later()
    operation = scene.controller.plane.submit(Resize("pool", "ada", (2,)))
    assert eventually(lambda: scene.controller.runtime.safe_point.is_due)

    def interrupted(*_: object) -> PoolState:
        raise KeyboardInterrupt

    monkeypatch.setattr(scene.pool.gate, "await_change", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scene.actor.add(0)
    monkeypatch.undo()
    assert scene.controller.plane.operation(operation.id).state is OperationState.FAILED
    Faults.gate.set()
    assert len(refs) == 4
    scene.is_as_it_was()


def test_a_cancel_while_workers_come_up_ends_them(scenes: Scenes) -> None:
    scene = scenes(*ROOMY)
    Faults.stage, Faults.rank = "slow __init__", 1
    operation = scene.controller.plane.submit(Resize("pool", "ada", (2,)))
    assert eventually(lambda: scene.cluster.free != scene.free)
    scene.controller.plane.cancel(operation.id)
    Faults.stage = ""
    Faults.gate.set()
    scene.is_as_it_was()
    told = [event.state for event in scene.seen.of(OperationChanged) if event.operation_id == operation.id]
    assert told[-1] == "cancelled"


def test_workers_that_do_not_come_up_in_time_expire(scenes: Scenes) -> None:
    scene = scenes(*ROOMY)
    Faults.stage, Faults.rank = "slow __init__", 1
    operation: Operation = scene.controller.plane.submit(Resize("pool", "ada", (2,), deadline_s=0.4))
    assert eventually(lambda: scene.controller.plane.operation(operation.id).state.done)
    Faults.stage = ""
    Faults.gate.set()
    assert scene.controller.plane.operation(operation.id).state is OperationState.EXPIRED
    scene.is_as_it_was()


@pytest.mark.parametrize("stage", ["slow __init__", ""])
def test_a_driver_that_ends_while_workers_come_up_or_wait_leaves_nothing(stage: str, scenes: Scenes) -> None:
    scene = scenes(*ROOMY)
    Faults.stage, Faults.rank = stage, 1
    operation = scene.controller.plane.submit(Resize("pool", "ada", (2,)))
    under_way = scene.controller.plane._under_way
    assert under_way is not None
    assert under_way.starter is not None
    assert eventually(lambda: scene.cluster.free != scene.free)
    assert stage or eventually(lambda: scene.controller.runtime.safe_point.is_due)
    scene.close()
    assert scene.controller.plane.operation(operation.id).state is OperationState.FAILED
    assert not under_way.starter.is_alive()
    assert not scene.controller.runtime.connected
    assert scene.cluster.free == ROOMY[0]


def test_a_pool_that_is_closed_while_its_change_waits_keeps_no_slots(scenes: Scenes) -> None:
    scene = scenes(*ROOMY)
    operation = scene.controller.plane.submit(Resize("pool", "ada", (6,)))
    assert eventually(lambda: scene.controller.runtime.safe_point.is_due)
    scene.pool.close()
    assert eventually(lambda: scene.cluster.free == ROOMY[0])
    failed = scene.controller.plane.operation(operation.id)
    assert (failed.state, failed.error) == (OperationState.FAILED, "pool pool was closed meanwhile")
    assert not scene.controller.runtime.safe_point.is_due


def test_a_second_controller_that_ends_while_its_change_waits_is_not_connected_again() -> None:
    with local_controller() as (first, _):
        with Controller.local() as second:
            pool = RayResourcePool([2], max_colocate_count=2, name_prefix="pool")
            RayWorkerGroup(pool, RayClassWithInitArgs(Counting, 1), name_prefix="actor")
            operation = first.plane.submit(Resize("pool", "ada", (3,)))
            assert eventually(lambda: first.runtime.safe_point.is_due)
        first.checkpoint()
        assert first.plane.operation(operation.id).state is OperationState.FAILED
        assert not second.runtime.connected


def test_a_deadline_may_be_as_far_away_as_one_likes(scenes: Scenes) -> None:
    scene = scenes(*ROOMY)
    scene.actor.wait_later()
    paused = scene.controller.plane.submit(Pause("pool", "ada", deadline_s=float("inf")))
    Faults.gate.set()
    assert eventually(lambda: scene.controller.plane.operation(paused.id).state is OperationState.SUCCEEDED)
    scene.controller.resume("pool")
    resized = scene.controller.plane.submit(Resize("pool", "ada", (2,), deadline_s=float("inf")))
    assert eventually(lambda: scene.controller.runtime.safe_point.is_due)
    assert scene.actor.place() == [(0, 2), (1, 2)]
    assert scene.controller.plane.operation(resized.id).state is OperationState.SUCCEEDED


class TestReconfigure:
    """Processes that stay."""

    def test_they_are_told_their_place_and_others_are_started_and_ended(self) -> None:
        with local_controller({"CPU": 64.0, "GPU": 16.0}) as (controller, _):
            pool = RayResourcePool([2], max_colocate_count=2, name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Staying), name_prefix="actor")
            names = group.worker_names
            pool.resize([3])
            assert group.place() == [(rank, 3) for rank in range(3)]
            assert group.worker_names[:2] == names
            assert group.moves() == [1, 1, 0]
            made = controller.split(pool, {"a": (1, []), "b": (2, [group])})
            assert group.place() == [(0, 2), (1, 2)]
            assert group.moves() == [2, 1]
            assert group.worker_names[0] == names[1]
            plan = controller.plane.plan(Resize("b", "ada", (1,)))
            assert [move.how for move in plan.groups] == ["reconfigure"]
            assert "the state of the ended processes of actor (1 of them)" in plan.lost_state[0]
            made["b"].resize([1])
            assert group.moves() == [3]

    def test_one_that_raises_is_taken_back(self) -> None:
        with local_controller({"CPU": 64.0, "GPU": 16.0}) as (controller, _):
            pool = RayResourcePool([2], max_colocate_count=2, name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Staying), name_prefix="actor")
            free = controller.runtime.cluster.free  # type: ignore[attr-defined]
            Faults.stage, Faults.rank, Faults.times = "reconfigure", 1, 1
            with pytest.raises(WorkerMethodError, match="reconfigure"):
                pool.resize([3])
            assert group.place() == [(0, 2), (1, 2)]
            assert controller.runtime.cluster.free == free  # type: ignore[attr-defined]
            pool.resize([3])
            assert group.place() == [(rank, 3) for rank in range(3)]

    def test_one_that_dies_while_it_is_told_is_a_death_like_any_other(self) -> None:
        with local_controller({"CPU": 64.0, "GPU": 16.0}) as (controller, seen):
            runtime: Any = controller.runtime
            pool = RayResourcePool([2], max_colocate_count=2, name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Staying), name_prefix="actor", on_death="restart")
            other = RayWorkerGroup(pool, RayClassWithInitArgs(Counting), name_prefix="other")
            free = runtime.cluster.free
            Faults.stage, Faults.rank = "slow reconfigure", 1
            victim = group.workers[1]

            def kill() -> None:
                if eventually(lambda: any("reconfiguring" in one.progress for one in seen.of(OperationChanged))):
                    victim.kill()

            threading.Thread(target=kill).start()
            with pytest.raises(WorkerDiedError, match=r"rank 1 of actor .* died in reconfigure"):
                pool.resize([3])
            assert (pool.state, runtime.cluster.free) == (PoolState.ACTIVE, free)
            assert other.add(1) == [1, 1]
            Faults.stage = ""
            Faults.gate.set()
            assert eventually(lambda: group.place() == [(0, 2), (1, 2)])
            pool.resize([3])
            assert (group.place(), other.add(1)) == ([(rank, 3) for rank in range(3)], [2, 2, 2])

    @pytest.mark.parametrize("restarted", [True, False])
    def test_one_that_died_since_leaves_the_group_to_be_restarted(self, restarted: bool) -> None:
        with local_controller({"CPU": 64.0, "GPU": 16.0}) as (controller, seen):
            runtime: Any = controller.runtime
            pool = RayResourcePool([2], max_colocate_count=2, name_prefix="pool")
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Staying), name_prefix="actor", on_death="restart")
            free = runtime.cluster.free
            operation = controller.plane.submit(Resize("pool", "ada", (3,)))
            assert eventually(lambda: runtime.safe_point.is_due)
            group.workers[1].kill()
            assert seen.await_count(WorkerEnded, 1)[-1].died
            if restarted:  # By a thread that was past its border when the change became due.
                actions, runtime.safe_point._actions = runtime.safe_point._actions, ()
                assert group.place() == [(0, 2), (1, 2)]
                runtime.safe_point._actions = actions
            assert group.place() == [(0, 2), (1, 2)]
            failed = controller.plane.operation(operation.id)
            assert failed.state is OperationState.FAILED
            assert ("was restarted since" if restarted else "rank 1 of actor") in failed.error
            assert (pool.state, runtime.cluster.free) == (PoolState.ACTIVE, free)
            pool.resize([3])
            assert group.place() == [(rank, 3) for rank in range(3)]


def test_a_call_that_waits_gets_the_typed_error_of_a_pool_that_failed(scenes: Scenes) -> None:
    scene = scenes(*FULL_CLUSTER)
    Faults.stage, Faults.rank, Faults.times = "load_state", 0, 2
    refs = scene.actor.wait_later()
    operation = scene.controller.plane.submit(Resize("pool", "ada", (2,)))
    assert eventually(lambda: scene.controller.runtime.safe_point.is_due)
    got: list[BaseException] = []

    def call() -> None:
        try:
            scene.learner.place()
        except PodiumError as error:
            got.append(error)

    callers = [threading.Thread(target=call) for _ in range(2)]
    callers[0].start()
    assert eventually(lambda: scene.pool.state is PoolState.PAUSING)
    # Not sooner: it could pass the gate before the first one has shut it.
    callers[1].start()
    Faults.gate.set()
    for caller in callers:
        caller.join(20)
    assert [type(error) for error in got] == [PoolClosedError] * 2
    assert scene.controller.plane.operation(operation.id).state is OperationState.FAILED
    assert len(refs) == 4
