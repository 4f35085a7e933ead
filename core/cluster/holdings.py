"""Who holds which slots: none is in two pools, none is lost, and what nobody holds a part of any more is given back.

The cluster reserves slots in native groups (placement groups) that can only be given back whole. Pools that were split
or resized hold parts of one; it goes when the last of them lets go. Slots of a native group that no pool holds while
others hold the rest are spare: they wait for a pool that grows.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from core.cluster import Cluster, Placement, Slot
from core.errors import StateError

SlotKey: TypeAlias = tuple[int, int]
"""What names a slot on the cluster: the identity of its native group, and its bundle."""


def slot_keys(placement: Placement) -> tuple[SlotKey, ...]:
    """Return what names each slot of a placement, in rank order, whatever pool it is in."""
    return tuple((id(placement.native[slot.group_index]), slot.bundle_index) for slot in placement.slots)


class Holding:
    """A pool's hold on its slots; it has no other content than to be the one."""

    def __init__(self, pool: str) -> None:
        """Name the pool, for messages."""
        self.pool = pool


class Holdings:
    """The slots that the pools of a driver hold, and the spare ones between them."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._lock = threading.Lock()
        self._holders: dict[SlotKey, Holding] = {}
        self._slots: dict[SlotKey, Slot] = {}
        self._native: dict[int, Any] = {}

    def exchange(self, leave: Collection[Holding], take: Mapping[Holding, Placement]) -> Placement:
        """Take the slots of ``leave`` and give others to ``take``, all at once; return what is to be released.

        Raises:
            StateError: A slot is in a pool that does not leave it, or would be given twice; nothing was changed.
        """
        with self._lock:
            given = {key: holder for key, holder in self._holders.items() if holder not in leave}
            for holding, placement in take.items():
                for key in slot_keys(placement):
                    if key in given:
                        raise StateError(
                            f"a slot of pool {given[key].pool} cannot be in pool {holding.pool} too", state="held"
                        )
                    given[key] = holding
            for placement in take.values():
                self._slots |= dict(zip(slot_keys(placement), placement.slots, strict=True))
                self._native |= {id(native): native for native in placement.native}
            self._holders = given
            held = {group for group, _ in given}
            released = tuple(native for group, native in self._native.items() if group not in held)
            self._native = {group: native for group, native in self._native.items() if group in held}
            self._slots = {key: slot for key, slot in self._slots.items() if key[0] in held}
            return Placement("", (), released)

    def holders(self) -> dict[SlotKey, str]:
        """Return the pool of each slot that is in one."""
        with self._lock:
            return {key: holder.pool for key, holder in self._holders.items()}

    def spare(self, native: Any) -> tuple[Slot, ...]:
        """Return the slots of a native group that no pool holds, in the order of its bundles."""
        with self._lock:
            keys = sorted(key for key in self._slots if key[0] == id(native) and key not in self._holders)
            return tuple(self._slots[key] for key in keys)

    def is_shared(self, native: Any, holding: Holding) -> bool:
        """Whether slots of a native group are in other pools than that of ``holding``."""
        with self._lock:
            return any(key[0] == id(native) and holder is not holding for key, holder in self._holders.items())


def give_back(holdings: Holdings, cluster: Cluster, holding: Holding) -> None:
    """End a pool's hold on its slots, and release what nobody else holds a part of."""
    cluster.release(holdings.exchange((holding,), {}))


# Which groups have a process on each slot. No lock is taken: the collector may end a group at any line.


def occupy(tenants: dict[SlotKey, set[str]], keys: Sequence[SlotKey], group: str) -> None:
    """Record that a group has a process on each slot."""
    for key in keys:
        tenants.setdefault(key, set()).add(group)


def vacate(tenants: dict[SlotKey, set[str]], keys: Sequence[SlotKey], group: str) -> None:
    """Record that a group has no process on the slots any more; no error when it had none."""
    for key in keys:
        on_slot = tenants.get(key)
        if on_slot is not None:
            on_slot.discard(group)
            if not on_slot:
                tenants.pop(key, None)
