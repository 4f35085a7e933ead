"""Checks of a change that do not need the cluster: each error names the thing, the numbers and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.control.snapshot import GroupView, PoolView, Snapshot
from core.errors import LiveStateError, PoolClosedError, PoolSpecError, StateError, UnknownNameError, UsageError
from core.pool import PoolState
from core.runtime import checked_name
from core.worker import StatePolicy

_MAX_PROCESSES = 1_000_000


def find_pool(snapshot: Snapshot, name: str) -> PoolView:
    """Return a pool; raise ``UnknownNameError`` with those there are."""
    pool = snapshot.pools.get(name)
    if pool is None:
        known = tuple(sorted(snapshot.pools))
        raise UnknownNameError(
            f"there is no pool {name!r}; pools are: {', '.join(known) or 'none'}", name=name, known=known
        )
    return pool


def find_group_anywhere(name: str, snapshot: Snapshot) -> tuple[PoolView, GroupView]:
    """Return a group, or the one that a role shares processes with, and its pool."""
    home = snapshot.home_of(name)
    if home is None:
        known = tuple(sorted(group.name for pool in snapshot.pools.values() for group in pool.groups))
        raise UnknownNameError(
            f"there is no group {name!r}; groups are: {', '.join(known) or 'none'}", name=name, known=known
        )
    return home


def find_group(snapshot: Snapshot, name: str, pool: PoolView) -> GroupView:
    """Return a group that must be on ``pool``."""
    home, group = find_group_anywhere(name, snapshot)
    if home.name != pool.name:
        raise UsageError(f"group {name} is on pool {home.name}, not on {pool.name}; it cannot be part of this change")
    return group


def checked_sizes(sizes: Sequence[int], pool: str) -> tuple[int, ...]:
    """Return processes per node or per part as they are.

    Raises:
        PoolSpecError: There are none, or one is not a whole number above zero.
    """
    if not sizes:
        raise PoolSpecError(f"pool {pool} cannot become a pool of no processes; close it instead")
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MAX_PROCESSES:
            raise PoolSpecError(
                f"sizes of pool {pool} must be whole numbers of processes above zero, got {list(sizes)}"
            )
    return tuple(sizes)


def check_new_names(names: Sequence[str], snapshot: Snapshot) -> None:
    """Refuse names of pools that are empty, given twice, or taken."""
    for name in names:
        checked_name(name, "a pool")
        if names.count(name) > 1:
            raise UsageError(f"two pools cannot both be named {name!r}")
        if name in snapshot.pools:
            raise UsageError(f"a pool named {name!r} exists already; choose another name for the new one")


def check_pool(pool: PoolView, verb: str = "changed") -> None:
    """Refuse a pool that cannot be changed now, or ever."""
    if pool.state in {PoolState.CLOSED, PoolState.FAILED}:
        raise PoolClosedError(f"pool {pool.name} is {pool.state.value}, it cannot be {verb}", state=pool.state.value)
    if pool.found:
        raise UsageError(
            f"pool {pool.name} has detached workers of another driver; only the driver that owns their slots "
            f"can change them"
        )
    if pool.detached or any(group.detached for group in pool.groups):
        raise UsageError(
            f"pool {pool.name} or a group on it is detached: other drivers know its workers by name and would lose "
            f"them; close it and start it again in another size"
        )
    if not pool.slots:
        raise StateError(
            f"pool {pool.name} has no slots yet: they are reserved by its first worker group; change it after that",
            state=pool.state.value,
        )
    if pool.starting:
        raise StateError(
            f"group {', '.join(pool.starting)} is being started on pool {pool.name}; retry when it has started",
            state=pool.state.value,
        )
    if pool.overlaps or not pool.own:
        others = ", ".join(pool.overlaps) or "pools made by hand"
        raise StateError(
            f"pool {pool.name} shares slots with {others} (split_resource_pool, merge_resource_pool or "
            f"SubRayResourcePool): close those first, or split it by controller.split, which gives each slot one owner",
            state=pool.state.value,
        )


def check_together(first: PoolView, second: PoolView) -> None:
    """Refuse to move workers from one cluster to another."""
    if first.runtime_id != second.runtime_id:
        raise UsageError(
            f"pools {first.name} and {second.name} are on different clusters; nothing can move between them"
        )


def check_kept(groups: Iterable[GroupView]) -> None:
    """Refuse to rebuild a group whose state would be lost.

    Raises:
        LiveStateError: A class does not declare how its state is kept.
    """
    for group in groups:
        if group.state_policy is StatePolicy.NOTHING:
            classes = ", ".join(group.unsaved) or group.worker_class
            raise LiveStateError(
                f"group {group.name} ({group.worker_class}) would lose the state of its workers: {classes} does not "
                f"declare how to keep it. Set stateless = True on the class if it has no state, implement "
                f"save_state() and load_state(states), or derive it from core.ReplicatedState as well",
                state="stateful",
                group=group.name,
                worker_class=group.worker_class,
            )
