"""What a command would do, decided from values: who goes where, on which slots, and how the state gets there.

Nothing here touches a pool, a worker or the cluster; whether slots fit is asked through ``Capacity``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from core.cluster.holdings import SlotKey
from core.control.checks import (
    check_kept,
    check_new_names,
    check_pool,
    check_together,
    checked_sizes,
    find_group,
    find_group_anywhere,
    find_pool,
)
from core.control.commands import Command, GroupMove, Merge, Move, Pause, Plan, PoolChange, Resize, Resume, Split
from core.control.estimate import Experience
from core.control.layout import NodeTarget, Target, by_address, by_node, entries, freed, stranded
from core.control.snapshot import GroupView, PoolView, Snapshot
from core.errors import PlacementError, PoolSpecError, UsageError
from core.worker import StatePolicy


class Mode(Enum):
    """How a change gets its slots and workers."""

    PREPARED = "prepared"
    """Slots and workers come up while the driver works."""
    RESERVED = "reserved"
    """Slots are there or come in the background, but the old workers must go before the new ones start."""
    RELEASED = "released"
    """Slots must be given back before the new ones can be reserved."""


@dataclass(frozen=True, slots=True)
class Change:
    """A plan with everything that its execution needs.

    ``pools`` are drained and changed into ``targets``; ``homes`` maps each moving group to its new pool.
    """

    command: Command
    plan: Plan
    pools: tuple[str, ...]
    targets: tuple[Target, ...]
    homes: Mapping[str, str]
    mode: Mode
    before: str
    after: str

    @property
    def drained(self) -> tuple[str, ...]:
        """Return the pools whose calls in flight are waited for: of a move only the one that the group leaves."""
        return self.pools[:1] if isinstance(self.command, Move) else self.pools


class Capacity(Protocol):
    """Checks whether slots fit on the cluster."""

    def shortage(self, pool: str, extras: Sequence[NodeTarget], without: Sequence[int]) -> PlacementError | None:
        """Return why slots for ``extras`` do not fit once the pool's native groups ``without`` are given back."""
        ...


@dataclass(frozen=True, slots=True)
class _Draft:
    """A possible change: the targets, the new pool of each group, and why it cannot be prepared, if so."""

    targets: tuple[Target, ...]
    homes: Mapping[str, str]
    mode: Mode = Mode.PREPARED
    not_prepared_reason: str = ""
    lost_state: tuple[str, ...] = field(default=())


def plan_change(command: Command, snapshot: Snapshot, capacity: Capacity, experience: Experience) -> Change:
    """Return what ``command`` would do.

    Raises:
        UnknownNameError: There is no pool or group of that name.
        UsageError: It can never work; the message names the thing and the numbers.
        LiveStateError: A group's state would be lost.
        PlacementError: The slots do not fit on the cluster.
        StateError: A pool is not in a state to be changed.
    """
    match command:
        case Resize():
            pools, draft = _resize(command, snapshot, capacity)
        case Split():
            pools, draft = _split(command, snapshot)
        case Merge():
            pools, draft = _merge(command, snapshot)
        case Move():
            pools, draft = _move(command, snapshot)
        case Pause() | Resume():
            raise TypeError(f"a {command.kind} changes no slots")
    views = [snapshot.pools[name] for name in pools]
    groups = {group.name: (pool, group) for pool in views for group in pool.groups}
    targets = {target.pool: target for target in draft.targets}
    moves = tuple(
        GroupMove(
            group=name,
            from_pool=groups[name][0].name,
            to_pool=home,
            world_size_before=groups[name][1].world_size,
            world_size_after=sum(targets[home].sizes),
            how=_how(groups[name], targets[home], draft.mode),
        )
        for name, home in sorted(draft.homes.items())
    )
    moving = [groups[move.group][1] for move in moves]
    prepared = draft.mode is Mode.PREPARED
    downtime_s, estimate_from = experience.estimate(moving, prepared)
    plan = Plan(
        kind=command.kind,
        pools=_pool_changes(views, draft.targets, snapshot),
        groups=moves,
        prepared=prepared,
        not_prepared_reason=draft.not_prepared_reason,
        in_flight=tuple(words for pool in views for words in pool.in_flight),
        lost_state=(*_lost_state(moves), *draft.lost_state),
        downtime_s=downtime_s,
        estimate_from=estimate_from,
    )
    before, after = _texts(command, views, draft.targets)
    return Change(command, plan, pools, draft.targets, draft.homes, draft.mode, before, after)


