"""A process under watch, as the driver knows it."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.health.evidence import Found
from core.worker import Traces

if TYPE_CHECKING:
    from core.group.worker_set import Crew


@dataclass(frozen=True, slots=True)
class LastSeen:
    """The last that was seen of a process.

    Its memory and the kills for memory around it while it lived; its wait status, None where unknown; what it left, if
    that was looked at on the spot; and how the process ended that keeps all workers of its node, empty while it lives.
    """

    memory_bytes: int = 0
    n_oom_kills: int = -1
    status: int | None = None
    found: Found | None = None
    keeper: str = ""


@dataclass(eq=False)
class Watched:
    """One process under watch, and the ranks it is: one per group whose workers share it.

    ``pidfd`` is a descriptor of it, -1 where this machine has none. One that ``asks`` is not on this machine: a lookout
    there tells of it, or it is asked itself. ``ended`` is set once it is known to have ended, ``is_settled`` once
    nothing more will be seen of it.
    """

    key: tuple[str, int]
    name: str
    pid: int
    node: str
    traces: Traces
    every_s: float
    pidfd: int = -1
    asks: bool = False
    is_out: bool = False
    next_ask_s: float = 0.0
    last: LastSeen = field(default_factory=LastSeen)
    ended: threading.Event = field(default_factory=threading.Event)
    is_settled: threading.Event = field(default_factory=threading.Event)
    ranks: list[tuple[weakref.ref[Crew], int]] = field(default_factory=list)

    def crews(self) -> list[tuple[Crew, int]]:
        """Return the crews that still have a use for it."""
        living = [(ref(), rank) for ref, rank in list(self.ranks)]
        return [(crew, rank) for crew, rank in living if crew is not None and rank not in crew.dead]
