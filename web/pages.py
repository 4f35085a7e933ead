"""The pages as HTML text: pure functions of what a ``RunSource`` answers and of the request's ``Frame``.

Every number is in the page itself, so that it can be read with JavaScript off; the ES modules in ``static/js`` take
over from there. Names of methods, ranks and errors are text: autoescape is on, and nothing is marked safe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from web.calls import CallDetail, CallFilter
from web.figures import figure_specs
from web.frame import Frame, render, render_without_run
from web.phases import PHASES, shares_of_call, shares_of_wall_time
from web.source import Overview, RunSource, Step, Worker
from web.spans import rank_rows

STATIC_DIR = Path(__file__).parent / "static"
CALLS_PER_PAGE = 100
N_TOP_METHODS = 12
N_SLOW_RANKS = 8
N_IN_FLIGHT = 100
MAX_METRICS = 6
MAX_STEPS_IN_FIGURE = 600
N_ROWS_ABOVE_RANKS = 3
_FAR = 1e12
_YES = frozenset({"1", "true", "on"})
FILTER_NAMES = {
    "group": "group",
    "method": "method",
    "status": "status",
    "step": "step",
    "min_ms": "at least ms",
    "padding_above": "padding above %",
    "above_p95": "slower than its p95",
}
CALL_STATES = ("running", "ok", "error", "died", "cancelled")


def render_overview(source: RunSource, frame: Frame) -> str:
    """Return the first page: state, progress, where the time goes, methods, ranks, pools, workers, events."""
    overview = source.overview()
    return render(
        "overview.html",
        frame,
        source,
        overview=overview,
        wall_shares=shares_of_wall_time(overview.methods, overview.run.duration_ms),
        methods=overview.methods[:N_TOP_METHODS],
        ranks=overview.ranks[:N_SLOW_RANKS],
        workers=_workers_by_group(overview),
        casualties=_casualties(overview),
        pools=[pool for pool in overview.pools if pool.state != "closed"] or overview.pools,
        in_flight=source.in_flight(N_IN_FLIGHT),
        metrics_px=_metrics_heights_px(len({name for step in overview.steps for name, _ in step.metrics})),
        specs=figure_specs(),
        steps=[_step_block(step) for step in _thinned(overview.steps)],
        shares_of_call=shares_of_call,
    )


def render_timeline(source: RunSource, frame: Frame) -> str:
    """Return the timeline's page; the figure itself is drawn in the browser."""
    workers = source.workers()
    lanes = sorted({(worker.pool, worker.group, worker.rank) for worker in workers})
    n_rows = N_ROWS_ABOVE_RANKS + len({(pool, group) for pool, group, _ in lanes}) + len(lanes)
    return render("timeline.html", frame, source, lanes=lanes, n_rows=n_rows, specs=figure_specs(), phases=PHASES)


def render_call(source: RunSource, frame: Frame, call_id: int) -> str | None:
    """Return the page of one call, or None when the run has no such call."""
    detail = source.call(call_id)
    if detail is None:
        return None
    now_ms = source.run().duration_ms
    rows = rank_rows(detail, now_ms)
    is_running = detail.call.status == "running"
    began_ms = [row.span.started_ms for row in rows if row.span.started_ms is not None]
    ran_ms = [row.ran_ms for row in rows if row.ran_ms is not None]
    return render(
        "call.html",
        frame,
        source,
        detail=detail,
        call=detail.call,
        shares=shares_of_call(detail),
        rows=rows,
        took_ms=max(now_ms - detail.call.started_ms, 0.0) if is_running else detail.call.duration_ms,
        skew_ms=max(began_ms) - min(began_ms) if len(began_ms) > 1 else 0.0,
        spread_ms=detail.max_ms - detail.median_ms,
        lost_ms=sum(detail.max_ms - ms for ms in ran_ms),
        padding_share=_padding_share(detail),
    )


def render_calls(source: RunSource, frame: Frame) -> str:
    """Return a page of the list of calls, narrowed as ``call_filter`` reads the query, older than its ``cursor``."""
    narrowed = call_filter(frame.params)
    cursor = whole_number(frame.params.get("cursor", ""))
    page = source.calls(CALLS_PER_PAGE, cursor, narrowed)
    methods = source.overview().methods
    filters = filter_params(narrowed)
    return render(
        "calls.html",
        frame,
        source,
        calls=page.items,
        next_cursor=page.next_cursor,
        cursor=cursor,
        filters=filters,
        names=FILTER_NAMES,
        per_page=CALLS_PER_PAGE,
        is_narrowed=narrowed != CallFilter(),
        groups=sorted({total.group for total in methods}),
        method_names=sorted({total.method for total in methods}),
        states=CALL_STATES,
    )


def render_problem(frame: Frame, status: int, title: str, detail: str = "", trace_id: str = "") -> str:
    """Return the page that says what went wrong; it asks nothing of the run, so that it can always be shown."""
    return render_without_run("problem.html", frame, status=status, title=title, detail=detail, trace_id=trace_id)


def call_filter(params: Mapping[str, str]) -> CallFilter:
    """Return the filter that a query asks for; what is no number, or no state, narrows nothing."""
    status = params.get("status", "")
    padding = _number(params.get("padding_above", ""))
    return CallFilter(
        group=params.get("group", ""),
        method=params.get("method", ""),
        status=status if status in CALL_STATES else "",
        step=whole_number(params.get("step", "")),
        min_ms=_number(params.get("min_ms", "")),
        above_p95=params.get("above_p95", "") in _YES,
        padding_above=None if padding is None or padding > 100 else padding / 100,
    )


def filter_params(narrowed: CallFilter) -> dict[str, object]:
    """Return the query that ``call_filter`` reads as ``narrowed``; what narrows nothing is empty in it."""
    padding = None if narrowed.padding_above is None else _digits(narrowed.padding_above * 100)
    return {
        "group": narrowed.group,
        "method": narrowed.method,
        "status": narrowed.status,
        "step": narrowed.step,
        "min_ms": None if narrowed.min_ms is None else _digits(narrowed.min_ms),
        "padding_above": padding,
        "above_p95": "1" if narrowed.above_p95 else "",
    }


def whole_number(text: str) -> int | None:
    """Return the number that ``text`` is, or None; more than 18 digits are none of ours."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _number(text: str) -> float | None:
    """Return the number above or at zero that ``text`` is, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= _FAR else None


def _digits(number: float) -> str:
    """Return a number as the form's fields take it: digits down to the nanosecond, no exponent."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _padding_share(detail: CallDetail) -> float:
    rows = detail.call.rows + detail.call.padding_rows
    return detail.call.padding_rows / rows if rows else 0.0


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
    """Return a step for the page's data block; JSON has no NaN and no infinity, so these are null in it."""
    metrics = [(name, value if math.isfinite(value) else None) for name, value in step.metrics]
    return {**asdict(step), "metrics": metrics}


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
