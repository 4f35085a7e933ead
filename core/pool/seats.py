"""Which groups have a process on each slot. No lock is taken: the collector may end a group at any line."""

from __future__ import annotations

from collections.abc import Sequence

from core.cluster.holdings import SlotKey


def take_seats(tenants: dict[SlotKey, set[str]], keys: Sequence[SlotKey], name: str) -> None:
    """Give a group a seat on each slot."""
    for key in keys:
        tenants.setdefault(key, set()).add(name)


def leave_seats(tenants: dict[SlotKey, set[str]], keys: Sequence[SlotKey], name: str) -> None:
    """Take a group's seats away; no error when it has none."""
    for key in keys:
        on_slot = tenants.get(key)
        if on_slot is not None:
            on_slot.discard(name)
            if not on_slot:
                tenants.pop(key, None)
