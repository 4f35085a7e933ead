"""What the Pools and Operations pages show of live changes: pools' generations, and who asked for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a pool: the process number ``index`` in rank order and its placement."""

    index: int
    node: str
    local_index: int


@dataclass(frozen=True, slots=True)
class PoolGeneration:
    """What a pool looked like from ``at_ms`` until its next generation; ``operation_id`` is empty at its creation."""

    pool: str
    generation: int
    at_ms: float
    process_on_nodes: tuple[int, ...]
    slots: tuple[Slot, ...]
    operation_id: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One attempt to change something from outside, also one that was refused."""

    id: int
    at_ms: float
    actor: str
    remote: str
    user_agent: str
    request_id: str
    action: str
    target: str
    expected_generation: int | None
    outcome: str
    detail: str
    operation_id: str


class ChangeSource(Protocol):
    """Answers about live changes. Every method may be called from several threads at once."""

    def pool_generations(self) -> tuple[PoolGeneration, ...]:
        """Return what every pool looked like in each of its generations, by pool and generation."""
        ...

    def audit_entries(self, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
        """Return attempts to change something newest first, those with an id below ``cursor``."""
        ...
