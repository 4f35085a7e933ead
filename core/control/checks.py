"""What a change must satisfy, whatever the cluster says: each refusal names the thing, the numbers and the way out."""

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
    found = snapshot.home_of(name)
    if found is None:
        known = tuple(sorted(group.name for pool in snapshot.pools.values() for group in pool.groups))
        raise UnknownNameError(
            f"there is no group {name!r}; groups are: {', '.join(known) or 'none'}", name=name, known=known
        )
    return found


def find_group(snapshot: Snapshot, name: str, pool: PoolView) -> GroupView:
    """Return a group that must be on ``pool``."""
    home, group = find_group_anywhere(name, snapshot)
    if home.name != pool.name:
        raise UsageError(f"group {name} is on pool {home.name}, not on {pool.name}; it has no part in this change")
    return group


def checked_sizes(sizes: Sequence[int], pool: str) -> tuple[int, ...]:
    """Return processes per node or per part as they are.

    Raises:
        PoolSpecError: There are none, or one is no whole number above zero.
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
            raise UsageError(f"a pool named {name!r} lives already; choose another name for the new one")


def check_pool(pool: PoolView, verb: str = "changed") -> None:
    """Refuse a pool that cannot be changed now, or never."""
    if pool.state in {PoolState.CLOSED, PoolState.FAILED}:
        raise PoolClosedError(f"pool {pool.name} is {pool.state.value}, it cannot be {verb}", state=pool.state.value)
    if pool.found:
        raise UsageError(
            f"pool {pool.name} stands for workers that were found; their slots are another driver's, which alone can "
            f"change them"
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
            f"group {', '.join(pool.starting)} is being started on pool {pool.name}; ask again when it is up",
            state=pool.state.value,
        )
    if pool.overlaps or not pool.own:
        others = ", ".join(pool.overlaps) or "pools made by hand"
        raise StateError(
            f"pool {pool.name} shares slots with {others} (split_resource_pool, merge_resource_pool or "
            f"SubRayResourcePool): close those first, or split it by controller.split, which gives each slot one owner",
            state=pool.state.value,
        )


def check_together(one: PoolView, other: PoolView) -> None:
    """Refuse what would move workers from one cluster to another."""
    if one.runtime_id != other.runtime_id:
        raise UsageError(f"pools {one.name} and {other.name} are on two clusters; no slot or worker can change over")


def check_kept(groups: Iterable[GroupView]) -> None:
    """Refuse to rebuild a group whose state would be lost.

    Raises:
        LiveStateError: A class says not how its state is kept.
    """
    for group in groups:
        if group.state_policy is StatePolicy.NOTHING:
            classes = ", ".join(group.unsaved) or group.worker_class
            raise LiveStateError(
                f"group {group.name} ({group.worker_class}) would lose what its workers hold: {classes} does not say "
                f"how to keep it. Set stateless = True on the class if that is nothing, give it save_state() and "
                f"load_state(states), or derive it from core.ReplicatedState too",
                state="stateful",
                group=group.name,
                worker_class=group.worker_class,
            )