def _resize(command: Resize, snapshot: Snapshot, capacity: Capacity) -> tuple[tuple[str, ...], _Draft]:
    pool = find_pool(snapshot, command.pool)
    sizes = checked_sizes(command.process_on_nodes, pool.name)
    check_pool(pool)
    check_kept(pool.groups)
    if sizes == pool.sizes:
        raise UsageError(f"pool {pool.name} has {list(sizes)} processes per node already; nothing would change")
    homes = {group.name: pool.name for group in pool.groups}
    problem = PlacementError(f"pool {pool.name} cannot become {list(sizes)} without losing a group's state")
    for draft in _resize_drafts(pool, sizes, homes, snapshot):
        extras = draft.targets[0].extras
        without = () if draft.mode is not Mode.RELEASED else freed(pool, draft.targets[0])
        shortage = capacity.shortage(pool.name, extras, without) if extras else None
        if shortage is None:
            return (pool.name,), draft
        problem = shortage
    raise problem


def _resize_drafts(
    pool: PoolView, sizes: tuple[int, ...], homes: Mapping[str, str], snapshot: Snapshot
) -> Iterator[_Draft]:
    """Yield the ways to resize, best first: keep slots, else reserve new ones, else release the old ones first."""
    stuck = any(group.state_policy is StatePolicy.RECONFIGURE and not group.can_save_state for group in pool.groups)
    reusing = Target(pool.name, tuple(entries(pool, sizes, keep_stranded=stuck)))
    fresh = Target(pool.name, tuple(NodeTarget(extra=size) for size in sizes))
    not_prepared_reason = _against_preparing(pool.groups, (reusing,), homes, snapshot)
    if reusing.kept and not not_prepared_reason:
        yield _Draft((reusing,), homes, lost_state=stranded(pool, reusing))
    can_be_fresh = not stuck and not pool.shared
    if can_be_fresh and not (why := _against_preparing(pool.groups, (fresh,), homes, snapshot)):
        yield _Draft((fresh,), homes, lost_state=stranded(pool, fresh))
    elif can_be_fresh:
        yield _Draft((fresh,), homes, Mode.RESERVED, why, stranded(pool, fresh))
    if reusing.kept and not_prepared_reason:
        yield _Draft((reusing,), homes, Mode.RESERVED, not_prepared_reason, stranded(pool, reusing))
    full = "the cluster has no room for old and new slots at once: the old ones are released first"
    if reusing.kept and not stuck:
        yield _Draft((reusing,), homes, Mode.RELEASED, full, stranded(pool, reusing))
    if can_be_fresh or not (reusing.kept or stuck):
        yield _Draft((fresh,), homes, Mode.RELEASED, full, stranded(pool, fresh))


def _split(command: Split, snapshot: Snapshot) -> tuple[tuple[str, ...], _Draft]:
    pool = find_pool(snapshot, command.pool)
    parts = command.parts
    sizes = checked_sizes([part.size for part in parts], pool.name)
    if len(parts) < 2:
        raise PoolSpecError(f"a split of pool {pool.name} needs two parts or more, got {len(parts)}")
    if sum(sizes) != pool.world_size:
        raise PoolSpecError(
            f"parts of {list(sizes)} add up to {sum(sizes)}, pool {pool.name} has {pool.world_size} processes"
        )
    check_new_names([part.name for part in parts], snapshot)
    check_pool(pool)
    homes = _assigned(command, pool, snapshot)
    check_kept(pool.groups)
    targets, start = [], 0
    for part, size in zip(parts, sizes, strict=True):
        slots = pool.slots[start : start + size]
        targets.append(Target(part.name, tuple(by_node(slots))))
        start += size
    return (pool.name,), _on_kept_slots(pool.groups, tuple(targets), homes, snapshot)


