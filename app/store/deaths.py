"""The row of a worker's death."""

from __future__ import annotations

import math

from app.store.codes import whole
from app.store.models import Death, Worker
from app.store.texts import LINE, MESSAGE, TRACEBACK, bounded, bounded_end
from app.store.totals import LaneRow
from core.events import DeathReport, RankState, WorkerEnded


def death_row(death_id: int, event: WorkerEnded, started_ns: int, lane: LaneRow, worker: Worker | None) -> Death:
    """Return the row of a death; ``started_ns`` is the run's start on the driver clock.

    A death without a report keeps what the event and the worker's own row say.
    """
    report = event.report or DeathReport(
        role=event.group,
        worker="" if worker is None else worker.name,
        actor_id="" if worker is None else worker.actor_id,
        cause=event.reason,
    )
    return Death(
        id=death_id,
        at_ns=event.at_ns - started_ns,
        group_id=lane.group_id,
        lane_id=lane.id,
        worker_id=None if worker is None else worker.id,
        rank=event.rank,
        pid=event.pid or (0 if worker is None else worker.pid),
        node=event.node or ("" if worker is None else worker.node),
        role=report.role,
        worker=report.worker,
        actor_id=report.actor_id,
        cause=bounded(report.cause, LINE),
        signal=report.signal,
        exit_code=report.exit_code,
        oom=report.oom,
        evidence=bounded(_lines(report.evidence), MESSAGE),
        memory_bytes=report.memory_bytes,
        memory_limit_bytes=report.memory_limit_bytes,
        others=pack_others(report.others),
        log_tail=bounded_end(_lines(report.log_tail), TRACEBACK),
        policy=report.policy,
        method=event.method,
        call_id=event.call_id,
    )


def pack_others(others: tuple[RankState, ...]) -> str:
    """Return what the other ranks were doing as text, a line each: rank, seconds, state."""
    return "\n".join(f"{other.rank}\t{other.seconds:.3f}\t{_one_line(other.state)}" for other in others)


def unpack_others(text: str) -> tuple[tuple[tuple[int, float, str], ...], int]:
    """Return (rank, seconds, state) of each line that ``pack_others`` packed, and how many lines cannot be read."""
    lines = [line for line in text.split("\n") if line]
    found = [one for one in map(_other, lines) if one is not None]
    return tuple(found), len(lines) - len(found)


def _other(line: str) -> tuple[int, float, str] | None:
    rank, _, rest = line.partition("\t")
    seconds, tab, state = rest.partition("\t")
    try:
        return (whole(rank), float(seconds), state) if tab and math.isfinite(float(seconds)) else None
    except ValueError:
        return None


def _lines(lines: tuple[str, ...]) -> str:
    return "\n".join(_one_line(line) for line in lines)


def _one_line(text: str) -> str:
    return text.rstrip("\n").replace("\n", " ")
