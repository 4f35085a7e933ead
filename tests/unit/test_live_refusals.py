"""What a command is refused for: each refusal names the thing and changes nothing."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import core
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, merge_resource_pool, register
from core.control import Merge, Move, OperationState, Part, Pause, Resize, Resume, Split
from core.controller import Controller
from core.errors import (
    GenerationConflictError,
    LiveStateError,
    StateError,
    UnknownNameError,
    UsageError,
)
from core.runtime import checked_name
from core.testing import RecordingObserver
from tests.live_workers import Faults, Plain, Stateless

Local = tuple[Controller, RecordingObserver]


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    Faults.gate.clear()
    yield
    Faults.gate.set()
    Faults.stage, Faults.rank = "", 0


def eventually(true: Callable[[], bool]) -> bool:
    """Wait for what another thread does."""
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.002)
    return true()


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
    looking: list[list[str]] = []
    caller = threading.Thread(target=lambda: looking.append(group.look_in()))
    caller.start()
    operation = controller.plane.submit(Resize("pool", "ada", (1,)))
    waits = OperationState.WAITING_FOR_SAFE_POINT
    assert eventually(lambda: controller.plane.operation(operation.id).state is waits)
    Faults.gate.set()
    caller.join(10)
    assert [name.startswith("podium-") for name in looking[0]] == [True, True]
    assert controller.plane.operation(operation.id).state is waits
    controller.checkpoint()
    assert controller.plane.operation(operation.id).state is OperationState.SUCCEEDED
    assert group.world_size == 1


@pytest.mark.parametrize("name", [" actor", "actor ", "two\nlines", "a\x00b", "x" * 101, ".", ".."])
def test_pools_and_groups_have_names_that_can_be_read_and_typed(local: Local, name: str) -> None:
    with pytest.raises(UsageError, match="is not a name for a pool; use 1 to 100 printable characters"):
        RayResourcePool([1], name_prefix=name)
    pool = RayResourcePool([2], name_prefix="pool")
    with pytest.raises(UsageError, match="is not a name for a group; use 1 to 100 printable characters"):
        RayWorkerGroup(pool, STATELESS, name_prefix=name)
    pool.get_placement_groups()
    with pytest.raises(UsageError, match="is not a name for a pool"):
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


class TestRefusals:
    def test_each_names_the_thing_and_changes_nothing(self, local: Local) -> None:
        plane = local[0].plane
        pool = RayResourcePool([4], max_colocate_count=2, name_prefix="pool")
        other = RayResourcePool([1], max_colocate_count=2, name_prefix="other")
        odd = RayResourcePool([1], max_colocate_count=3, name_prefix="odd")
        empty = RayResourcePool([1], max_colocate_count=2, name_prefix="empty")
        assert empty.groups == ()
        homes = {"actor": pool, "ref": pool, "on_other": other, "on_odd": odd}
        groups = [
            RayWorkerGroup(home, RayClassWithInitArgs(Stateless), name_prefix=name) for name, home in homes.items()
        ]
        a, b = Part("a", 2, ("actor", "ref")), Part("b", 2)
        cases: list[tuple[object, type[Exception], str]] = [
            (Resize("pool", "x", ()), UsageError, "pool of no processes"),
            (Resize("pool", "x", (0,)), UsageError, r"above zero, got \[0\]"),
            (Resize("pool", "x", (-1, 2)), UsageError, r"above zero, got \[-1, 2\]"),
            (Resize("pool", "x", (4,)), UsageError, r"has \[4\] processes per node already"),
            (Resize("nope", "x", (4,)), UnknownNameError, "no pool 'nope'; pools are: empty, odd, other, pool"),
            (Resize("empty", "x", (4,)), StateError, "pool empty has no slots yet"),
            (Split("pool", "x", (a, Part("b", 3))), UsageError, r"\[2, 3\] add up to 5, pool pool has 4"),
            (Split("pool", "x", (Part("a", 4, ("actor", "ref")),)), UsageError, "two parts or more, got 1"),
            (Split("pool", "x", (a, Part("a", 2))), UsageError, "two pools cannot both be named 'a'"),
            (Split("pool", "x", (a, Part("other", 2))), UsageError, "a pool named 'other' exists already"),
            (Split("pool", "x", (a, Part("", 2))), UsageError, "'' is not a name for a pool"),
            (Split("pool", "x", (Part("a", 2, ("actor",)), b)), UsageError, "does not assign ref to any part"),
            (Split("pool", "x", (a, Part("b", 2, ("nobody",)))), UnknownNameError, "no group 'nobody'; groups are"),
            (
                Split("pool", "x", (a, Part("b", 2, ("on_odd",)))),
                UsageError,
                "group on_odd is on pool odd, not on pool",
            ),
            (Split("pool", "x", (a, Part("b", 2, ("ref",)))), UsageError, "ref cannot go to a and to b"),
            (Merge(("pool", "pool"), "m", "x"), UsageError, "merged with itself: pool, pool"),
            (Merge(("pool",), "m", "x"), UsageError, "two pools or more, got pool"),
            (Merge((), "m", "x"), UsageError, "two pools or more, got none"),
            (Merge(("pool", "nope"), "m", "x"), UnknownNameError, "no pool 'nope'"),
            (Merge(("pool", "odd"), "m", "x"), UsageError, "max_colocate_count is 2 and 3"),
            (Merge(("pool", "other"), "m", "x"), UsageError, r"puts 3 groups .* max_colocate_count is 2"),
            (Merge(("pool", "other"), "odd", "x"), UsageError, "a pool named 'odd' exists already"),
            (Move("nobody", "pool", "x"), UnknownNameError, "no group 'nobody'"),
            (Move("actor", "nope", "x"), UnknownNameError, "no pool 'nope'"),
            (Move("actor", "pool", "x"), UsageError, "actor is on pool pool already"),
            (Move("on_other", "pool", "x"), UsageError, r"pool pool has 2 groups \(actor, ref\)"),
            (Resize("pool", "x", (2,), expected_generation=7), GenerationConflictError, "at generation 1, not 7"),
            (
                Merge(("other", "odd"), "m", "x", expected_generations=(("odd", 3),)),
                GenerationConflictError,
                "pool odd is at generation 1, not 3",
            ),
        ]
        before = plane.pools()
        for command, kind, words in cases:
            for ask in (plane.plan, plane.submit, plane.execute):
                with pytest.raises(kind, match=words):
                    ask(command)  # type: ignore[arg-type]
        assert plane.pools() == before
        assert plane.operations() == ()
        assert [group.world_size for group in groups] == [4, 4, 1, 1]

    def test_a_class_that_does_not_say_how_its_state_is_kept(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Plain), name_prefix="actor")
        with pytest.raises(LiveStateError, match=r"group actor \(Plain\) .*save_state.*ReplicatedState") as caught:
            pool.resize([1])
        assert (caught.value.group, caught.value.worker_class) == (group.name, "Plain") == ("actor", "Plain")

    def test_pools_that_share_slots_are_named(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless))
        parts = core.split_resource_pool(pool, 1)
        with pytest.raises(StateError, match="shares slots with pool_part0, pool_part1"):
            pool.resize([1])
        with pytest.raises(StateError, match="shares slots with pool"):
            parts[0].resize([2])
        for part in parts:
            part.close()
        pool.resize([1])
        assert group.world_size == 1

    def test_a_group_that_is_being_started_is_named(self, local: Local) -> None:
        pool = RayResourcePool([2], name_prefix="pool")
        Faults.stage, Faults.rank = "slow __init__", 1
        made: list[RayWorkerGroup] = []

        def start() -> None:
            made.append(RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix="actor"))

        driver = threading.Thread(target=start)
        driver.start()
        assert eventually(lambda: pool.groups == ("actor",))
        with pytest.raises(StateError, match="group actor is being started on pool pool"):
            local[0].plane.submit(Resize("pool", "ada", (1,)))
        Faults.stage = ""
        Faults.gate.set()
        driver.join(10)
        pool.resize([1])
        assert made[0].world_size == 1

    def test_detached_groups_and_found_workers(self, local: Local) -> None:
        pool = RayResourcePool([1], name_prefix="pool", detached=True)
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), detached=True)
        with pytest.raises(UsageError, match="detached: other drivers know its workers by name"):
            pool.resize([2])
        found = RayWorkerGroup.from_detached(
            worker_names=group.worker_names, ray_cls_with_init=RayClassWithInitArgs(Stateless)
        )
        with pytest.raises(UsageError, match="has detached workers of another driver"):
            found.resource_pool.resize([2])
        group.close()
        pool.close()
