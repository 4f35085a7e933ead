"""A worker's process as the watch is given it, and what the watch knows of it."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Protocol

from core.cluster import ActorHandle, Cluster
from core.errors import WorkerDiedError
from core.health.evidence import Findings
from core.worker import ProcessInfo


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """The process of one rank. ``key`` is equal for ranks of several groups that share a process."""

    rank: int
    name: str
    pid: int
    node: str
    info: ProcessInfo
    actor: ActorHandle
    key: tuple[str, int]


class WatchedRanks(Protocol):
    """The workers of one group, as far as health looks at them. The watch holds them weakly."""

    @property
    def group(self) -> str:
        """Return the group's name."""
        ...

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that the workers are on."""
        ...

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        ...

    def process(self, rank: int) -> WatchedProcess:
        """Return the process of a rank."""
        ...

    def is_watched(self, rank: int) -> bool:
        """Whether the end of a rank's process would be news: it is neither known nor on purpose."""
        ...

    def is_under_investigation(self, rank: int) -> bool:
        """Whether a rank's death is known and its cause is not yet."""
        ...

    def on_exit(self, rank: int, error: WorkerDiedError | None) -> None:
        """Record that a rank's process ended; ``error`` is the cluster's, if it has one. On any thread."""
        ...

    def on_look(self, rank: int) -> None:
        """Do what is due about once a second for a rank whose process lives."""
        ...


@dataclass(frozen=True, slots=True)
class LastSeen:
    """What was seen of a process last.

    Its memory and the OOM kills of its control group while it lived; its wait status, None where unknown; what it
    left, if its node was looked at; and how the raylet of its node ended, empty while that lives.
    """

    memory_bytes: int = 0
    n_oom_kills: int = -1
    status: int | None = None
    findings: Findings | None = None
    raylet_end: str = ""


@dataclass(eq=False)
class TrackedProcess:
    """One process under watch, and the ranks it runs: one per group whose workers share it.

    ``pidfd`` is a descriptor of it, -1 where this machine has none. ``is_remote`` says that it is not on this machine:
    a node watcher reports it, or it is pinged. ``ended`` is set once it is known to have ended, ``is_settled`` once
    nothing more will be seen of it.
    """

    key: tuple[str, int]
    name: str
    pid: int
    node: str
    info: ProcessInfo
    ping_every_s: float
    pidfd: int = -1
    is_remote: bool = False
    ping_pending: bool = False
    next_ping_s: float = 0.0
    last: LastSeen = field(default_factory=LastSeen)
    ended: threading.Event = field(default_factory=threading.Event)
    is_settled: threading.Event = field(default_factory=threading.Event)
    ranks: list[tuple[weakref.ref[WatchedRanks], int]] = field(default_factory=list)

    def watchers(self) -> list[tuple[WatchedRanks, int]]:
        """Return the ranks whose groups still want to know of its end."""
        living = [(ref(), rank) for ref, rank in list(self.ranks)]
        return [(ranks, rank) for ranks, rank in living if ranks is not None and ranks.is_watched(rank)]
