"""A control plane over dictionaries, for tests of the app's HTTP side: it carries a command out at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from core.control.commands import (
    Command,
    GroupMove,
    Merge,
    Move,
    Operation,
    OperationState,
    Part,
    Pause,
    Plan,
    PoolChange,
    PoolSnapshot,
    Resize,
    Resume,
    Split,
)
from core.errors import (
    GenerationConflictError,
    LiveStateError,
    PlacementError,
    StateError,
    UnknownNameError,
    UsageError,
)

STARTED_NS = 1_767_323_045_678_000_000


class MemoryPlane:
    """Pools in a dictionary, with room for ``n_slots`` processes of which other programs hold ``n_held``.

    While ``hold`` is set an operation waits for a safe point that never comes, and holds every other change back.
    A group in ``stateful`` keeps state that cannot be carried over.
    """

    def __init__(self) -> None:
        """Start with the pools "pool" and "judges", active, generation 3."""
        self.by_name = {
            name: PoolSnapshot(name, "active", 3, (2,), 2, (group,), 0)
            for name, group in (("judges", "judge"), ("pool", "rollout"))
        }
        self.by_id: dict[str, Operation] = {}
        self.n_slots, self.n_held = 16, 0
        self.stateful: set[str] = set()
        self.hold = False
        self._ids = itertools.count(1)

    def pools(self) -> tuple[PoolSnapshot, ...]:
        return tuple(self.by_name.values())

    def pool(self, name: str) -> PoolSnapshot:
        try:
            return self.by_name[name]
        except KeyError:
            known = tuple(self.by_name)
            raise UnknownNameError(f"there is no pool {name!r}", name=name, known=known) from None

    def submit(self, command: Command) -> Operation:
        after, moves = self._decide(command)
        plan = self._plan(command, after, moves)
        before = _words(self.by_name[name] for name in self._touched(command))
        state = OperationState.WAITING_FOR_SAFE_POINT if self.hold else OperationState.SUCCEEDED
        operation = Operation(
            id=f"op-{next(self._ids)}",
            kind=plan.kind,
            pool=command.pool,
            who=command.who,
            state=state,
            created_ns=STARTED_NS + 1_500_000_000,
            updated_ns=STARTED_NS + 1_600_000_000,
            expected_generation=command.expected_generation,
            before=before,
            after="" if self.hold else _words(after),
            progress="waits for the driver's next call" if self.hold else "",
            plan=plan,
        )
        if not self.hold:
            for name in self._touched(command):
                del self.by_name[name]
            self.by_name |= {pool.name: pool for pool in after}
        self.by_id[operation.id] = operation
        return operation

    def plan(self, command: Command) -> Plan:
        after, moves = self._decide(command)
        return self._plan(command, after, moves)

    def operation(self, operation_id: str) -> Operation:
        try:
            return self.by_id[operation_id]
        except KeyError:
            raise UnknownNameError(f"there is no operation {operation_id!r}", name=operation_id) from None

    def operations(self) -> tuple[Operation, ...]:
        return tuple(self.by_id.values())

    def cancel(self, operation_id: str) -> Operation:
        operation = self.operation(operation_id)
        if operation.state.done:
            raise StateError("the operation is done", state=operation.state.value)
        cancelled = replace(operation, state=OperationState.CANCELLED)
        self.by_id[operation_id] = cancelled
        return cancelled

    def _touched(self, command: Command) -> tuple[str, ...]:
        match command:
            case Merge():
                return command.pools
            case Move():
                return tuple(dict.fromkeys((self._home(command.group), command.pool)))
            case _:
                return (command.pool,)

    def _home(self, group: str) -> str:
        for pool in self.by_name.values():
            if group in pool.groups:
                return pool.name
        raise UnknownNameError(f"there is no group {group!r}", name=group)

    def _decide(self, command: Command) -> tuple[tuple[PoolSnapshot, ...], tuple[GroupMove, ...]]:
        """Return the pools that take the place of those touched, and the groups that move."""
        pools = [self.pool(name) for name in self._touched(command)]
        self._check_generations(command)
        under_way = next((one for one in self.by_id.values() if not one.state.done), None)
        if under_way is not None and not isinstance(command, Resume):
            raise StateError(f"operation {under_way.id} ({under_way.kind}) is under way", state="changing")
        match command:
            case Pause() | Resume():
                wanted = "paused" if isinstance(command, Pause) else "active"
                if pools[0].state == wanted:
                    raise StateError(f"pool {pools[0].name!r} is {wanted} already", state=wanted)
                return (replace(pools[0], state=wanted),), ()
            case Resize():
                after = self._resized(pools[0], command.process_on_nodes)
            case Split():
                after = self._split(pools[0], command.parts)
            case Merge():
                after = self._merged(pools, command.name)
            case Move():
                after = self._moved(pools, command)
        moves = _moves(pools, after)
        for move in moves:
            if move.group in self.stateful:
                raise LiveStateError(
                    f"group {move.group!r} would lose what its workers hold: Rollout has no save_state and load_state",
                    state="active",
                    group=move.group,
                    worker_class="Rollout",
                )
        return after, moves

    def _check_generations(self, command: Command) -> None:
        expected = dict(command.expected_generations) if isinstance(command, Merge) else {}
        if command.expected_generation is not None:
            expected[command.pool] = command.expected_generation
        for name, generation in expected.items():
            actual = self.pool(name).generation
            if actual != generation:
                last = next((one for one in reversed(self.by_id.values()) if one.pool == name), None)
                by = f" by {last.who}: {last.kind}" if last else ""
                raise GenerationConflictError(
                    f"pool {name!r} is at generation {actual}, not {generation}: it was changed{by}",
                    expected=generation,
                    actual=actual,
                )

    def _resized(self, pool: PoolSnapshot, sizes: tuple[int, ...]) -> tuple[PoolSnapshot, ...]:
        n_more = sum(sizes) - pool.world_size
        n_used = sum(one.world_size for one in self.by_name.values())
        if n_used + n_more > self.n_slots - self.n_held:
            raise PlacementError(
                f"pool {pool.name} {list(sizes)} does not fit {self.n_slots} slots",
                pool=pool.name,
                needed=(("CPU", float(n_used + n_more)),),
                available=(("CPU", float(self.n_slots - self.n_held - n_used)),),
                hopeless=sum(sizes) > self.n_slots,
            )
        return (_remade(pool, sizes),)

    def _split(self, pool: PoolSnapshot, parts: Sequence[Part]) -> tuple[PoolSnapshot, ...]:
        total = sum(part.size for part in parts)
        if total != pool.world_size:
            raise UsageError(f"the parts have {total} slots, pool {pool.name!r} has {pool.world_size}")
        for part in parts:
            if part.name in self.by_name and part.name != pool.name:
                raise UsageError(f"a pool named {part.name!r} exists already")
        homeless = set(pool.groups) - {group for part in parts for group in part.groups}
        if homeless:
            raise UsageError(f"group {min(homeless)!r} has no home in any part")
        return tuple(
            PoolSnapshot(part.name, "active", pool.generation + 1, (part.size,), part.size, part.groups, 0)
            for part in parts
        )

    def _merged(self, pools: Sequence[PoolSnapshot], name: str) -> tuple[PoolSnapshot, ...]:
        if len({pool.name for pool in pools}) < len(pools) or len(pools) < 2:
            raise UsageError(f"pool {pools[0].name!r} cannot be merged with itself")
        sizes = tuple(size for pool in pools for size in pool.process_on_nodes)
        groups = tuple(group for pool in pools for group in pool.groups)
        generation = max(pool.generation for pool in pools) + 1
        return (PoolSnapshot(name, "active", generation, sizes, sum(sizes), groups, 0),)

    def _moved(self, pools: Sequence[PoolSnapshot], command: Move) -> tuple[PoolSnapshot, ...]:
        if len(pools) < 2:
            raise UsageError(f"group {command.group!r} is in pool {command.pool!r} already")
        home, target = pools
        left = tuple(group for group in home.groups if group != command.group)
        return (
            replace(home, groups=left, generation=home.generation + 1),
            replace(target, groups=(*target.groups, command.group), generation=target.generation + 1),
        )

    def _plan(self, command: Command, after: Sequence[PoolSnapshot], moves: tuple[GroupMove, ...]) -> Plan:
        before = {name: self.by_name[name] for name in self._touched(command)}
        changes = [
            PoolChange(
                pool.name,
                before[pool.name].process_on_nodes if pool.name in before else (),
                pool.process_on_nodes,
                pool.generation,
            )
            for pool in after
        ]
        ended = set(before) - {pool.name for pool in after}
        changes += [PoolChange(name, before[name].process_on_nodes, (), before[name].generation) for name in ended]
        return Plan(type(command).__name__.lower(), tuple(changes), moves, prepared=bool(moves), downtime_s=0.5)


def _remade(pool: PoolSnapshot, sizes: tuple[int, ...]) -> PoolSnapshot:
    return replace(pool, process_on_nodes=sizes, world_size=sum(sizes), generation=pool.generation + 1)


def _moves(before: Sequence[PoolSnapshot], after: Sequence[PoolSnapshot]) -> tuple[GroupMove, ...]:
    homes = {group: pool for pool in before for group in pool.groups}
    return tuple(
        GroupMove(group, homes[group].name, pool.name, homes[group].world_size, pool.world_size, "stateless")
        for pool in after
        for group in pool.groups
        if (homes[group].name, homes[group].world_size) != (pool.name, pool.world_size)
    )


def _words(pools: Iterable[PoolSnapshot]) -> str:
    return ", ".join(f"{pool.name} {list(pool.process_on_nodes)}" for pool in pools)
