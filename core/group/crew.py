"""The workers that a group's calls run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.cluster import ActorHandle, Cluster
from core.data.shares import Uneven
from core.group.clock import ClockAlignment
from core.group.track import CallTracker
from core.pool import Gate
from core.runtime import Runtime


@dataclass(frozen=True)
class Crew:
    """The workers a call runs on, in rank order, and what stands around them."""

    runtime: Runtime
    group: str
    pool: str
    generation: int
    gate: Gate
    actors: tuple[ActorHandle, ...]
    names: tuple[str, ...]
    nodes: tuple[str, ...]
    clocks: tuple[ClockAlignment, ...]
    uneven: Uneven | None
    drained: Callable[[CallTracker], None]
    behind: Callable[[], Sequence[str]]
    unfinished: dict[int, CallTracker]
    dead: set[int] = field(default_factory=set)

    @property
    def cluster(self) -> Cluster:
        """Return the cluster the workers are on."""
        return self.runtime.cluster

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.actors)
