"""The Workers page: a lane per rank with every process that it has had."""

from __future__ import annotations

from dataclasses import dataclass

from web.frame import Content, Frame
from web.rows import Death, Worker
from web.source import RunSource

WORKER_STATES = ("alive", "restarted", "dead", "ended")


@dataclass(frozen=True, slots=True)
class Life:
    """One process of a lane: where it lies in the run, in percent, and how it ended; ``death`` is its report."""

    worker: Worker
    left: float
    width: float
    death: Death | None


@dataclass(frozen=True, slots=True)
class WorkerLane:
    """One rank of one group. ``state`` is one of ``WORKER_STATES``; ``worker`` is its newest process."""

    group: str
    pool: str
    rank: int
    state: str
    worker: Worker
    lives: tuple[Life, ...]
    cause: str


def load_workers(source: RunSource, frame: Frame) -> Content:
    """Return the page, narrowed to the query's ``group`` and ``state``."""
    run = source.run()
    lanes = worker_lanes(source.workers(), source.deaths(), run.duration_ms)
    group, state = frame.params.get("group", ""), frame.params.get("state", "")
    state = state if state in WORKER_STATES else ""
    shown = tuple(lane for lane in lanes if group in {"", lane.group} and state in {"", lane.state})
    return Content(
        lanes=shown,
        n_lanes=len(lanes),
        counts={name: sum(lane.state == name for lane in lanes) for name in WORKER_STATES},
        groups=sorted({lane.group for lane in lanes}),
        filters={"group": group, "state": state},
        states=WORKER_STATES,
        deaths=source.deaths(),
    )


def worker_lanes(workers: tuple[Worker, ...], deaths: tuple[Death, ...], run_ms: float) -> tuple[WorkerLane, ...]:
    """Return the lanes in the order of ``workers``, which is by group, rank and start."""
    by_lane: dict[tuple[str, int], list[Worker]] = {}
    for worker in workers:
        by_lane.setdefault((worker.group, worker.rank), []).append(worker)
    reports = {(death.group, death.rank, death.pid): death for death in deaths}
    return tuple(_lane(lives, reports, max(run_ms, 1.0)) for lives in by_lane.values())


def _lane(workers: list[Worker], reports: dict[tuple[str, int, int], Death], run_ms: float) -> WorkerLane:
    newest = workers[-1]
    lives = tuple(_life(worker, reports.get((worker.group, worker.rank, worker.pid)), run_ms) for worker in workers)
    last_death = next((life for life in reversed(lives) if life.worker.state == "died"), None)
    cause = "" if last_death is None else last_death.death.cause if last_death.death else last_death.worker.reason
    return WorkerLane(newest.group, newest.pool, newest.rank, _state(workers), newest, lives, cause)


def _state(workers: list[Worker]) -> str:
    newest = workers[-1].state
    if newest == "alive":
        return "restarted" if any(worker.state == "died" for worker in workers[:-1]) else "alive"
    return "dead" if newest == "died" else "ended"


def _life(worker: Worker, death: Death | None, run_ms: float) -> Life:
    end_ms = run_ms if worker.ended_ms is None else worker.ended_ms
    left = min(max(worker.started_ms / run_ms * 100, 0.0), 100.0)
    width = min(max((end_ms - worker.started_ms) / run_ms * 100, 0.0), 100.0 - left)
    return Life(worker, round(left, 3), round(width, 3), death)
