"""A made-up run for the store's tests: events as core would emit them, at times that the test says."""

from __future__ import annotations

import time
from pathlib import Path

from app.store.facts import RunFacts
from core.events import (
    CallFinished,
    CallStarted,
    Event,
    GroupCreated,
    MethodFacts,
    PoolCreated,
    RankFinished,
    SlotFacts,
    WorkerStarted,
)

MS = 1_000_000
S = 1_000_000_000
START_NS = 1_800_000_000 * S


def facts(pid: int = 4242) -> RunFacts:
    """Return the facts of a run that starts now."""
    return RunFacts("abc123", "demo", "train.py", "box", pid, "0.1.0", "3.11", "2.60", time.time_ns(), START_NS)


def at(ms: float) -> int:
    """Return the driver's time ``ms`` after the start."""
    return START_NS + int(ms * MS)


def people(world: int = 2, group: str = "actor", pool: str = "train") -> list[Event]:
    """Return what is emitted when a pool with one group comes up."""
    slots = tuple(SlotFacts(i, "10.0.0.1", 0, i) for i in range(world))
    methods = (MethodFacts("update", "DP_COMPUTE_PROTO", "ALL", True),)
    return [
        PoolCreated(at(0), pool, (world,), slots, 0, "active", True, 2),
        *(
            WorkerStarted(at(1), group, pool, i, i, f"{group}-{i}", 1000 + i, "10.0.0.1", f"a{i}", str(i))
            for i in range(world)
        ),
        GroupCreated(at(2), group, pool, "train.Actor", world, methods),
    ]


def started(call_id: int, ms: float, *, blocking: bool = True, method: str = "update", step: int = 0) -> CallStarted:
    """Return the start of a call ``ms`` after the run's start."""
    return CallStarted(call_id, at(ms), "actor", "train", 0, method, "DP_COMPUTE_PROTO", "ALL", blocking, 0, step)


def finished(call_id: int, ms: float, *, status: str = "ok") -> CallFinished:
    """Return the end of a call ``ms`` after the run's start."""
    return CallFinished(call_id, at(ms), status, 7, 7, (4, 4), 1, 800, 400, 1 * MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS)


def span(call_id: int, rank: int, from_ms: float, to_ms: float, *, status: str = "ok") -> RankFinished:
    """Return one rank's span, submitted 0.1 ms before it started and ready 0.1 ms after it finished."""
    return RankFinished(
        call_id,
        "actor",
        rank,
        at(from_ms - 0.1),
        at(from_ms),
        at(to_ms),
        at(to_ms + 0.1),
        1000,
        status,
        4,
        4,
        400,
        200,
    )


def silent_span(call_id: int, rank: int, from_ms: float, to_ms: float, status: str = "died") -> RankFinished:
    """Return the span of a rank that never said when it started or finished."""
    return span(call_id, rank, from_ms, to_ms, status=status)._replace(started_ns=None, finished_ns=None)


def one_call(call_id: int, ms: float, lengths_ms: tuple[float, ...] = (6.0, 8.0)) -> list[Event]:
    """Return a whole call of which each rank runs so long."""
    spans = [span(call_id, rank, ms + 3, ms + 3 + length) for rank, length in enumerate(lengths_ms)]
    return [started(call_id, ms), *spans, finished(call_id, ms + 4 + max(lengths_ms))]


def run_path(folder: Path) -> Path:
    """Return the path of the test's run."""
    return folder / "run.db"
