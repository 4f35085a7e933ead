"""The pages Timeline and Calls, and the page of one call: pure functions of a ``RunSource`` and of the request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from web.calls import CallDetail, CallFilter
from web.figures import figure_specs
from web.frame import Content, Frame
from web.phases import PHASES, shares_of_call
from web.source import RunSource
from web.spans import rank_rows

STATIC_DIR = Path(__file__).parent / "static"
CALLS_PER_PAGE = 100
N_ROWS_ABOVE_RANKS = 3
_FAR = 1e12
_YES = frozenset({"1", "true", "on"})
FILTER_NAMES = {
    "group": "group",
    "method": "method",
    "status": "status",
    "step": "step",
    "min_ms": "duration of at least (ms)",
    "padding_above": "padding above (%)",
    "above_p95": "slower than p95",
}
CALL_STATES = ("running", "ok", "error", "died", "cancelled")


def load_timeline(source: RunSource, frame: Frame) -> Content:
    """Return the timeline's page; the figure itself is drawn in the browser."""
    workers = source.workers()
    lanes = sorted({(worker.pool, worker.group, worker.rank) for worker in workers})
    n_rows = N_ROWS_ABOVE_RANKS + len({(pool, group) for pool, group, _ in lanes}) + len(lanes)
    return Content(lanes=lanes, n_rows=n_rows, specs=figure_specs(), phases=PHASES)


def load_call(source: RunSource, call_id: int) -> Content | None:
    """Return the page of one call, or None when the run has no such call."""
    detail = source.call(call_id)
    if detail is None:
        return None
    now_ms = source.run().duration_ms
    rows = rank_rows(detail, now_ms)
    is_running = detail.call.status == "running"
    began_ms = [row.span.started_ms for row in rows if row.span.started_ms is not None]
    ran_ms = [row.ran_ms for row in rows if row.ran_ms is not None]
    return Content(
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


def load_calls(source: RunSource, frame: Frame) -> Content:
    """Return a page of the list of calls, narrowed as ``call_filter`` reads the query, older than its ``cursor``."""
    narrowed = call_filter(frame.params)
    cursor = whole_number(frame.params.get("cursor", ""))
    page = source.calls(CALLS_PER_PAGE, cursor, narrowed)
    methods = source.overview().methods
    filters = filter_params(narrowed)
    return Content(
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


def call_filter(params: Mapping[str, str]) -> CallFilter:
    """Return the filter that a query asks for; an invalid number or state is ignored."""
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
    """Return the number that ``text`` is, or None; no id has more than 18 digits."""
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
