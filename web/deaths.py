"""What the Post-mortem page and the panel of now show: workers that died, and calls that are, or were, in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RankDoing:
    """What a rank was doing at a moment: "idle", "in <method>", "answered", "dead" or "not asked", for ``seconds``."""

    rank: int
    state: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Death:
    """A worker's death and its report, as `core.events.DeathReport` has it. ``at_ms`` is when it was noticed.

    ``signal`` is 0 and ``exit_code`` None where they could not be found out; ``oom`` is None when nothing says either
    way; memory is 0 when unknown; ``call_id`` is 0 for a worker that was idle. ``others`` are the other ranks of the
    group at that moment, less ``n_unreadable_others`` that the file holds in no shape that can be read. A file that was
    written without reports has empty ones, with ``cause`` as all it knows.
    """

    group: str
    rank: int
    at_ms: float
    pid: int
    node: str
    worker: str
    actor_id: str
    cause: str
    role: str = ""
    method: str = ""
    call_id: int = 0
    signal: int = 0
    exit_code: int | None = None
    oom: bool | None = None
    evidence: tuple[str, ...] = ()
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    others: tuple[RankDoing, ...] = ()
    log_tail: tuple[str, ...] = ()
    policy: str = ""
    n_unreadable_others: int = 0


@dataclass(frozen=True, slots=True)
class RankOut:
    """A rank that a call in flight waits for: for how long it has been asked, and where it lives."""

    rank: int
    out_ms: float
    node: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class CallInFlight:
    """A call without its end: ``running_ms`` long so far, or when the driver died, with its pending ranks.

    ``is_stalled`` says that a stall was reported: it has been in flight for longer than ``stall_s``.
    """

    id: int
    group: str
    pool: str
    method: str
    blocking: bool
    started_ms: float
    running_ms: float
    n_ranks: int
    out: tuple[RankOut, ...]
    is_stalled: bool = False


class DeathSource(Protocol):
    """Answers about what died and what was not over. Every method may be called from several threads at once."""

    def deaths(self) -> tuple[Death, ...]:
        """Return the workers that died, in the order of their deaths."""
        ...

    def crash_text(self) -> str:
        """Return what faulthandler wrote beside the run's file, empty when it wrote nothing."""
        ...

    def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
        """Return the calls without an end, longest first."""
        ...
