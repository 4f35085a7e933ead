"""The window of a run as bars or as heat."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from typing import Any

from app.store.codes import RUNNING, STATUSES
from app.store.read_entities import events_query
from app.store.read_heat import heat_from_rolls, heat_from_spans
from app.store.row_query import RowQuery, ms
from app.store.texts import NAME
from app.store.windows import (
    MAX_RAW_SPANS,
    N_BEFORE,
    SpanRow,
    Window,
    driver_calls,
    running_spans,
    waited_from,
    window_of,
)
from web.rows import EventRow, Step
from web.source import MAX_BARS, Bars, DriverBars, Heat, Timeline

_N_MARKERS = 200
_MARKER = 500
MAX_STEPS_DRAWN = 400
MAX_STEPS_LISTED = 2_000
# Failed calls are seen as bars already.
_MARKED = "kind != 'call'"
_MARKERS = events_query(_MARKER)
_STEPS = RowQuery(Step, "step", columns={"index": "number"}, computed=("metrics",), also={"id": "id"})

_SPAN = "SELECT call_id, method_id, began_ns, ended_ns, submitted_ns, status FROM rank_span WHERE lane_id = ? AND"


def timeline(
    connection: sqlite3.Connection, from_ns: int, to_ns: int, run_ns: int, px: int, pruned_ns: int = 0
) -> Timeline:
    """Return the window, as bars when few enough spans are in it, as heat from spans or roll-ups otherwise.

    Before ``pruned_ns`` there are only roll-ups.
    """
    window = window_of(connection, from_ns, to_ns, run_ns)
    n_spans = _count(connection, window)
    methods, names = _methods(connection)
    bars, driver, heat, mode = Bars(), DriverBars(), Heat(), "heat"
    if n_spans > MAX_RAW_SPANS or from_ns < pruned_ns:
        heat, from_ns, to_ns = heat_from_rolls(connection, window, px)
    else:
        few = n_spans <= MAX_BARS
        spans, calls = (_spans(connection, window), driver_calls(connection, window)) if few else ([], [])
        if few and max(sum(map(len, spans)), len(calls)) <= MAX_BARS:
            mode = "bars"
            bars, driver = _bars(window, spans, methods), _driver_bars(window, calls, methods)
        else:
            heat = heat_from_spans(connection, window, px)
    return Timeline(
        from_ms=ms(from_ns),
        to_ms=ms(to_ns),
        run_ms=ms(run_ns),
        mode=mode,
        lanes=window.lanes,
        methods=names,
        bars=bars,
        driver=driver,
        heat=heat,
        steps=steps(connection, from_ns, to_ns, MAX_STEPS_DRAWN),
        markers=_markers(connection, from_ns, to_ns),
    )


def spans(connection: sqlite3.Connection, from_ns: int, to_ns: int, run_ns: int, pruned_ns: int = 0) -> Timeline | None:
    """Return the window with each of its spans, or None when they are too many to be read one by one, or pruned."""
    window = window_of(connection, from_ns, to_ns, run_ns)
    if from_ns < pruned_ns or _count(connection, window) > MAX_RAW_SPANS:
        return None
    methods, names = _methods(connection)
    return Timeline(
        from_ms=ms(from_ns),
        to_ms=ms(to_ns),
        run_ms=ms(run_ns),
        mode="bars",
        lanes=window.lanes,
        methods=names,
        bars=_bars(window, _spans(connection, window), methods),
        driver=_driver_bars(window, driver_calls(connection, window), methods),
        steps=steps(connection, from_ns, to_ns, MAX_STEPS_DRAWN),
        markers=_markers(connection, from_ns, to_ns),
    )


def steps(connection: sqlite3.Connection, from_ns: int | None, to_ns: int | None, most: int) -> tuple[Step, ...]:
    """Return the steps that a window touches, all of them without one.

    Of more than ``most`` steps every second, third or so is returned, and always the last: no figure shows more.
    """
    numbers = _steps_between(connection, from_ns, to_ns)
    if not numbers:
        return ()
    every = -(-len(numbers) // most)
    first = numbers[0] + -numbers[0] % every
    chosen = json.dumps([*range(first, numbers[-1], every), numbers[-1]])
    found = _STEPS.records(connection, "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id", (chosen,))
    metrics: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for step_id, name, value in connection.execute(
        "SELECT step_id, name, value FROM step_metric WHERE step_id IN (SELECT value FROM json_each(?))", (chosen,)
    ):
        metrics[step_id].append((name, float("nan") if value is None else value))
    return tuple(_STEPS.build(step, metrics=tuple(metrics[step["id"]])) for step in found)


def _steps_between(connection: sqlite3.Connection, from_ns: int | None, to_ns: int | None) -> range:
    """Return the ids of the steps that a window touches: one comes after another, so their ids are in order of time."""
    (first,), (last,) = (connection.execute(f"SELECT {end}(id) FROM step").fetchone() for end in ("min", "max"))
    if first is None:
        return range(0)
    ids = range(first, last + 1)

    def started(step_id: int) -> int:
        query = "SELECT started_ns FROM step WHERE id >= ? ORDER BY id LIMIT 1"
        return int(connection.execute(query, (step_id,)).fetchone()[0])

    below = 0 if from_ns is None else max(0, bisect_right(ids, from_ns, key=started) - 1)
    above = len(ids) if to_ns is None else bisect_right(ids, to_ns, key=started)
    if from_ns is not None and below < above:
        (ended_ns,) = connection.execute(
            "SELECT ended_ns FROM step WHERE id >= ? ORDER BY id LIMIT 1", (ids[below],)
        ).fetchone()
        below += ended_ns is not None and ended_ns < from_ns
    return ids[below:above]


def _methods(connection: sqlite3.Connection) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the place of each method's name, and the names; the last one stands for methods nobody announced."""
    rows = connection.execute(
        # An export has the name once per span.
        "SELECT m.id, substr(g.name || '.' || m.name, 1, ?) FROM method m JOIN worker_group g ON g.id = m.group_id "
        "ORDER BY m.id",
        (2 * NAME,),
    ).fetchall()
    places = {method_id: place for place, (method_id, _) in enumerate(rows)}
    return defaultdict(lambda: len(rows), places), (*(name for _, name in rows), "unknown")