def _assigned(command: Split, pool: PoolView, snapshot: Snapshot) -> dict[str, str]:
    """Return the part of each group, by the name of the group that has the processes."""
    homes: dict[str, str] = {}
    for part in command.parts:
        for name in part.groups:
            group = find_group(snapshot, name, pool)
            if homes.get(group.name, part.name) != part.name:
                raise UsageError(
                    f"group {group.name} cannot go to {homes[group.name]} and to {part.name}; roles that share "
                    f"processes ({', '.join(group.roles) or group.name}) move as one"
                )
            homes[group.name] = part.name
    unassigned = [group.name for group in pool.groups if group.name not in homes]
    if unassigned:
        raise UsageError(
            f"the split of pool {pool.name} does not assign {', '.join(unassigned)} to any part; name each of its "
            f"groups in one of the parts {', '.join(part.name for part in command.parts)}"
        )
    return homes


def _merge(command: Merge, snapshot: Snapshot) -> tuple[tuple[str, ...], _Draft]:
    if len(set(command.pools)) != len(command.pools):
        raise UsageError(f"a pool cannot be merged with itself: {', '.join(command.pools)}")
    if len(command.pools) < 2:
        raise UsageError(f"a merge needs two pools or more, got {', '.join(command.pools) or 'none'}")
    pools = [find_pool(snapshot, name) for name in command.pools]
    check_new_names([command.name], snapshot)
    for pool in pools:
        check_pool(pool, "merged")
        check_kept(pool.groups)
    first = pools[0]
    for other in pools[1:]:
        check_together(first, other)
        for (name, value), (_, other_value) in zip(first.like, other.like, strict=True):
            if value != other_value:
                raise UsageError(
                    f"pools {first.name} and {other.name} cannot be merged: {name} is {value} and {other_value}"
                )
    groups = [group for pool in pools for group in pool.groups]
    if len(groups) > first.max_colocate_count:
        raise UsageError(
            f"merging {', '.join(command.pools)} puts {len(groups)} groups ({_names(groups)}) on each slot and "
            f"max_colocate_count is {first.max_colocate_count}; close a group or make the pools with a larger one"
        )
    slots = [slot for pool in pools for slot in pool.slots]
    target = Target(command.name, tuple(by_address(slots)))
    homes = {group.name: command.name for group in groups}
    return tuple(command.pools), _on_kept_slots(groups, (target,), homes, snapshot)


def _move(command: Move, snapshot: Snapshot) -> tuple[tuple[str, ...], _Draft]:
    pool, group = find_group_anywhere(command.group, snapshot)
    target = find_pool(snapshot, command.pool)
    if target.name == pool.name:
        raise UsageError(f"group {group.name} is on pool {pool.name} already; nothing would change")
    check_pool(pool)
    check_pool(target)
    check_together(pool, target)
    check_kept((group,))
    if len(target.groups) >= target.max_colocate_count:
        raise UsageError(
            f"pool {target.name} has {len(target.groups)} groups ({_names(target.groups)}) and "
            f"max_colocate_count={target.max_colocate_count}: there is no room for {group.name}; close a group first"
        )
    if group.state_policy is StatePolicy.RECONFIGURE and not group.can_save_state:
        check_kept((replace(group, state_policy=StatePolicy.NOTHING),))
    goal = Target(target.name, tuple(by_node(target.slots)))
    homes = {group.name: target.name}
    return (pool.name, target.name), _on_kept_slots((group,), (goal,), homes, snapshot)


