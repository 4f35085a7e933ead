"""A driver's random life on any cluster: commands, calls and deaths, after each of which everything must add up.

A walk is known by its seed: the same one takes the same decisions again, as far as they do not hang on how quick the
cluster was. ``Walk(seed, controller, terrain, kinds).go()`` raises, with what it did until then, when a sum is wrong.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import pytest
import torch

from core import DataProto, DataProtoFuture, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, get
from core.cluster.holdings import slot_keys
from core.control import Command, Merge, Move, Operation, OperationState, Part, Pause, Resize, Resume, Split
from core.controller import Controller
from core.errors import (
    PlacementError,
    PodiumError,
    StateError,
    UnknownNameError,
    UsageError,
    WorkerDiedError,
    WorkerMethodError,
)
from core.events import OperationChanged, PoolChanged, PoolCreated, PoolStateChanged
from core.pool import LEGAL_MOVES, PoolState
from core.testing import RecordingObserver
from tests.live_workers import Plain

_SHORT_S, _LONG_S = 0.3, 120.0
_REFUSED = (UsageError, PlacementError, StateError, UnknownNameError)


class Terrain(Protocol):
    """What a walk needs of the cluster that it is on besides the controller."""

    def seen(self, group: RayWorkerGroup) -> None:
        """Take note of a group's workers of now: none may be left after the walk."""
        ...

    def assassin(self, group: RayWorkerGroup, rank: int) -> Callable[[], None]:
        """Return what ends one worker from outside, also when the group has others by then."""
        ...

    def leftovers(self) -> list[str]:
        """Return what is left on the cluster, in words, and what is not free: nothing after a walk."""
        ...


@dataclass
class Known:
    """What the walk knows of a group: the ``totals`` it may hold, and whether it is ``doubtful`` after an attempt."""

    group: RayWorkerGroup
    kind: type[Plain]
    restarts: bool
    totals: set[int] = field(default_factory=lambda: {0})
    dead: bool = False
    doubtful: bool = False
    futures: list[tuple[DataProtoFuture, int]] = field(default_factory=list)
    naps: list[tuple[list[Any], int]] = field(default_factory=list)
    fragile: bool = False
    """Whether what is out may have been with a worker that is dead."""


def rows(n_rows: int) -> DataProto:
    """Return a batch of numbered rows."""
    return DataProto.from_dict({"id": torch.arange(float(n_rows))})