def _count(connection: sqlite3.Connection, window: Window) -> int:
    """Return how many spans and calls began in the window, or some number above the bound as soon as it is passed."""
    bound = MAX_RAW_SPANS + 1
    (n_calls,) = connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM call WHERE started_ns BETWEEN ? AND ? LIMIT ?)",
        (window.from_ns, window.to_ns, bound),
    ).fetchone()
    n = 0
    for lane_id in window.lane_ids:
        if max(n, n_calls) >= bound:
            break
        n += connection.execute(
            "SELECT count(*) FROM (SELECT 1 FROM rank_span WHERE lane_id = ? AND began_ns BETWEEN ? AND ? LIMIT ?)",
            (lane_id, window.from_ns, window.to_ns, bound - n),
        ).fetchone()[0]
    return max(n, int(n_calls))


def _spans(connection: sqlite3.Connection, window: Window) -> list[list[SpanRow]]:
    """Return for each lane the spans that touch the window, those still running among them."""
    running = running_spans(connection, window)
    spans = []
    for lane_id, reach_ns in zip(window.lane_ids, window.reach_ns, strict=True):
        before = connection.execute(
            f"{_SPAN} began_ns >= ? AND began_ns < ? ORDER BY began_ns DESC LIMIT {N_BEFORE}",
            (lane_id, window.from_ns - reach_ns, window.from_ns),
        ).fetchall()
        rows = [row for row in reversed(before) if row[3] > window.from_ns]
        rows += connection.execute(
            f"{_SPAN} began_ns BETWEEN ? AND ? ORDER BY began_ns", (lane_id, window.from_ns, window.to_ns)
        )
        spans.append(rows + running.get(lane_id, []))
    return spans


def _bars(window: Window, spans: list[list[SpanRow]], methods: dict[int, int]) -> Bars:
    rows = [row for lane in spans for row in lane]
    return Bars(
        lane=[lane.index for lane, own in zip(window.lanes, spans, strict=True) for _ in own],
        call_id=[row[0] for row in rows],
        method=[methods[row[1]] for row in rows],
        start_ms=[ms(row[2]) for row in rows],
        end_ms=[ms(row[3]) for row in rows],
        queued_ms=[ms(max(0, row[2] - row[4])) for row in rows],
        status=[STATUSES[row[5]] for row in rows],
    )


def _driver_bars(window: Window, calls: list[tuple[Any, ...]], methods: dict[int, int]) -> DriverBars:
    return DriverBars(
        call_id=[row[0] for row in calls],
        method=[methods[row[1]] for row in calls],
        blocking=[bool(row[2]) for row in calls],
        start_ms=[ms(row[3]) for row in calls],
        gate_ms=[ms(row[4]) for row in calls],
        dispatch_ms=[ms(row[5]) for row in calls],
        execute_ms=[ms(row[6]) for row in calls],
        waited_from_ms=[ms(waited_from(row)) for row in calls],
        wait_ms=[ms(_waited(row, window.end_ns)) for row in calls],
        collect_ms=[ms(row[9]) for row in calls],
        unpad_ms=[ms(row[10]) for row in calls],
        status=[STATUSES[row[11]] for row in calls],
    )


def _waited(row: tuple[Any, ...], end_ns: int) -> int:
    """Return how long the driver waited for a call, up to now where it still does."""
    if row[11] == RUNNING and row[2]:
        return max(0, end_ns - waited_from(row))
    return int(row[8])


def _markers(connection: sqlite3.Connection, from_ns: int, to_ns: int) -> tuple[EventRow, ...]:
    newest = f"WHERE at_ns BETWEEN ? AND ? AND {_MARKED} ORDER BY at_ns DESC LIMIT ?"
    return _MARKERS.rows(connection, newest, (from_ns, to_ns, _N_MARKERS))[::-1]
