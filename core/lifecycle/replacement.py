"""Slots whose node died: the cluster finds them another place, if it has one."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from core.cluster import Placement
from core.errors import PlacementError
from core.pool import RayResourcePool

MOVED_S = 120.0
"""How long the cluster has to see that a node is dead, which takes Ray some 14 s, and to place them elsewhere."""
NOTICED_S = 30.0
"""After this the cluster knows of the death: what lives at the address then is another node, such as one come back."""
_LOOK_S = 0.5


def slots_after(pool: RayResourcePool, lost: Collection[str]) -> Placement:
    """Return the slots of a pool, those on nodes that are lost once they are somewhere else.

    Raises:
        PlacementError: The cluster found no other place for them in time.
    """
    began = time.monotonic()
    while True:
        before = pool.placement_now
        now = _where_they_are(pool, before)
        nodes = {slot.node for slot in now.slots}
        waited_s = time.monotonic() - began
        if "" not in nodes and (not nodes & set(lost) or waited_s >= NOTICED_S):
            if now != before:
                pool.slots_moved(now)
            return now
        if waited_s > MOVED_S:
            n_lost = sum(slot.node in {"", *lost} for slot in now.slots)
            raise PlacementError(
                f"{n_lost} of the {len(now.slots)} slots of pool {pool.name} were on a node that died "
                f"({', '.join(sorted(lost))}), and the cluster has not found them another place within {MOVED_S:g} s; "
                f"add a node, or make a smaller pool and a group on it",
                pool=pool.name,
            )
        time.sleep(_LOOK_S)


def _where_they_are(pool: RayResourcePool, placement: Placement) -> Placement:
    found = pool.runtime.cluster.adopt(pool.name, placement.native)
    nodes = {(slot.group_index, slot.bundle_index): slot.node for slot in found.slots}
    slots = (replace(one, node=nodes.get((one.group_index, one.bundle_index), "")) for one in placement.slots)
    return replace(placement, slots=tuple(slots))
