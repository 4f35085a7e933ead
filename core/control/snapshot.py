"""The pools of a driver as values, at one moment: what plans are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from core.cluster.holdings import SlotKey, slot_keys
from core.group.group_state import GroupState
from core.health.in_flight import CallInFlight, calls_in_flight
from core.pool import PoolState, RayResourcePool
from core.runtime import Runtime
from core.worker import StatePolicy, can_save_state, state_policy, unsaved


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot: its name on the cluster, and where it is."""

    key: SlotKey
    node: str
    node_index: int = 0


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group with processes of its own. ``roles`` are the groups that are views of it.

    ``rendezvous`` is the address that its constructor was given, empty when it finds its own; ``start_s`` what its
    workers' start took.
    """

    name: str
    worker_class: str
    world_size: int
    state_policy: StatePolicy
    can_save_state: bool
    unsaved: tuple[str, ...] = ()
    detached: bool = False
    rendezvous: str = ""
    start_s: float = 0.0
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool. ``like`` are the settings that pools must share to be merged.

    ``own`` says that its slots are its own to change; ``overlaps`` are other pools with some of them. ``shared`` are
    native groups that other pools hold slots of too; ``spare`` slots are in no pool. ``in_flight`` are the calls that
    are not done, in words; groups that are ``starting`` have no workers yet.
    """

    name: str
    state: PoolState
    generation: int
    sizes: tuple[int, ...]
    slots: tuple[SlotView, ...]
    groups: tuple[GroupView, ...]
    max_colocate_count: int
    like: tuple[tuple[str, Any], ...] = ()
    detached: bool = False
    found: bool = False
    own: bool = True
    overlaps: tuple[str, ...] = ()
    shared: frozenset[int] = frozenset()
    spare: tuple[SlotView, ...] = ()
    in_flight: tuple[str, ...] = ()
    starting: tuple[str, ...] = ()
    runtime_id: int = 0

    @property
    def world_size(self) -> int:
        """Return the number of slots."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All pools by name, and the groups that have a process on each slot."""

    pools: Mapping[str, PoolView]
    occupied: Mapping[SlotKey, frozenset[str]]

    def home_of(self, group: str) -> tuple[PoolView, GroupView] | None:
        """Return the pool and the group of a name, which may be that of a role's view."""
        for pool in self.pools.values():
            for candidate in pool.groups:
                if group == candidate.name or group in candidate.roles:
                    return pool, candidate
        return None


def take_snapshot(runtime: Runtime) -> Snapshot:
    """Return what there is now; touches no handle and no cluster, so any thread may look."""
    pools = {name: pool for name, pool in runtime.pools().items() if isinstance(pool, RayResourcePool)}
    keys = {name: _keys(pool) for name, pool in pools.items()}
    occupied: dict[SlotKey, frozenset[str]] = {}
    for pool_runtime in {id(pool.runtime): pool.runtime for pool in pools.values()}.values():
        occupied |= {key: frozenset(names) for key, names in list(pool_runtime.slot_tenants.items())}
    calls = calls_in_flight(runtime)
    return Snapshot({name: _pool_view(pool, keys, calls) for name, pool in pools.items()}, occupied)


def _keys(pool: RayResourcePool) -> tuple[SlotKey, ...]:
    placement = pool.placement_if_any
    return () if placement is None or not placement.native else slot_keys(placement)


def _pool_view(pool: RayResourcePool, keys: Mapping[str, Iterable[SlotKey]], calls: Iterable[CallInFlight]) -> PoolView:
    placement, holding = pool.placement_if_any, pool.holding
    groups = [tenant for tenant in pool.tenants if isinstance(tenant, GroupState)]
    own = set(keys[pool.name])
    slots = () if placement is None else placement.slots
    spare: list[SlotView] = []
    shared: set[int] = set()
    if placement is not None and holding is not None:
        for native in placement.native:
            spare += [
                SlotView((id(native), slot.bundle_index), slot.node) for slot in pool.runtime.holdings.spare(native)
            ]
            if pool.runtime.holdings.is_shared(native, holding):
                shared.add(id(native))
    return PoolView(
        name=pool.name,
        state=pool.state,
        generation=pool.generation,
        sizes=tuple(pool.store),
        slots=tuple(
            SlotView(key, slot.node, slot.node_index) for key, slot in zip(keys[pool.name], slots, strict=False)
        ),
        groups=tuple(_group_view(group) for group in groups if group.live is not None),
        starting=tuple(group.name for group in groups if group.live is None),
        max_colocate_count=pool.max_colocate_count,
        like=pool.likeness,
        runtime_id=id(pool.runtime),
        detached=pool.detached,
        found=placement is not None and not placement.native,
        own=holding is not None,
        overlaps=tuple(name for name, others in keys.items() if name != pool.name and own & set(others)),
        shared=frozenset(shared),
        spare=tuple(spare),
        in_flight=tuple(
            f"call {call.call_id} {call.group}.{call.method}, {call.seconds:.1f} s"
            for call in calls
            if call.pool == pool.name
        ),
    )


def _group_view(group: GroupState) -> GroupView:
    settings = group.settings
    user_class = settings.class_args.user_class
    rendezvous = settings.start.rendezvous
    return GroupView(
        name=group.name,
        worker_class=user_class.__name__,
        world_size=group.started.world_size,
        state_policy=state_policy(user_class),
        can_save_state=can_save_state(user_class) or state_policy(user_class) is StatePolicy.STATE,
        unsaved=unsaved(user_class),
        detached=settings.detached,
        rendezvous="" if rendezvous is None else f"{rendezvous[0]}:{rendezvous[1]}",
        start_s=group.started.took_s,
        roles=tuple(sorted(view.name for view in group.views)),
    )
