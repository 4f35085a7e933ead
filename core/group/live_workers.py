"""A group's workers while calls run on them, and what stands around them: gate, pending calls, known deaths."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from core.cluster import Cluster, Ref
from core.data.shares import Uneven
from core.errors import WorkerDiedError
from core.group.announce import announce_clock
from core.group.call_tracker import CallTracker
from core.group.deaths import Deaths
from core.group.worker_set import WorkerSet
from core.health.watched_process import WatchedProcess
from core.pool import Gate
from core.runtime import Runtime


class PendingCalls:
    """The calls of a group that ranks have not all answered. Holds no group."""

    def __init__(self) -> None:
        """Start without a call."""
        self._lock = threading.Lock()
        self._trackers: dict[int, CallTracker] = {}

    def add(self, tracker: CallTracker) -> None:
        """Follow a call."""
        self._trackers[tracker.facts.call_id] = tracker

    def remove(self, tracker: CallTracker) -> None:
        """Drop a call that every rank has answered."""
        with self._lock:
            self._trackers.pop(tracker.facts.call_id, None)

    @property
    def any_out(self) -> bool:
        """Whether a rank is in a call."""
        return any(tracker.out for tracker in list(self._trackers.values()))

    def blockers(self) -> list[str]:
        """Return the calls, in words, that failed for the driver and still run on ranks: the next call waits for them.

        Such as "rank 3, still in call 12 train which failed".
        """
        if not self._trackers:
            return []
        with self._lock:
            trackers = [tracker for tracker in list(self._trackers.values()) if tracker.has_failed]
        return [
            f"{'rank' if len(tracker.out) == 1 else 'ranks'} {', '.join(map(str, tracker.out))}, still in call "
            f"{tracker.facts.call_id} {tracker.facts.method} which {tracker.fate}"
            for tracker in trackers
            if tracker.out
        ]


@dataclass(frozen=True, eq=False)
class LiveWorkers:
    """A group's workers while calls run on them, with their pool's gate, their pending calls and their deaths.

    A group that is given other workers gets another one of these; calls compare by identity. ``drained`` is called when
    every rank has answered a call; a call's tracker keeps it, so it must not hold this.
    """

    runtime: Runtime
    group: str
    role: str
    pool: str
    gate: Gate
    workers: WorkerSet
    pending: PendingCalls
    deaths: Deaths
    drained: Callable[[CallTracker], None]
    uneven: Uneven | None = None
    call_timeout_s: float | None = None
    since: str = ""
    entries: dict[tuple[int, str], Callable[..., Ref]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the deaths among these workers taken note of."""
        self.deaths.attach(self)

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that the workers are on."""
        return self.runtime.cluster

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.workers.actors)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the workers' names."""
        return self.workers.names

    def entry(self, rank: int, name: str) -> Callable[..., Ref]:
        """Return what calls one of the shell's entries on a rank."""
        found = self.entries.get((rank, name))
        if found is None:
            found = self.entries[rank, name] = self.cluster.bound(self.workers.actors[rank], name)
        return found

    def process(self, rank: int) -> WatchedProcess:
        """Return the process of a rank, as health looks at it."""
        workers, identity = self.workers, self.workers.identities[rank]
        actor = workers.actors[rank]
        # Threads of this process have an id of the cluster's or a pid of their own no more than others do.
        actor_id = f"thread {id(actor)}" if identity.pid == os.getpid() else self.cluster.actor_id(actor)
        return WatchedProcess(
            rank=rank,
            name=workers.names[rank],
            pid=identity.pid,
            node=workers.node(rank),
            info=identity.process_info,
            actor=actor,
            key=(actor_id, identity.pid),
        )

    def is_watched(self, rank: int) -> bool:
        """Whether the end of a rank's process would be news."""
        return rank not in self.deaths.dead

    def is_under_investigation(self, rank: int) -> bool:
        """Whether a rank's death is known and its cause is not yet."""
        return self.deaths.is_open(rank)

    def on_exit(self, rank: int, error: WorkerDiedError | None) -> None:
        """Record that a rank's process ended."""
        self.deaths.hear(rank, error)

    def on_look(self, rank: int) -> None:
        """Record what was learned about a worker's clock."""
        announce_clock(self.runtime, self.group, rank, self.workers.clocks[rank])
