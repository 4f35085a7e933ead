"""Random commands, calls and deaths on the local cluster; after each step everything must add up.

``PODIUM_LIVE_EXAMPLES`` sets how many sequences are tried; a few by default.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core import DataProto, DataProtoFuture, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, get
from core.cluster.holdings import slot_keys
from core.control import Command, Merge, Move, OperationState, Part, Pause, Resize, Resume, Split
from core.errors import PlacementError, StateError, UsageError, WorkerDiedError, WorkerMethodError
from core.events import OperationChanged, PoolChanged, PoolCreated, PoolStateChanged
from core.pool import LEGAL_MOVES, PoolState
from core.testing import local_controller
from tests.live_workers import Counting, Faults, Learning, Plain, Stateless

_CPUS, _GPUS, _COLOCATE = 36.0, 12.0, 3
_N_EXAMPLES = int(os.environ.get("PODIUM_LIVE_EXAMPLES", "10"))


def rows(n_rows: int) -> DataProto:
    return DataProto.from_dict({"id": torch.arange(float(n_rows))})


@dataclass
class Known:
    """What the test knows of a group."""

    group: RayWorkerGroup
    kind: type[Plain]
    total: int = 0
    digest: str = ""
    dead: bool = False
    futures: list[tuple[DataProtoFuture, int]] = field(default_factory=list)


class LiveChanges(RuleBasedStateMachine):
    """A driver with three groups on two pools."""

    def __init__(self) -> None:
        """Start them."""
        super().__init__()
        Faults.gate.clear()
        self._context = local_controller({"CPU": _CPUS, "GPU": _GPUS})
        self.controller, self.seen = self._context.__enter__()
        cluster: Any = self.controller.runtime.cluster
        self.cluster = cluster
        self.n_pools = 0
        self.long: list[tuple[str, list[Any], int]] = []
        self.pools = [RayResourcePool([size], max_colocate_count=_COLOCATE, name_prefix=f"p{size}") for size in (3, 2)]
        homes: dict[str, tuple[RayResourcePool, type[Plain]]] = {
            "counting": (self.pools[0], Counting),
            "learning": (self.pools[0], Learning),
            "stateless": (self.pools[1], Stateless),
        }
        self.known = {
            name: Known(RayWorkerGroup(pool, RayClassWithInitArgs(kind), name_prefix=name), kind)
            for name, (pool, kind) in homes.items()
        }
        learner = self.known["learning"]
        learner.group.learn()
        learner.digest = learner.group.digest()[0]

    def teardown(self) -> None:
        """End it all, and see that everything is given back."""
        Faults.gate.set()
        try:
            for pool in self.pools:
                pool.close()
            assert self.cluster.free == {"CPU": _CPUS, "GPU": _GPUS}
            assert not self.controller.runtime.slot_tenants
        finally:
            self._context.__exit__(None, None, None)

    def callable(self, name: str) -> Known | None:
        """Return a group whose calls do not wait at a paused gate, and that has all its workers."""
        one = self.known[name]
        is_open = one.group.resource_pool.state is PoolState.ACTIVE
        return one if is_open and not one.dead else None

    def live_pools(self) -> list[str]:
        return [snapshot.name for snapshot in self.controller.plane.pools()]

    names = st.sampled_from(["counting", "learning", "stateless"])
    index = st.integers(0, 9)

    @rule(name=names, n=st.integers(1, 4))
    def call(self, name: str, n: int) -> None:
        """Make a blocking call and look at its value."""
        one = self.callable(name)
        if one is None or self.is_held(name):
            return
        n_rows = n * one.group.world_size
        assert one.group.double(rows(n_rows)).batch["id"].tolist() == [2.0 * row for row in range(n_rows)]
        assert one.group.place() == [(rank, one.group.world_size) for rank in range(one.group.world_size)]
        if one.kind is Counting:
            one.total += n
            assert one.group.add(n) == [one.total] * one.group.world_size
        if one.kind is Learning:
            assert set(one.group.digest()) == {one.digest}
            one.group.learn()
            one.digest = one.group.digest()[0]

    @rule(name=names, n=st.integers(1, 3))
    def call_later(self, name: str, n: int) -> None:
        """Make a non-blocking call and keep its future."""
        one = self.callable(name)
        if one is not None and len(one.futures) < 4:
            n_rows = n * one.group.world_size
            one.futures.append((one.group.double_later(rows(n_rows)), n_rows))

    @rule(name=names, other=names)
    def use_future(self, name: str, other: str) -> None:
        """Read a future that may be older than some changes, or hand it to a group."""
        one, taker = self.known[name], self.callable(other)
        if not one.futures or self.is_held(name):
            return
        future, n_rows = one.futures.pop()
        with suppress(WorkerDiedError):
            fits = taker is not None and n_rows % taker.group.world_size == 0 and not self.is_held(other)
            if fits and taker is not None:
                found = taker.group.double(future).batch["id"].tolist()
                assert found == [4.0 * row for row in range(n_rows)]
            assert future.get().batch["id"].tolist() == [2.0 * row for row in range(n_rows)]

    @rule(name=names)
    def call_that_fails(self, name: str) -> None:
        """Get the worker's exception."""
        one = self.callable(name)
        if one is not None and not self.is_held(name):
            with pytest.raises(WorkerMethodError, match="as asked"):
                one.group.fail()

    @rule(name=names)
    def long_call(self, name: str) -> None:
        """Let a call last until ``let_long_calls_end``."""
        one = self.callable(name)
        if one is not None and not Faults.gate.is_set():
            self.long.append((name, one.group.wait_later(), one.group.world_size))

    def is_held(self, name: str) -> bool:
        """Whether a long call stands before the next of a group."""
        return any(name == held for held, _, _ in self.long)

    @rule()
    def let_long_calls_end(self) -> None:
        """End the long calls: each returns at the size it was made at."""
        Faults.gate.set()
        for name, refs, world_size in self.long:
            if not self.known[name].dead:
                assert get(refs) == list(range(world_size))
        self.long.clear()
        Faults.gate.clear()

    @rule(which=index)
    def pause(self, which: int) -> None:
        """Pause a pool, if it can be."""
        pools = self.live_pools()
        with suppress(StateError):
            self.controller.plane.submit(Pause(pools[which % len(pools)], "op"))

    @rule()
    def resume_all(self) -> None:
        """Resume what is paused."""
        for name in self.live_pools():
            with suppress(StateError):
                self.controller.plane.submit(Resume(name, "op"))

    @rule(which=index, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=2), own=st.booleans())
    def resize(self, which: int, sizes: list[int], own: bool) -> None:
        """Resize a pool."""
        pools = self.live_pools()
        self.do(Resize(pools[which % len(pools)], "op", tuple(sizes)), own)

    @rule(which=index, cut=st.integers(1, 3), own=st.booleans(), homes=st.lists(st.booleans(), min_size=3, max_size=3))
    def split(self, which: int, cut: int, own: bool, homes: Sequence[bool]) -> None:
        """Split a pool in two, its groups anywhere."""
        pools = self.live_pools()
        pool = self.controller.pool(pools[which % len(pools)])
        first = [name for name, here in zip(pool.groups, homes, strict=False) if here]
        others = [name for name in pool.groups if name not in first]
        parts = (
            Part(self.new_name(), min(cut, pool.world_size - 1), tuple(first)),
            Part(self.new_name(), max(pool.world_size - cut, 1), tuple(others)),
        )
        self.do(Split(pool.name, "op", parts), own)

    @rule(data=st.data(), own=st.booleans())
    def merge(self, data: st.DataObject, own: bool) -> None:
        """Merge some pools."""
        pools = data.draw(st.permutations(self.live_pools()))
        self.do(Merge(tuple(pools[: data.draw(st.integers(1, len(pools)))]), self.new_name(), "op"), own)

    @rule(name=names, which=index, own=st.booleans())
    def move(self, name: str, which: int, own: bool) -> None:
        """Move a group to a pool."""
        pools = self.live_pools()
        self.do(Move(name, pools[which % len(pools)], "op"), own)

    @precondition(lambda self: not self.long)
    @rule(name=names, rank=index)
    def kill(self, name: str, rank: int) -> None:
        """End a worker behind the driver's back."""
        one = self.known[name]
        if name == "stateless" and not one.dead:
            one.dead = True
            one.futures.clear()
            one.group.workers[rank % one.group.world_size].kill()

    def new_name(self) -> str:
        self.n_pools += 1
        return f"n{self.n_pools}"

    def do(self, command: Command, own: bool) -> None:
        """Carry out a command; what is refused changes nothing, what meets a long call expires."""
        before = self.picture()
        held = bool(self.long)
        command = command if not held else type(command)(**{**fields_of(command), "deadline_s": 0.15})
        try:
            if own:
                operation = self.controller.plane.execute(command)
            else:
                operation = self.submitted(command)
        except (UsageError, PlacementError, StateError):
            assert self.picture() == before
            return
        except (TimeoutError, WorkerDiedError):
            assert self.picture() == before
            return
        if operation.state is OperationState.SUCCEEDED:
            healed = {move.group for move in operation.plan.groups} if operation.plan is not None else set()
            for name in healed & self.known.keys():
                self.known[name].dead = False
            return
        assert operation.state in {OperationState.EXPIRED, OperationState.FAILED}, operation
        assert held or any(one.dead for one in self.known.values()), operation
        assert self.picture() == before

    def submitted(self, command: Command) -> Any:
        """Submit from another thread and come to a safe point, as a driver does."""
        got: list[Any] = []

        def submit() -> None:
            try:
                got.append(self.controller.plane.submit(command))
            except Exception as error:
                got.append(error)

        thread = threading.Thread(target=submit)
        thread.start()
        thread.join(20)
        if isinstance(got[0], Exception):
            raise got[0]
        plane = self.controller.plane
        deadline = threading.Event()
        while not plane.operation(got[0].id).state.done:
            self.controller.checkpoint()
            deadline.wait(0.001)
        return plane.operation(got[0].id)

    def picture(self) -> object:
        """Return all that a change changes."""
        return (
            [
                (s.name, s.generation, s.process_on_nodes, s.groups, s.state.replace("pausing", "paused"))
                for s in self.controller.plane.pools()
            ],
            {name: tuple(one.group.worker_names) for name, one in self.known.items()},
            sorted(self.controller.runtime.holdings.holders().items()),
        )

    @invariant()
    def no_slot_is_lost_or_in_two_pools(self) -> None:
        """Compare the pools' slots with the holdings, and the holdings with the cluster."""
        runtime = self.controller.runtime
        pools = [self.controller.pool(name) for name in self.live_pools()]
        keys = [key for pool in pools for key in slot_keys(pool.placement_now)]
        assert len(keys) == len(set(keys))
        holders = runtime.holdings.holders()
        assert set(keys) == set(holders)
        natives = {id(native): native for pool in pools for native in pool.placement_now.native}
        n_spare = sum(len(runtime.holdings.spare(native)) for native in natives.values())
        held = len(keys) + n_spare
        assert self.cluster.free == {"CPU": _CPUS - _COLOCATE * held, "GPU": _GPUS - held}

    @invariant()
    def groups_sit_where_their_pool_is(self) -> None:
        """Compare groups, pools and seats."""
        seats = self.controller.runtime.slot_tenants
        expected: dict[Any, set[str]] = {}
        for name, one in self.known.items():
            pool = one.group.resource_pool
            assert one.group.world_size == pool.world_size == len(one.group.workers)
            assert name in pool.groups
            for key in slot_keys(pool.placement_now):
                expected.setdefault(key, set()).add(name)
        assert {key: set(names) for key, names in seats.items()} == expected
        assert all(len(names) <= _COLOCATE for names in expected.values())

    @invariant()
    def states_are_legal_and_generations_rise(self) -> None:
        """Look at what was told of every pool and every operation."""
        states: dict[str, list[PoolState]] = {}
        generations: dict[str, list[int]] = {}
        for event in self.seen.events:
            if isinstance(event, PoolCreated):
                states.setdefault(event.pool, []).append(PoolState(event.state))
                generations.setdefault(event.pool, []).append(event.generation)
            elif isinstance(event, PoolStateChanged):
                states.setdefault(event.pool, []).append(PoolState(event.state))
            elif isinstance(event, PoolChanged):
                generations.setdefault(event.pool, []).append(event.generation)
        for told in states.values():
            assert all(after in LEGAL_MOVES[before] or after is before for before, after in pairwise(told)), told
        for numbers in generations.values():
            assert all(before < after for before, after in pairwise(numbers)), numbers
        paths: dict[str, list[str]] = {}
        for operation in self.seen.of(OperationChanged):
            paths.setdefault(operation.operation_id, []).append(operation.state)
        order = [state.value for state in OperationState]
        for path in paths.values():
            assert [order.index(state) for state in path] == sorted(order.index(state) for state in path), path
        assert not self.controller.runtime.safe_point.is_due


def fields_of(command: Command) -> dict[str, Any]:
    """Return a command's fields by name."""
    return {one.name: getattr(command, one.name) for one in fields(command)}


settled: Callable[..., Any] = settings(
    max_examples=_N_EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLiveChanges = LiveChanges.TestCase
TestLiveChanges.settings = settled  # type: ignore[assignment]
