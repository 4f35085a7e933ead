"""From a layout to slots: reserve the missing ones, and combine kept and new ones into one placement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from core.cluster import Cluster, Placement, ReserveRequest, Slot
from core.cluster.holdings import SlotKey, slot_keys
from core.control.layout import NodeTarget, Target
from core.errors import PlacementError
from core.pool import RayResourcePool
from core.runtime import Runtime

NativeSlot: TypeAlias = tuple[Any, Slot]
"""A native group and a slot of it."""


class ClusterCapacity:
    """Checks whether slots fit on the cluster of the pools."""

    def __init__(self, pools: Mapping[str, RayResourcePool]) -> None:
        """Set the pools; use it only on threads that may use the cluster."""
        self._pools = pools

    def shortage(self, pool: str, extras: Sequence[NodeTarget], without: Sequence[int]) -> PlacementError | None:
        """Check all slots at once, then each entry that must be on one node."""
        owner = self._pools[pool]
        placement = owner.placement_if_any
        released = [native for native in placement.native if id(native) in without] if placement is not None else []
        cluster = owner.runtime.cluster
        requests = [replace(owner.request, process_on_nodes=tuple(entry.extra for entry in extras))]
        requests += [requested(owner.request, entry) for entry in extras if entry.node]
        problems = (cluster.shortage(request, released) for request in requests)
        return next((problem for problem in problems if problem is not None), None)


def requested(request: ReserveRequest, entry: NodeTarget) -> ReserveRequest:
    """Return the request for the missing slots of an entry."""
    return replace(request, process_on_nodes=(entry.extra,), node=entry.node)


def reserve_extras(
    cluster: Cluster, request: ReserveRequest, target: Target, timeout_s: float
) -> tuple[Placement, ...]:
    """Reserve the missing slots of each entry of ``target``, in order; all or nothing.

    Raises:
        PlacementError: They do not fit, or were not free in time.
    """
    deadline = time.monotonic() + timeout_s
    made: list[Placement] = []
    # Largest first: a small one could otherwise take the only node where a large one fits.
    order = sorted(range(len(target.extras)), key=lambda index: target.extras[index].extra, reverse=True)
    placed: dict[int, Placement] = {}
    try:
        for index in order:
            left_s = max(0.1, deadline - time.monotonic())
            placed[index] = cluster.reserve(requested(request, target.extras[index]), left_s)
            made.append(placed[index])
    except BaseException:
        for placement in made:
            cluster.release(placement)
        raise
    return tuple(placed[index] for index in sorted(placed))


def known_slots(runtime: Runtime, pools: Sequence[RayResourcePool]) -> dict[SlotKey, NativeSlot]:
    """Return the slots that pools have, and the spare ones of their native groups."""
    known: dict[SlotKey, NativeSlot] = {}
    for pool in pools:
        placement = pool.placement_now
        for native in placement.native:
            known |= {(id(native), slot.bundle_index): (native, slot) for slot in runtime.holdings.spare(native)}
        for key, slot in zip(slot_keys(placement), placement.slots, strict=True):
            known[key] = (placement.native[slot.group_index], slot)
    return known


def put_together(target: Target, known: Mapping[SlotKey, NativeSlot], extras: Sequence[Placement]) -> Placement:
    """Return the placement of ``target``: ranks in the order of the entries, kept slots before new ones."""
    coming = iter(extras)
    native: list[Any] = []
    slots: list[Slot] = []
    for node_index, entry in enumerate(target.entries):
        members = [known[key] for key in entry.keep]
        if entry.extra:
            placement = next(coming)
            members += [(placement.native[slot.group_index], slot) for slot in placement.slots]
        for local_index, (group, slot) in enumerate(members):
            if not any(group is known_group for known_group in native):
                native.append(group)
            group_index = next(index for index, known_group in enumerate(native) if known_group is group)
            slots.append(Slot(len(slots), slot.node, node_index, local_index, group_index, slot.bundle_index))
    return Placement(target.pool, tuple(slots), tuple(native))
