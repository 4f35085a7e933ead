"""What events are made of: errors, slots, methods and deaths as frozen values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """An exception as text. ``rank`` is -1 when it did not come from a rank."""

    type: str
    message: str
    traceback_text: str = ""
    rank: int = -1


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """One slot of a pool: the process ``index`` in rank order and its node."""

    index: int
    node: str
    node_index: int
    local_index: int


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """A bound method as it was registered."""

    name: str
    dispatch_mode: str
    execute_mode: str
    blocking: bool


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank was doing: "idle", "in <method>", "answered", "dead" or "not asked", for ``seconds``."""

    rank: int
    state: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DeathReport:
    """What is known about a worker's death, with the evidence.

    ``cause`` is a line of text, such as "killed by signal 9 (SIGKILL) from outside" or "out of memory". ``signal`` is 0
    and ``exit_code`` None if unknown, and so is ``oom``. ``evidence`` has a line for each source. Memory is in bytes, 0
    if unknown: the last reading of the process, and its limit. ``others`` are the other ranks of the group at that
    moment.
    """

    role: str
    worker: str
    actor_id: str
    cause: str
    signal: int = 0
    exit_code: int | None = None
    oom: bool | None = None
    evidence: tuple[str, ...] = ()
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    others: tuple[RankState, ...] = ()
    log_tail: tuple[str, ...] = ()
    policy: str = ""
