"""What a command is refused for before any pool is looked at: deadlines, names, and who asks."""

from __future__ import annotations

import dataclasses
import threading

import pytest

import core
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, merge_resource_pool, register
from core.control import Merge, Move, OperationState, Part, Pause, Resize, Resume, Split
from core.controller import Controller
from core.errors import UsageError
from core.runtime import checked_name
from core.testing import RecordingObserver
from tests.live_workers import Faults, Stateless

Local = tuple[Controller, RecordingObserver]
STATELESS = RayClassWithInitArgs(Stateless)
COMMANDS = (
    Pause("pool", "x"),
    Resume("pool", "x"),
    Resize("pool", "x", (1,)),
    Split("pool", "x", (Part("a", 1), Part("b", 1))),
    Merge(("pool", "other"), "all", "x"),
    Move("group", "pool", "x"),
)


class Eager(Stateless):
    """A worker that says in its method that now is a good moment, as library code shared with a driver may."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look_in(self) -> str:
        """Come to what would be a safe point in a driver."""
        Faults.gate.wait(20)
        core.checkpoint()
        Controller.current().checkpoint()
        return threading.current_thread().name


@pytest.mark.parametrize("deadline_s", [0, -1.5, float("nan")])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_deadline_that_is_over_before_it_begins_is_refused(command: core.control.Command, deadline_s: float) -> None:
    kind = type(command).__name__.lower()
    with pytest.raises(UsageError, match=rf"a {kind} needs a deadline above zero, got deadline_s={deadline_s:g}"):
        dataclasses.replace(command, deadline_s=deadline_s)


def test_the_drivers_own_verbs_refuse_such_a_deadline_too(local: Local) -> None:
    pool = RayResourcePool([2], name_prefix="pool")
    group = RayWorkerGroup(pool, STATELESS)
    for ask in (
        lambda: pool.resize([1], deadline_s=0),
        lambda: local[0].pause(pool, deadline_s=-1),
        lambda: local[0].split(pool, {"a": (1, [group]), "b": (1, [])}, deadline_s=0),
    ):
        with pytest.raises(UsageError, match="needs a deadline above zero"):
            ask()
    assert local[0].plane.operations() == ()


def test_a_worker_in_the_drivers_process_does_not_make_the_drivers_change(local: Local) -> None:
    controller = local[0]
    pool = RayResourcePool([2], max_colocate_count=2, name_prefix="pool")
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Eager))
    Faults.gate.clear()
    looking: list[list[str]] = []
    caller = threading.Thread(target=lambda: looking.append(group.look_in()))
    caller.start()
    operation = controller.plane.submit(Resize("pool", "ada", (1,)))
    waits = OperationState.WAITING_FOR_SAFE_POINT
    while controller.plane.operation(operation.id).state is not waits:
        threading.Event().wait(0.002)
    Faults.gate.set()
    caller.join(10)
    assert [name.startswith("podium-") for name in looking[0]] == [True, True]
    assert controller.plane.operation(operation.id).state is waits
    controller.checkpoint()
    assert controller.plane.operation(operation.id).state is OperationState.SUCCEEDED
    assert group.world_size == 1


@pytest.mark.parametrize("name", [" actor", "actor ", "two\nlines", "a\x00b", "x" * 101])
def test_pools_and_groups_have_names_that_can_be_read_and_typed(local: Local, name: str) -> None:
    with pytest.raises(UsageError, match="is no name for a pool; use 1 to 100 printable characters"):
        RayResourcePool([1], name_prefix=name)
    pool = RayResourcePool([2], name_prefix="pool")
    with pytest.raises(UsageError, match="is no name for a group; use 1 to 100 printable characters"):
        RayWorkerGroup(pool, STATELESS, name_prefix=name)
    pool.get_placement_groups()
    with pytest.raises(UsageError, match="is no name for a pool"):
        local[0].plane.submit(Split("pool", "x", (Part("a", 1), Part(name, 1))))
    assert pool.groups == ()


def test_names_as_drivers_give_them_pass(local: Local) -> None:
    names = ["actor_rollout", "actor_", "global pool", "7b-ppo/run.3", "_", "Größe"]
    for name in names:
        with RayWorkerGroup(RayResourcePool([1], name_prefix=name), STATELESS, name_prefix=name) as group:
            assert group.name == (name.rstrip("_") or name)
    assert checked_name("x" * 100, "a pool") == "x" * 100


def test_the_name_of_a_pool_made_of_many_is_cut(local: Local) -> None:
    pools = [RayResourcePool([1], name_prefix=f"{letter * 60}") for letter in "ab"]
    merged = [merge_resource_pool(*pools) for _ in range(2)]
    assert [pool.name for pool in merged] == [f"{'a' * 60}+{'b' * 29}", f"{'a' * 60}+{'b' * 29}_2"]
