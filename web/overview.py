"""The page Overview: state, progress, where the time goes, methods, ranks, pools, workers, events."""

from __future__ import annotations

import math

from web.figures import figure_specs
from web.frame import Content, Frame
from web.phases import shares_of_call, shares_of_wall_time
from web.rows import Step, Worker
from web.source import Overview, RunSource

N_TOP_METHODS = 12
N_SLOW_RANKS = 8
N_IN_FLIGHT = 100
MAX_METRICS = 6
MAX_STEPS_IN_FIGURE = 600


def load_overview(source: RunSource, frame: Frame) -> Content:
    """Return the first page: state, progress, where the time goes, methods, ranks, pools, workers, events."""
    overview = source.overview()
    return Content(
        overview=overview,
        wall_shares=shares_of_wall_time(overview.methods, overview.run.duration_ms),
        methods=overview.methods[:N_TOP_METHODS],
        ranks=overview.ranks[:N_SLOW_RANKS],
        workers=_workers_by_group(overview),
        casualties=_casualties(overview),
        pools=[pool for pool in overview.pools if pool.state != "closed"] or overview.pools,
        in_flight=source.in_flight(N_IN_FLIGHT) if frame.in_flight is None else frame.in_flight(),
        metrics_px=_metrics_heights_px(len({name for step in overview.steps for name, _ in step.metrics})),
        specs=None if frame.parts_only else figure_specs(),
        steps=[_step_block(step) for step in _thinned(overview.steps)],
        shares_of_call=shares_of_call,
        config=source.config(),
    )


def _workers_by_group(overview: Overview) -> list[dict[str, object]]:
    """Return per group how many of its workers are in which state, and those that died."""
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for worker in overview.workers:
        counts = groups.setdefault((worker.pool, worker.group), {"alive": 0, "ended": 0, "died": 0})
        counts[worker.state] = counts.get(worker.state, 0) + 1
    return [{"pool": pool, "group": group, **counts} for (pool, group), counts in sorted(groups.items())]


def _thinned(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return every n-th step and the last, so that a long run's page stays small; the figure has no room for more."""
    return (*steps[: -1 : -(-len(steps) // MAX_STEPS_IN_FIGURE)], steps[-1]) if steps else ()


def _step_block(step: Step) -> dict[str, object]:
    """Return what the chart needs of a step; JSON has no NaN and no infinity, so these are null in it."""
    metrics = [(name, value if math.isfinite(value) else None) for name, value in step.metrics]
    return {"index": step.index, "metrics": metrics}


def _casualties(overview: Overview) -> list[Worker]:
    """Return the workers that died, in the order of their deaths."""
    died = [worker for worker in overview.workers if worker.state == "died"]
    return sorted(died, key=lambda worker: worker.ended_ms or 0.0)


def _metrics_heights_px(n_metrics: int) -> tuple[int, int]:
    """Return how high ``static/js/metrics.js`` will draw so many metrics, wide and narrow, so that nothing jumps."""
    n = min(max(n_metrics, 1), MAX_METRICS)
    n_columns = 2 if n == 4 else min(n, 3)
    return _rows_px(-(-n // n_columns)), _rows_px(n)


def _rows_px(n_rows: int) -> int:
    return 232 if n_rows == 1 else 156 * n_rows
