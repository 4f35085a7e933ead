"""The workers that a group's calls run on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.cluster import ActorHandle, Cluster, Ref
from core.data.shares import Uneven
from core.group.call_tracker import CallTracker
from core.group.clock import ClockAlignment
from core.group.deaths import Deaths
from core.pool import Gate
from core.runtime import Runtime
from core.worker import WorkerIdentity


@dataclass(frozen=True)
class Crew:
    """The workers a call runs on, in rank order, and what stands around them."""

    runtime: Runtime
    group: str
    pool: str
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
    call_timeout_s: float | None = None
    role: str = ""
    since: str = ""
    identities: tuple[WorkerIdentity, ...] = ()
    deaths: Deaths = field(default_factory=Deaths)
    entries: dict[tuple[int, str], Callable[..., Ref]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the deaths among these workers heard."""
        self.deaths.attach(self)

    @property
    def cluster(self) -> Cluster:
        """Return the cluster the workers are on."""
        return self.runtime.cluster

    def entry(self, rank: int, name: str) -> Callable[..., Ref]:
        """Return what calls one of the shell's entries on a rank."""
        found = self.entries.get((rank, name))
        if found is None:
            found = self.entries[rank, name] = self.cluster.bound(self.actors[rank], name)
        return found

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.actors)


class Drained:
    """Called when a call has no rank out any more: lets the pool's gate know. Holds no group."""

    def __init__(self, unfinished: dict[int, CallTracker], lock: threading.Lock, gate: Gate) -> None:
        self._unfinished, self._lock, self._gate = unfinished, lock, gate

    def __call__(self, tracker: CallTracker) -> None:
        with self._lock:
            self._unfinished.pop(tracker.facts.call_id, None)
        self._gate.leave()


class Behind:
    """Says which ranks still work on calls that the driver has seen fail: the next call waits for them."""

    def __init__(self, unfinished: dict[int, CallTracker], lock: threading.Lock) -> None:
        self._unfinished, self._lock = unfinished, lock

    def __call__(self) -> list[str]:
        if not self._unfinished:
            return []
        with self._lock:
            trackers = [tracker for tracker in list(self._unfinished.values()) if tracker.has_failed]
        return [
            f"{'rank' if len(tracker.out) == 1 else 'ranks'} {', '.join(map(str, tracker.out))}, still in call "
            f"{tracker.facts.call_id} {tracker.facts.method} which {tracker.fate}"
            for tracker in trackers
            if tracker.out
        ]
