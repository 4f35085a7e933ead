"""Pools made of other pools' slots: parts of one, and one of several.

A derived pool reserves nothing and gives nothing back: the pools it was made of hold the slots, and live as long as it
does. Groups on a pool and on its parts share slots; how many may do so is counted slot by slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.cluster import Placement, Slot
from core.cluster.addresses import address_key
from core.errors import PoolSpecError
from core.pool.resource_pool import RayResourcePool


class SubRayResourcePool(RayResourcePool):
    """Some consecutive slots of placement groups that exist, over node borders too.

    ``pgs`` are the placement groups, ``start_bundle_index`` is the first slot counted over all of them, and
    ``subgroup_world_size`` how many there are.
    """

    def __init__(
        self,
        placement_groups: Sequence[Any],
        start_bundle_index: int,
        subgroup_world_size: int,
        *,
        parents: Sequence[RayResourcePool] = (),
        process_on_nodes: Sequence[int] | None = None,
        whole: Placement | None = None,
        **kwargs: Any,
    ) -> None:
        """Take ``subgroup_world_size`` slots from slot ``start_bundle_index`` on, counted over all the groups.

        ``kwargs`` are those of ``RayResourcePool``; ``parents`` are kept alive, ``process_on_nodes`` follows from the
        slots; ``whole`` are the slots of the groups where they are known.

        Raises:
            PoolSpecError: There are not so many slots.
        """
        del process_on_nodes
        super().__init__([subgroup_world_size] if subgroup_world_size > 0 else None, **kwargs)
        whole = whole or self.runtime.cluster.adopt(self.name, placement_groups)
        end = start_bundle_index + subgroup_world_size
        if start_bundle_index < 0 or subgroup_world_size < 1 or end > len(whole.slots):
            self.close()
            raise PoolSpecError(
                f"slots {start_bundle_index} to {end} of {len(whole.slots)} cannot be a pool: there must be at least "
                f"one, and all must exist"
            )
        self.start_bundle_index = start_bundle_index
        self.subgroup_world_size = subgroup_world_size
        self.adopt_slots(subset(whole, whole.slots[start_bundle_index:end]), parents)


def subset(whole: Placement, slots: Sequence[Slot]) -> Placement:
    """Return a placement of some of another's slots: ranks, nodes and local ranks count from 0, in their order."""
    nodes: list[int] = []
    n_on_node: dict[int, int] = {}
    renumbered = []
    for index, slot in enumerate(slots):
        if slot.node_index not in nodes:
            nodes.append(slot.node_index)
        local_index = n_on_node.get(slot.node_index, 0)
        n_on_node[slot.node_index] = local_index + 1
        renumbered.append(replace(slot, index=index, node_index=nodes.index(slot.node_index), local_index=local_index))
    return Placement(whole.pool, tuple(renumbered), whole.native)


def split_resource_pool(resource_pool: RayResourcePool, split_size: int | Sequence[int]) -> list[RayResourcePool]:
    """Return pools of consecutive slots of ``resource_pool``: equal parts of ``split_size``, or parts of those sizes.

    Parts can be split again. The pool itself goes on.

    Raises:
        PoolSpecError: The sizes do not add up to the pool's, or one is below 1.
        PlacementError: The pool had no slots yet and does not get them.
    """
    world_size = resource_pool.world_size
    if isinstance(split_size, int):
        if split_size < 1 or world_size % split_size:
            raise PoolSpecError(f"pool {resource_pool.name} of {world_size} cannot be split into parts of {split_size}")
        sizes = [split_size] * (world_size // split_size)
    else:
        sizes = list(split_size)
    if any(size < 1 for size in sizes) or sum(sizes) != world_size:
        raise PoolSpecError(
            f"parts of {sizes} add up to {sum(sizes)}, pool {resource_pool.name} has {world_size}; each must be 1 or "
            f"more"
        )
    placement = resource_pool.placement_or_reserved()
    # Of a part that is split again the groups are still the whole ones.
    before = resource_pool.start_bundle_index if isinstance(resource_pool, SubRayResourcePool) else 0
    parts: list[RayResourcePool] = []
    start = 0
    for number, size in enumerate(sizes):
        part = SubRayResourcePool(
            placement.native,
            start,
            size,
            parents=[resource_pool],
            whole=placement,
            **_like(resource_pool, f"{resource_pool.name}_part{number}"),
        )
        part.start_bundle_index = before + start
        parts.append(part)
        start += size
    return parts


def merge_resource_pool(rp1: RayResourcePool, rp2: RayResourcePool) -> RayResourcePool:
    """Return a pool of the slots of both, in the order of their nodes' addresses, the first pool's first on one node.

    Raises:
        PoolSpecError: They differ in use_gpu, max_colocate_count, n_gpus_per_node or detached, or share a slot.
        PlacementError: One had no slots yet and does not get them.
    """
    for name in ("use_gpu", "max_colocate_count", "n_gpus_per_node", "detached"):
        one, other = getattr(rp1, name), getattr(rp2, name)
        if one != other:
            raise PoolSpecError(f"pools {rp1.name} and {rp2.name} cannot be merged: {name} is {one} and {other}")
    placements = [rp1.placement_or_reserved(), rp2.placement_or_reserved()]
    common = {_key(placements[0], slot) for slot in placements[0].slots} & {
        _key(placements[1], slot) for slot in placements[1].slots
    }
    if common:
        raise PoolSpecError(
            f"pools {rp1.name} and {rp2.name} share {len(common)} slots, no slot can be in a pool twice"
        )
    merged = _united(f"{rp1.name}+{rp2.name}", placements)
    pool = RayResourcePool([len(merged.slots)], **_like(rp1, merged.pool))
    pool.adopt_slots(merged, [rp1, rp2])
    return pool


def _united(name: str, placements: Sequence[Placement]) -> Placement:
    """Put the slots of several placements into one, their native groups side by side, each once."""
    native: list[Any] = []
    for placement in placements:
        native += [group for group in placement.native if not any(group is known for known in native)]
    slots = [
        replace(slot, group_index=_place(native, placement.native[slot.group_index]))
        for placement in placements
        for slot in placement.slots
    ]
    slots.sort(key=lambda slot: address_key(slot.node))
    # Slots of one native group are on one node when packed strictly; two groups may still share a node.
    nodes = [(slot.node, slot.group_index) for slot in slots]
    order = list(dict.fromkeys(nodes))
    numbered = [replace(slot, node_index=order.index(node)) for slot, node in zip(slots, nodes, strict=True)]
    return subset(Placement(name, (), tuple(native)), numbered)


def _place(native: Sequence[Any], group: Any) -> int:
    return next(index for index, known in enumerate(native) if known is group)


def _key(placement: Placement, slot: Slot) -> tuple[int, int]:
    return id(placement.native[slot.group_index]), slot.bundle_index


def _like(pool: RayResourcePool, name: str) -> dict[str, Any]:
    """Return the arguments that make a pool like another."""
    return {
        "use_gpu": pool.use_gpu,
        "name_prefix": pool.runtime.free_pool_name(name),
        "max_colocate_count": pool.max_colocate_count,
        "detached": pool.detached,
        "accelerator_type": pool.accelerator_type,
    }