def eventually(true: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    """Wait until ``true`` is, for what happens on other threads and in the cluster."""
    deadline = time.monotonic() + timeout_s
    while not (is_so := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so


class Walk:
    """Two pools, two groups, and some steps."""

    def __init__(
        self,
        seed: int,
        controller: Controller,
        seen: RecordingObserver,
        terrain: Terrain,
        kinds: Mapping[str, type[Plain]],
        nap_s: float = 1.0,
    ) -> None:
        """Start the groups: the one that counts, and another of ``kinds``."""
        self.wishes = random.Random(seed)
        self.seed, self.controller, self.seen, self.terrain, self.nap_s = seed, controller, seen, terrain, nap_s
        self.n_events = len(seen.events)
        self.n_pools = 0
        self.deeds: list[str] = []
        self.pools: list[RayResourcePool] = []
        self.known: dict[str, Known] = {}
        colocate = self.wishes.choice([2, 3])
        names = ["counting", self.wishes.choice(sorted(kinds.keys() - {"counting"}))]
        self.pools = [
            RayResourcePool([self.wishes.choice([1, 2])], max_colocate_count=colocate, name_prefix=self.new_name())
            for _ in range(2)
        ]
        for pool in self.pools:
            pool.get_placement_groups()
        self.note(f"pools of {[pool.world_size for pool in self.pools]}, {colocate} groups on a slot, {names}")
        for name in names:
            self.begin(name, kinds[name], self.wishes.choice(self.pools))

    def begin(self, name: str, kind: type[Plain], pool: RayResourcePool) -> None:
        """Start a group."""
        restarts = name != "stateless"
        group = RayWorkerGroup(
            pool,
            RayClassWithInitArgs(kind),
            name_prefix=f"{name}_{self.seed}",
            on_death="restart" if restarts else "raise",
            max_restarts=100,
        )
        self.known[group.name] = Known(group, kind, restarts)

    def go(self, n_steps: int = 8) -> None:
        """Take the steps, then end everything and see that nothing is left."""
        try:
            for _ in range(n_steps):
                self.step()
                self.check()
            for one in self.known.values():
                self.settle(one)
        except BaseException as error:
            error.add_note("\n".join([f"walk {self.seed}:", *self.deeds]))
            raise
        finally:
            for name in self.live_pools():
                self.controller.pool(name).close()
            for pool in self.pools:
                pool.close()
        assert eventually(lambda: not self.terrain.leftovers()), (self.terrain.leftovers(), self.deeds)
        assert not self.controller.runtime.slot_tenants
        assert not self.controller.runtime.holdings.holders()

    def step(self) -> None:
        """Do one thing."""
        deeds: dict[Callable[[], None], int] = {
            self.change: 8,
            self.call: 4,
            self.call_later: 2,
            self.nap: 2,
            self.take_up: 2,
            self.fail: 1,
            self.pause: 2,
            self.be_refused: 2,
            self.kill: 2,
        }
        self.wishes.choices(list(deeds), list(deeds.values()))[0]()

    # Calls.

    def pick(self) -> Known:
        """Return one of the groups."""
        return self.wishes.choice(list(self.known.values()))

    def callable(self, one: Known) -> bool:
        """Make ready for a call: bring back the dead, have somebody resume a paused pool; False for the dead."""
        pool = one.group.resource_pool.name
        if one.group.resource_pool.state is not PoolState.ACTIVE:
            self.note(f"resume {pool} in a moment")
            threading.Timer(0.05, lambda: self.controller.plane.submit(Resume(pool, "op"))).start()
        if one.dead or one.doubtful:
            self.revive(one)
        return not one.dead

    def revive(self, one: Known) -> None:
        """Call until the group answers: it is restarted if that is its way, else it stays dead."""
        for _ in range(4):
            with suppress(WorkerDiedError):
                one.group.place()
                one.dead = one.doubtful = False
                one.totals = one.totals | {0}
                return
            if not one.restarts:
                break
        assert not one.restarts, f"{one.group.name} was not restarted"
        one.dead, one.doubtful = True, False

    def call(self) -> None:
        """Make blocking calls and look at their values."""
        one = self.pick()
        n = self.wishes.randint(1, 3)
        self.note(f"call {one.group.name}")
        if self.callable(one):
            self.look_at(one, n)

    def look_at(self, one: Known, n: int) -> None:
        """See that a group's calls give the right values on the ranks that it should have."""
        group, size = one.group, one.group.world_size
        assert group.place() == [(rank, size) for rank in range(size)]
        assert group.double(rows(n * size)).batch["id"].tolist() == [2.0 * row for row in range(n * size)]
        if hasattr(one.kind, "add"):
            (total,) = set(group.add(0))
            assert total in one.totals, (total, one.totals)
            assert group.add(n) == [total + n] * size
            one.totals = {total + n}
        if hasattr(one.kind, "sum_of_ranks"):
            assert group.sum_of_ranks() == [size * (size - 1) / 2] * size

    def call_later(self) -> None:
        """Make a non-blocking call."""
        one = self.pick()
        self.note(f"call {one.group.name} later")
        if self.callable(one):
            n_rows = 2 * one.group.world_size
            one.futures.append((one.group.double_later(rows(n_rows)), n_rows))

    def nap(self) -> None:
        """Make a call that lasts."""
        one = self.pick()
        self.note(f"nap on {one.group.name}")
        if self.callable(one):
            one.naps.append((one.group.nap(self.nap_s), one.group.world_size))

    def take_up(self) -> None:
        """Read what is out, or hand it to a group, at whatever size that has now."""
        one, taker = self.pick(), self.pick()
        self.note(f"take up {one.group.name}, for {taker.group.name}")
        for future, n_rows in one.futures[:1]:
            if n_rows % taker.group.world_size == 0 and not one.fragile and self.callable(taker):
                assert taker.group.double(future).batch["id"].tolist() == [4.0 * row for row in range(n_rows)]
        self.settle(one)

    def settle(self, one: Known) -> None:
        """Read all that is out: each at the size that it was called at."""
        futures, one.futures = one.futures, []
        naps, one.naps = one.naps, []
        fragile, one.fragile = one.fragile, False
        for future, n_rows in futures:
            with suppress(*([WorkerDiedError] if fragile else [])):
                assert future.get().batch["id"].tolist() == [2.0 * row for row in range(n_rows)]
        for refs, size in naps:
            with suppress(*([WorkerDiedError] if fragile else [])):
                assert get(refs) == list(range(size))

    def fail(self) -> None:
        """Get a worker's exception."""
        one = self.pick()
        self.note(f"fail on {one.group.name}")
        if self.callable(one):
            with pytest.raises(WorkerMethodError, match="as asked"):
                one.group.fail()

    def kill(self) -> None:
        """End a worker behind the driver's back."""
        one = self.pick()
        rank = self.wishes.randrange(one.group.world_size)
        self.note(f"kill rank {rank} of {one.group.name}")
        if not one.dead:
            one.doubtful = one.fragile = True
            self.terrain.assassin(one.group, rank)()

    # Commands.

    def pause(self) -> None:
        """Pause or resume a pool."""
        name = self.wishes.choice(self.live_pools())
        state = self.controller.pool(name).state
        self.note(f"pause or resume {name}, which is {state.value}")
        kind = Pause if state is PoolState.ACTIVE else Resume
        with suppress(StateError):
            self.controller.plane.submit(kind(name, "op"))

    def be_refused(self) -> None:
        """Ask for something that cannot be."""
        name = self.wishes.choice(self.live_pools())
        pool = self.controller.pool(name)
        cases: list[Callable[[], Command]] = [
            lambda: Resize(name, "op", (0,)),
            lambda: Resize(name, "op", ()),
            lambda: Resize(name, "op", tuple(pool.store)),
            lambda: Resize(name, "op", (99,)),
            lambda: Resize("nobody", "op", (1,)),
            lambda: Resize(name, "op", (2,), deadline_s=0),
            lambda: Resize(name, "op", (3,), expected_generation=pool.generation + 1),
            lambda: Split(name, "op", (Part("x", pool.world_size), Part("y", 1))),
            lambda: Split(name, "op", (Part("x", pool.world_size),)),
            lambda: Merge((name, name), "x", "op"),
            lambda: Move("nobody", name, "op"),
            lambda: Move(self.pick().group.name, "nowhere", "op"),
        ]
        index = self.wishes.randrange(len(cases))
        before = self.picture()
        self.note(f"ask for case {index} on {name}")
        with pytest.raises(_REFUSED):
            self.controller.plane.execute(cases[index]())
        assert self.picture() == before

    def change(self) -> None:
        """Ask for a change in one of the ways there are, and see what becomes of it."""
        command = self.wishes.choice([self.a_resize, self.a_resize, self.a_split, self.a_merge, self.a_move])()
        if any(one.naps for one in self.known.values()) and self.wishes.random() < 0.3:
            command = replace(command, deadline_s=_SHORT_S)
        way = self.wishes.choice([self.own, self.own, self.from_outside, self.cancelled, self.with_a_death])
        before = self.picture()
        self.note(f"{way.__name__}: {command}")
        error: Exception | None = None
        state = OperationState.FAILED
        try:
            operation = way(command)
            state = operation.state
        except (*_REFUSED, TimeoutError, WorkerDiedError) as caught:
            error = caught
        self.note(f"{state.value}: {error or operation.error}")
        if state is OperationState.SUCCEEDED:
            self.see_done(command, operation)
            return
        refused = isinstance(error, _REFUSED) or state is OperationState.CANCELLED
        assert refused or command.deadline_s == _SHORT_S or self.any_dead(), error or operation
        assert self.picture() == before

    def any_dead(self) -> bool:
        """Whether somebody may be dead."""
        return any(one.dead or one.doubtful for one in self.known.values())

    def see_done(self, command: Command, operation: Operation) -> None:
        """See that a change made what was asked for, and that the groups that moved work and hold what they held."""
        plane = self.controller.plane
        if isinstance(command, Resize):
            assert plane.pool(command.pool).process_on_nodes == command.process_on_nodes
        elif isinstance(command, Split):
            for part in command.parts:
                made = plane.pool(part.name)
                assert (made.world_size, set(made.groups)) == (part.size, set(part.groups))
            assert command.pool not in self.live_pools()
        elif isinstance(command, Merge):
            assert not set(command.pools) & set(self.live_pools())
        elif isinstance(command, Move):
            assert command.group in plane.pool(command.pool).groups
        assert operation.plan is not None
        for move in operation.plan.groups:
            one = self.known[move.group]
            assert one.group.world_size == move.world_size_after
            if move.how == "stateless":
                one.dead = False
            if one.group.resource_pool.state is PoolState.ACTIVE and self.callable(one):
                self.look_at(one, 1)

    def a_resize(self) -> Command:
        """Return other sizes for a pool."""
        sizes = [self.wishes.choice([1, 2, 2, 3]) for _ in range(self.wishes.choice([1, 1, 1, 2]))]
        return Resize(self.wishes.choice(self.live_pools()), "op", tuple(sizes))

    def a_split(self) -> Command:
        """Return a split of a pool in two, its groups anywhere."""
        pools = [self.controller.pool(name) for name in self.live_pools()]
        pool = self.wishes.choice([one for one in pools if one.world_size > 1] or pools)
        cut = self.wishes.randint(1, max(1, pool.world_size - 1))
        first = tuple(name for name in pool.groups if self.wishes.random() < 0.5)
        others = tuple(name for name in pool.groups if name not in first)
        rest = max(1, pool.world_size - cut)
        return Split(pool.name, "op", (Part(self.new_name(), cut, first), Part(self.new_name(), rest, others)))

    def a_merge(self) -> Command:
        """Return a merge of two pools."""
        pools = self.live_pools()
        return Merge(tuple(self.wishes.sample(pools, min(2, len(pools)))), self.new_name(), "op")

    def a_move(self) -> Command:
        """Return a move of a group."""
        return Move(self.pick().group.name, self.wishes.choice(self.live_pools()), "op")

    def own(self, command: Command) -> Operation:
        """Carry a command out in the driver's own code."""
        return self.controller.plane.execute(command)

    def from_outside(self, command: Command) -> Operation:
        """Submit from another thread; come to safe points by calls where there is somebody to call, else as steps."""
        operation = self.submitted(command)
        self.ask_for_a_second()
        # A call that makes the change goes on in the pool that its group is in then, and waits there if that is paused.
        running = all(self.controller.pool(name).state is PoolState.ACTIVE for name in self.live_pools())
        callees = [one.group for one in self.known.values() if not (one.dead or one.doubtful) and running]
        while not (now := self.controller.plane.operation(operation.id)).state.done:
            for group in callees[:1]:
                group.place()
            for _ in self.controller.steps(1):
                time.sleep(0.002)
        return now

    def ask_for_a_second(self) -> None:
        """See that a second change is refused while one is under way."""
        if not self.controller.plane.operations()[-1].state.done:
            name = self.live_pools()[0]
            try:
                second = self.controller.plane.submit(Resize(name, "late", (9,)))
            except _REFUSED:
                return
            # The first one ended in between.
            self.controller.plane.cancel(second.id)

    def cancelled(self, command: Command) -> Operation:
        """Submit and take back, early or late."""
        operation = self.submitted(command)
        time.sleep(self.wishes.choice([0.0, 0.05, self.nap_s]))
        with suppress(StateError):
            self.controller.plane.cancel(operation.id)
        return self.seen_through(operation)

    def with_a_death(self, command: Command) -> Operation:
        """Submit, and end a worker while the change is on its way."""
        one = self.pick()
        strike = self.terrain.assassin(one.group, self.wishes.randrange(one.group.world_size))
        operation = self.submitted(command)
        one.doubtful = one.fragile = True
        striking = threading.Timer(self.wishes.random() * 2 * self.nap_s, strike)
        striking.start()
        time.sleep(self.wishes.choice([0.0, self.nap_s]))
        done = self.seen_through(operation)
        striking.join()
        return done

    def submitted(self, command: Command) -> Operation:
        """Submit a command from another thread."""
        got: list[Any] = []

        def submit() -> None:
            try:
                got.append(self.controller.plane.submit(command))
            except PodiumError as error:
                got.append(error)

        thread = threading.Thread(target=submit)
        thread.start()
        thread.join(60)
        if isinstance(got[0], PodiumError):
            raise got[0]
        operation: Operation = got[0]
        return operation

    def seen_through(self, operation: Operation) -> Operation:
        """Come to safe points until an operation is done."""
        while not (now := self.controller.plane.operation(operation.id)).state.done:
            self.controller.checkpoint()
            time.sleep(0.002)
        return now

    # What must be so.

    def live_pools(self) -> list[str]:
        """Return the names of the pools."""
        return [snapshot.name for snapshot in self.controller.plane.pools()]

    def new_name(self) -> str:
        """Return a name for a pool."""
        self.n_pools += 1
        return f"w{self.seed}_{self.n_pools}"

    def note(self, deed: str) -> None:
        """Write down what is done."""
        self.deeds.append(f"{len(self.deeds)} {deed}")

    def picture(self) -> object:
        """Return all that a change changes. Old workers that had to go came back under other names and slots."""
        return (
            [
                (s.name, s.generation, s.process_on_nodes, s.groups, s.state.replace("pausing", "paused"))
                for s in self.controller.plane.pools()
            ],
            {name: one.group.world_size for name, one in self.known.items()},
            Counter(self.controller.runtime.holdings.holders().values()),
        )

    def check(self) -> None:
        """See that slots, seats, groups, states and generations add up."""
        runtime = self.controller.runtime
        pools = [self.controller.pool(name) for name in self.live_pools()]
        assert not [pool.name for pool in pools if pool.state in {PoolState.FAILED, PoolState.CHANGING}]
        keys = [key for pool in pools for key in slot_keys(pool.placement_now)]
        assert len(keys) == len(set(keys)), "a slot is in two pools"
        assert set(keys) == set(runtime.holdings.holders()), "a slot is lost"
        expected: dict[Any, set[str]] = {}
        for name, one in self.known.items():
            pool = one.group.resource_pool
            assert one.group.world_size == pool.world_size == len(one.group.workers)
            assert name in pool.groups
            self.terrain.seen(one.group)
            for key in slot_keys(pool.placement_now):
                expected.setdefault(key, set()).add(name)
        # What a change that was taken back had brought up ends on another thread.
        assert eventually(lambda: {key: set(names) for key, names in list(runtime.slot_tenants.items())} == expected)
        assert not runtime.safe_point.is_due
        self.check_events(self.seen.events[self.n_events :])

    def check_events(self, events: Sequence[object]) -> None:
        """See that states moved as they may and generations rose."""
        states: dict[str, list[PoolState]] = {}
        generations: dict[str, list[int]] = {}
        paths: dict[str, list[int]] = {}
        order = [state.value for state in OperationState]
        for event in events:
            if isinstance(event, PoolCreated | PoolStateChanged):
                states.setdefault(event.pool, []).append(PoolState(event.state))
            if isinstance(event, PoolCreated | PoolChanged):
                generations.setdefault(event.pool, []).append(event.generation)
            if isinstance(event, OperationChanged):
                paths.setdefault(event.operation_id, []).append(order.index(event.state))
        for told in states.values():
            assert all(after in LEGAL_MOVES[before] or after is before for before, after in pairwise(told)), told
        for numbers in (*generations.values(), *paths.values()):
            assert numbers == sorted(numbers), numbers
        assert all(len(set(numbers)) == len(numbers) for numbers in generations.values())
