"""Which pool owns which slots: no slot is in two pools, none is lost, and unused native groups are released.

The cluster reserves slots in native groups (placement groups) that can only be released as a whole. Pools that were
split or resized own parts of one; it is released when none of them owns a part any more. Slots that no pool owns while
others own the rest of their native group are spare: a pool that grows can use them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from core.cluster import Cluster, Placement, Slot
from core.errors import StateError

SlotKey: TypeAlias = tuple[int, int]
"""The key of a slot on the cluster: the ``id`` of its native group, and the index of its bundle."""


def slot_keys(placement: Placement) -> tuple[SlotKey, ...]:
    """Return the key of each slot of a placement, in rank order."""
    return tuple((id(placement.native[slot.group_index]), slot.bundle_index) for slot in placement.slots)


class Holding:
    """A pool's ownership of its slots, compared by identity."""

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
            StateError: A slot belongs to another pool, or would be in two pools; nothing was changed.
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
        """Return whether slots of a native group are in other pools than that of ``holding``."""
        with self._lock:
            return any(key[0] == id(native) and holder is not holding for key, holder in self._holders.items())


def give_back(holdings: Holdings, cluster: Cluster, holding: Holding) -> None:
    """End a pool's ownership of its slots, and release the native groups of which no other pool owns a part."""
    cluster.release(holdings.exchange((holding,), {}))


# Which groups have a process on each slot. No lock is taken: the collector may end a group at any line.


def occupy(tenants: dict[SlotKey, set[str]], keys: Sequence[SlotKey], group: str) -> None:
    """Record that a group has a process on each slot."""
    for key in keys:
        tenants.setdefault(key, set()).add(group)


def vacate(tenants: dict[SlotKey, set[str]], keys: Sequence[SlotKey], group: str) -> None:
    """Record that a group has no process on the slots any more; no error if it had none."""
    for key in keys:
        on_slot = tenants.get(key)
        if on_slot is not None:
            on_slot.discard(group)
            if not on_slot:
                tenants.pop(key, None)
