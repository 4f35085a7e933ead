"""Workers that are up, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from core.cluster import ActorHandle, Placement
from core.group.clock import ClockAlignment
from core.worker import WorkerIdentity


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """Workers that are up, in rank order, on the slots of ``placement``; ``took_s`` is how long their start took."""

    actors: tuple[ActorHandle, ...]
    names: tuple[str, ...]
    identities: tuple[WorkerIdentity, ...]
    clocks: tuple[ClockAlignment, ...]
    placement: Placement
    master_addr: str
    master_port: int
    took_s: float = 0.0

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.actors)

    def node(self, rank: int) -> str:
        """Return the address of a rank's node."""
        return self.placement.slots[rank].node
