"""Commands on a running driver's pools, from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, get
from core.cluster import Placement, ReserveRequest
from core.cluster.local import LocalCluster
from core.control import Operation, OperationState, Pause, Resume, RuntimeControl
from core.controller import Controller, control_plane
from core.errors import GenerationConflictError, StateError, UnknownNameError
from core.events import CallStarted, OperationChanged
from core.pool import PoolState
from core.testing import RecordingObserver
from tests.group_workers import Held, Waiting

Local = tuple[Controller, RecordingObserver]


def eventually(true: Callable[[], bool]) -> bool:
    """Wait for what another thread does."""
    deadline = time.monotonic() + 5
    while not true() and time.monotonic() < deadline:
        time.sleep(0.002)
    return true()


def ended(control: RuntimeControl, operation: Operation) -> Operation:
    """Return an operation once it is over."""
    assert eventually(lambda: control.operation(operation.id).state.done)
    return control.operation(operation.id)


@pytest.fixture
def pool(local: Local) -> RayResourcePool:
    """A pool with one group of two."""
    Held.gate.clear()
    return RayResourcePool([2], name_prefix="rollout")


@pytest.fixture
def group(pool: RayResourcePool) -> RayWorkerGroup:
    """The group on the pool."""
    return RayWorkerGroup(pool, RayClassWithInitArgs(Waiting), name_prefix="actor")


def test_there_is_one_control_plane_per_runtime(local: Local) -> None:
    assert local[0].plane is control_plane(local[0].runtime)
    assert Controller.current().plane is local[0].plane


def test_a_pool_is_pending_until_its_slots_are_reserved(
    local: Local, pool: RayResourcePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, seen = local[0].plane, list[str]()
    assert plane.pool("rollout").state == "pending"
    reserve = LocalCluster.reserve

    def reserve_slowly(cluster: LocalCluster, request: ReserveRequest, timeout_s: float) -> Placement:
        seen.append(plane.pool("rollout").state)
        return reserve(cluster, request, timeout_s)

    monkeypatch.setattr(LocalCluster, "reserve", reserve_slowly)
    pool.get_placement_groups()
    assert (seen, plane.pool("rollout").state) == (["pending"], "active")
    plane.submit(Pause("rollout", who="test"))
    assert plane.pool("rollout").state == "paused"


def test_a_snapshot_says_what_a_pool_is_and_holds(local: Local, pool: RayResourcePool, group: RayWorkerGroup) -> None:
    refs = group.wait_later()
    (snapshot,) = local[0].plane.pools()
    assert snapshot == local[0].plane.pool("rollout")
    assert (snapshot.name, snapshot.state, snapshot.generation) == ("rollout", "active", 1)
    assert (snapshot.process_on_nodes, snapshot.world_size, snapshot.groups) == ((2,), 2, ("actor",))
    assert snapshot.n_calls_in_flight == 1
    Held.gate.set()
    get(refs)
    assert eventually(lambda: local[0].plane.pool("rollout").n_calls_in_flight == 0)
    pool.close()
    assert local[0].plane.pools() == ()


def test_a_pause_of_an_idle_pool_is_done_at_once_and_told(local: Local, pool: RayResourcePool) -> None:
    operation = local[0].plane.submit(Pause("rollout", who="ada"))
    assert operation.state is OperationState.SUCCEEDED
    assert (operation.kind, operation.who, operation.before, operation.after) == ("pause", "ada", "active", "paused")
    (event,) = local[1].of(OperationChanged)
    assert (event.operation_id, event.state, event.pool) == (operation.id, "succeeded", "rollout")


def test_a_pause_lets_the_running_call_finish_and_holds_the_next_which_records_its_wait(
    local: Local, pool: RayResourcePool, group: RayWorkerGroup
) -> None:
    control, seen = local[0].plane, local[1]
    refs = group.wait_later()
    operation = control.submit(Pause("rollout", who="ada"))
    assert operation.state is OperationState.WAITING_FOR_SAFE_POINT
    assert pool.state is PoolState.PAUSING
    out: list[object] = []
    caller = threading.Thread(target=lambda: out.append(group.echo(1)))
    caller.start()
    assert eventually(lambda: pool.gate.n_waiting == 1)
    Held.gate.set()
    assert get(refs) == [0, 1]
    assert ended(control, operation).state is OperationState.SUCCEEDED
    assert control.operation(operation.id).after == "paused"
    assert out == []
    control.submit(Resume("rollout", who="ada"))
    caller.join(10)
    assert out == [[1, 1]]
    waited = [event.gate_ns for event in seen.of(CallStarted) if event.method == "echo"]
    assert waited[0] > 0


def test_other_pools_go_on_while_one_is_paused(local: Local, pool: RayResourcePool) -> None:
    other = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Waiting))
    local[0].plane.submit(Pause("rollout", who="ada"))
    assert other.echo(1) == [1]


def test_a_pause_that_calls_outlast_expires_and_changes_nothing(
    local: Local, pool: RayResourcePool, group: RayWorkerGroup
) -> None:
    control = local[0].plane
    group.wait_later()
    operation = ended(control, control.submit(Pause("rollout", who="ada", deadline_s=0.05)))
    assert operation.state is OperationState.EXPIRED
    assert "1 calls were still in flight after 0.05 s" in operation.error
    assert pool.state is PoolState.ACTIVE
    Held.gate.set()
    assert group.echo(1) == [1, 1]


def test_a_pause_that_waits_can_be_taken_back(local: Local, pool: RayResourcePool, group: RayWorkerGroup) -> None:
    control = local[0].plane
    group.wait_later()
    operation = control.submit(Pause("rollout", who="ada"))
    assert control.cancel(operation.id).state is OperationState.CANCELLED
    assert pool.state is PoolState.ACTIVE
    with pytest.raises(StateError, match="is cancelled, only a waiting one"):
        control.cancel(operation.id)
    Held.gate.set()


def test_a_resume_overtakes_a_pause_that_waits(local: Local, pool: RayResourcePool, group: RayWorkerGroup) -> None:
    control = local[0].plane
    group.wait_later()
    pause = control.submit(Pause("rollout", who="ada"))
    assert control.submit(Resume("rollout", who="bob")).state is OperationState.SUCCEEDED
    assert ended(control, pause).state is OperationState.CANCELLED
    assert pool.state is PoolState.ACTIVE
    Held.gate.set()


def test_a_pool_that_closes_under_a_waiting_pause_fails_the_operation(
    local: Local, pool: RayResourcePool, group: RayWorkerGroup
) -> None:
    control = local[0].plane
    group.wait_later()
    operation = control.submit(Pause("rollout", who="ada"))
    pool.close()
    assert ended(control, operation).state is OperationState.FAILED
    Held.gate.set()


def test_moves_that_make_no_sense_are_refused_and_leave_no_operation(local: Local, pool: RayResourcePool) -> None:
    control = local[0].plane
    with pytest.raises(StateError, match="is active, it cannot be resumed"):
        control.submit(Resume("rollout", who="ada"))
    control.submit(Pause("rollout", who="ada"))
    with pytest.raises(StateError, match="is paused, it cannot be paused"):
        control.submit(Pause("rollout", who="ada"))
    assert len(local[1].of(OperationChanged)) == 1


def test_a_command_for_another_generation_is_refused(local: Local, pool: RayResourcePool) -> None:
    with pytest.raises(GenerationConflictError) as caught:
        local[0].plane.submit(Pause("rollout", who="ada", expected_generation=7))
    assert (caught.value.expected, caught.value.actual) == (7, 1)
    assert pool.state is PoolState.ACTIVE
    assert local[0].plane.submit(Pause("rollout", who="ada", expected_generation=1)).state.done


def test_names_that_nobody_has_are_refused_with_those_there_are(local: Local, pool: RayResourcePool) -> None:
    control = local[0].plane
    for call in (lambda: control.pool("rolout"), lambda: control.submit(Pause("rolout", who="ada"))):
        with pytest.raises(UnknownNameError, match=r"there is no pool 'rolout'; .*rollout") as caught:
            call()
        assert caught.value.known == ("rollout",)
    for by_id in (control.operation, control.cancel):
        with pytest.raises(UnknownNameError, match="no operation 'op-9'"):
            by_id("op-9")


def test_many_commands_at_once_leave_a_pool_that_works(
    local: Local, pool: RayResourcePool, group: RayWorkerGroup
) -> None:
    control, refused = local[0].plane, []
    out: list[object] = []

    def command(number: int) -> None:
        for turn in range(20):
            try:
                control.submit(Pause("rollout", who="a") if (number + turn) % 2 else Resume("rollout", who="b"))
            except StateError as error:
                refused.append(error)

    threads = [threading.Thread(target=command, args=(number,)) for number in range(4)]
    caller = threading.Thread(target=lambda: out.extend(group.echo(turn)[0] for turn in range(30)))
    for thread in (*threads, caller):
        thread.start()
    for thread in threads:
        thread.join(20)
    while caller.is_alive():
        try:
            control.submit(Resume("rollout", who="end"))
        except StateError:
            caller.join(0.01)
    assert out == list(range(30))
    assert pool.state is PoolState.ACTIVE