def _on_kept_slots(
    groups: Iterable[GroupView], targets: tuple[Target, ...], homes: Mapping[str, str], snapshot: Snapshot
) -> _Draft:
    not_prepared_reason = _against_preparing(groups, targets, homes, snapshot)
    return _Draft(targets, homes, Mode.RESERVED if not_prepared_reason else Mode.PREPARED, not_prepared_reason)


def _against_preparing(
    groups: Iterable[GroupView], targets: Sequence[Target], homes: Mapping[str, str], snapshot: Snapshot
) -> str:
    """Return why new workers cannot start beside the old ones; empty if they can."""
    by_pool = {target.pool: target for target in targets}
    coming: dict[SlotKey, list[str]] = {}
    for group in groups:
        target = by_pool[homes[group.name]]
        if group.rendezvous:
            return f"{group.name} has its own rendezvous, {group.rendezvous}, which its old workers hold"
        for key in target.kept:
            # A worker that stays in its process needs no second slot share.
            if not (group.state_policy is StatePolicy.RECONFIGURE and group.name in snapshot.occupied.get(key, ())):
                coming.setdefault(key, []).append(group.name)
    limits = {pool.max_colocate_count for pool in snapshot.pools.values() for slot in pool.slots if slot.key in coming}
    limit = min(limits, default=0)
    for key, names in coming.items():
        there = snapshot.occupied.get(key, frozenset())
        if len(there) + len(names) > limit:
            return (
                f"a slot has {len(there)} groups ({', '.join(sorted(there))}) and max_colocate_count={limit}: there is "
                f"no room to start {', '.join(names)} beside them"
            )
    return ""


def _how(at: tuple[PoolView, GroupView], target: Target, mode: Mode) -> str:
    pool, group = at
    if group.state_policy is StatePolicy.RECONFIGURE:
        # Processes on slots that are released first end with them.
        survives = bool({slot.key for slot in pool.slots} & set(target.kept)) and mode is not Mode.RELEASED
        return "reconfigure" if survives else "state"
    return str(group.state_policy.value)


def _pool_changes(views: Sequence[PoolView], targets: Sequence[Target], snapshot: Snapshot) -> tuple[PoolChange, ...]:
    after = {target.pool: target.sizes for target in targets}
    changed = [
        PoolChange(
            pool.name,
            pool.sizes,
            after.get(pool.name, () if not _stays(pool, targets) else pool.sizes),
            pool.generation,
        )
        for pool in views
    ]
    new = [PoolChange(name, (), sizes, 0) for name, sizes in after.items() if name not in snapshot.pools]
    return (*changed, *new)


def _stays(pool: PoolView, targets: Sequence[Target]) -> bool:
    """Return whether a pool that is not a target continues to exist: the one that a group moves away from."""
    return not {slot.key for slot in pool.slots} & {key for target in targets for key in target.kept}


def _lost_state(moves: Sequence[GroupMove]) -> tuple[str, ...]:
    stateless = [move.group for move in moves if move.how == "stateless"]
    ended = [
        f"the state of the ended processes of {move.group} ({move.world_size_before - move.world_size_after} of them)"
        for move in moves
        if move.how == "reconfigure" and move.world_size_after < move.world_size_before
    ]
    if stateless:
        ended.append(f"the state of the workers of {', '.join(stateless)}: their classes are declared stateless")
    return tuple(ended)


def _texts(command: Command, views: Sequence[PoolView], targets: Sequence[Target]) -> tuple[str, str]:
    if isinstance(command, Resize):
        return _sizes(views[0].sizes), _sizes(targets[0].sizes)
    if isinstance(command, Move):
        here, there = (f"{command.group} on {pool.name} {list(pool.sizes)}" for pool in views)
        return here, there
    before = ", ".join(f"{pool.name} {list(pool.sizes)}" for pool in views)
    return before, ", ".join(f"{target.pool} {list(target.sizes)}" for target in targets)


def _sizes(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else str(list(sizes))


def _names(groups: Iterable[GroupView]) -> str:
    return ", ".join(group.name for group in groups) or "none"
