"""What is known of worker groups: where they are, of how many workers, with which methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Group:
    """A worker group. ``closed_ms`` is None while it stands; ``n_alive`` of its workers are up."""

    name: str
    pool: str
    worker_class: str
    world_size: int
    n_alive: int
    methods: tuple[str, ...]
    created_ms: float
    closed_ms: float | None = None


class GroupSource(Protocol):
    """Answers about worker groups. Every method may be called from several threads at once."""

    def groups(self) -> tuple[Group, ...]:
        """Return every worker group the run had, in the order they were made."""
        ...
