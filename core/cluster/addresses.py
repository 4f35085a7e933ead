"""Ordering nodes by their addresses."""

from __future__ import annotations

import re


def address_key(address: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts 10.0.0.9 before 10.0.0.10."""
    parts = re.split(r"(\d+)", address)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
