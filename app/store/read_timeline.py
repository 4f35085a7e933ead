"""The window of a run as bars or as heat."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.store.buckets import BUCKET_NS, MAX_BUCKETS, level_for
from app.store.codes import LEVELS, RUNNING, STATUSES
from app.store.read_calls import ms, running_lanes
from web.source import MAX_BARS, Bars, DriverBars, Happening, Heat, Lane, Step, Timeline

# Up to here spans are read one by one, past it the roll-ups answer.
MAX_RAW_SPANS = 20_000
# A rank seldom runs more at once; a span that began before the window and reaches into it is among the last so many.
_N_BEFORE = 64
_N_IN_FLIGHT = 1_000
_N_MARKERS = 200
MAX_STEPS_DRAWN = 400
MAX_STEPS_LISTED = 2_000
# Failed calls are seen as bars already.
_MARKED = "kind != 'call'"

_WHOLE = "SELECT call_id, method_id, began_ns, ended_ns, submitted_ns, status"
# All that heat needs: ten thousand rows of three numbers take half the time of six.
_SLIM = "SELECT call_id, began_ns, ended_ns"
_CALL = (
    "SELECT id, method_id, blocking, started_ns, gate_ns, dispatch_ns, execute_ns, awaited_ns, wait_ns, collect_ns, "
    "unpad_ns, status, ended_ns FROM call WHERE "
)


@dataclass(frozen=True, slots=True)
class _Window:
    """The window asked for, and what every part of the answer needs. Times in ns since the run's start."""

    from_ns: int
    to_ns: int
    run_ns: int
    lanes: tuple[Lane, ...]
    lane_ids: tuple[int, ...]
    reach_ns: tuple[int, ...]

    @property
    def end_ns(self) -> int:
        """Where a span still running is cut: nothing is known of later."""
        return max(self.from_ns, min(self.to_ns, self.run_ns))


# A row of a span: call, method, began, ended, submitted (ns), status. Thousands of them go by at a time, so they stay
# the tuples that SQLite made. A slim row: call, began, ended.
_SpanRow = tuple[int, int, int, int, int, int]
_SlimRow = tuple[int, int, int]


def timeline(
    connection: sqlite3.Connection, from_ns: int, to_ns: int, run_ns: int, px: int, pruned_ns: int = 0
) -> Timeline:
    """Return the window, as bars when few enough spans are in it, as heat from spans or roll-ups otherwise.

    Before ``pruned_ns`` there are only roll-ups.
    """
    window = _window(connection, from_ns, to_ns, run_ns)
    n_spans = _count(connection, window)
    methods, names = _methods(connection)
    bars, driver, heat, mode = Bars(), DriverBars(), Heat(), "heat"
    if n_spans > MAX_RAW_SPANS or from_ns < pruned_ns:
        heat, from_ns, to_ns = _heat_from_rolls(connection, window, px)
    else:
        calls = _driver_calls(connection, window)
        few = n_spans <= MAX_BARS
        spans = _spans(connection, window) if few else []
        if few and max(sum(map(len, spans)), len(calls)) <= MAX_BARS:
            mode = "bars"
            bars, driver = _bars(window, spans, methods), _driver_bars(window, calls, methods)
        else:
            heat = _heat_from_spans(window, [_driver_spans(window, calls), *_slim_spans(connection, window)], px)
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


def steps(connection: sqlite3.Connection, from_ns: int | None, to_ns: int | None, most: int) -> tuple[Step, ...]:
    """Return the steps that a window touches, all of them without one.

    Of more than ``most`` steps every second, third or so is returned, and always the last: no figure shows more.
    """
    window = "(? IS NULL OR started_ns <= ?) AND (? IS NULL OR ended_ns IS NULL OR ended_ns >= ?)"
    values = (to_ns, to_ns, from_ns, from_ns)
    n_steps, first, last = connection.execute(
        f"SELECT count(*), min(id), max(id) FROM step WHERE {window}", values
    ).fetchone()
    if not n_steps:
        return ()
    every = -(-n_steps // most)
    rows = connection.execute(
        f"SELECT id, number, total, started_ns, ended_ns FROM step WHERE {window} "
        "AND (id % ? = 0 OR id = ?) ORDER BY id",
        (*values, every, last),
    ).fetchall()
    metrics: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for step_id, name, value in connection.execute(
        "SELECT step_id, name, value FROM step_metric WHERE step_id BETWEEN ? AND ? "
        "AND (step_id % ? = 0 OR step_id = ?)",
        (first, last, every, last),
    ):
        metrics[step_id].append((name, float("nan") if value is None else value))
    return tuple(
        Step(row[1], row[2], ms(row[3]), None if row[4] is None else ms(row[4]), tuple(metrics[row[0]])) for row in rows
    )


def _window(connection: sqlite3.Connection, from_ns: int, to_ns: int, run_ns: int) -> _Window:
    rows = connection.execute(
        "SELECT l.id, p.name, g.name, l.rank, coalesce(w.node, ''), coalesce(w.pid, 0), l.longest_ns FROM lane l "
        "JOIN worker_group g ON g.id = l.group_id JOIN pool p ON p.id = g.pool_id "
        "LEFT JOIN worker w ON w.id = (SELECT max(id) FROM worker WHERE lane_id = l.id) ORDER BY p.id, g.id, l.rank"
    ).fetchall()
    return _Window(
        from_ns,
        to_ns,
        run_ns,
        # The driver's own lane comes first, as number 0.
        tuple(Lane(index, *row[1:6]) for index, row in enumerate(rows, start=1)),
        tuple(row[0] for row in rows),
        tuple(row[6] for row in rows),
    )


def _methods(connection: sqlite3.Connection) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the place of each method's name, and the names; the last one stands for methods nobody announced."""
    rows = connection.execute(
        "SELECT m.id, g.name || '.' || m.name FROM method m JOIN worker_group g ON g.id = m.group_id ORDER BY m.id"
    ).fetchall()
    places = {method_id: place for place, (method_id, _) in enumerate(rows)}
    return defaultdict(lambda: len(rows), places), (*(name for _, name in rows), "unknown")


def _count(connection: sqlite3.Connection, window: _Window) -> int:
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


def _spans(connection: sqlite3.Connection, window: _Window) -> list[list[_SpanRow]]:
    """Return for each lane the spans that touch the window, those still running among them."""
    running = _running(connection, window)
    return [rows + running.get(lane_id, []) for lane_id, rows in _read_spans(connection, window, _WHOLE, 3)]


def _slim_spans(connection: sqlite3.Connection, window: _Window) -> list[list[_SlimRow]]:
    """Return the same spans with no more than heat needs."""
    running = _running(connection, window)
    found: list[list[_SlimRow]] = []
    for lane_id, rows in _read_spans(connection, window, _SLIM, 2):
        found.append(rows + [(row[0], row[2], row[3]) for row in running.get(lane_id, [])])
    return found


def _read_spans(
    connection: sqlite3.Connection, window: _Window, select: str, ended: int
) -> Iterator[tuple[int, list[Any]]]:
    """Yield for each lane its spans on file that touch the window; column ``ended`` of ``select`` is their end."""
    query = f"{select} FROM rank_span WHERE lane_id = ? AND"
    for lane_id, reach_ns in zip(window.lane_ids, window.reach_ns, strict=True):
        before = connection.execute(
            f"{query} began_ns >= ? AND began_ns < ? ORDER BY began_ns DESC LIMIT {_N_BEFORE}",
            (lane_id, window.from_ns - reach_ns, window.from_ns),
        ).fetchall()
        inside = connection.execute(
            f"{query} began_ns BETWEEN ? AND ? ORDER BY began_ns", (lane_id, window.from_ns, window.to_ns)
        ).fetchall()
        yield lane_id, [row for row in reversed(before) if row[ended] > window.from_ns] + inside


def _running(connection: sqlite3.Connection, window: _Window) -> dict[int, list[_SpanRow]]:
    """Return for each lane what it has been sent and has not answered, as spans up to now."""
    calls = connection.execute(
        "SELECT id, method_id, started_ns + gate_ns FROM call WHERE status = 0 AND status != 1 "
        "AND started_ns <= ? ORDER BY id DESC LIMIT ?",
        (window.to_ns, min(_N_IN_FLIGHT, max(10, MAX_RAW_SPANS // max(1, len(window.lanes))))),
    ).fetchall()
    running: dict[int, list[_SpanRow]] = defaultdict(list)
    for call_id, method_id, sent_ns in reversed(calls):
        for lane_id, _ in running_lanes(connection, call_id):
            running[lane_id].append((call_id, method_id, sent_ns, max(sent_ns, window.end_ns), sent_ns, RUNNING))
    return running


def _driver_calls(connection: sqlite3.Connection, window: _Window) -> list[tuple[Any, ...]]:
    """Return the calls whose driver's part may touch the window, oldest first."""
    before = connection.execute(
        f"{_CALL} started_ns < ? ORDER BY started_ns DESC LIMIT {_N_BEFORE}", (window.from_ns,)
    ).fetchall()
    running = connection.execute(
        f"{_CALL} status = 0 AND status != 1 AND started_ns < ? ORDER BY id DESC LIMIT {_N_IN_FLIGHT}",
        (window.from_ns,),
    ).fetchall()
    reaching = {row[0]: row for row in (*before, *running) if _reaches(row, window.from_ns)}
    inside = connection.execute(
        f"{_CALL} started_ns BETWEEN ? AND ? ORDER BY started_ns", (window.from_ns, window.to_ns)
    ).fetchall()
    return [row for _, row in sorted(reaching.items())] + inside


def _bars(window: _Window, spans: list[list[_SpanRow]], methods: dict[int, int]) -> Bars:
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


def _driver_bars(window: _Window, calls: list[tuple[Any, ...]], methods: dict[int, int]) -> DriverBars:
    return DriverBars(
        call_id=[row[0] for row in calls],
        method=[methods[row[1]] for row in calls],
        blocking=[bool(row[2]) for row in calls],
        start_ms=[ms(row[3]) for row in calls],
        gate_ms=[ms(row[4]) for row in calls],
        dispatch_ms=[ms(row[5]) for row in calls],
        execute_ms=[ms(row[6]) for row in calls],
        waited_from_ms=[ms(_waited_from(row)) for row in calls],
        wait_ms=[ms(_waited(row, window.end_ns)) for row in calls],
        collect_ms=[ms(row[9]) for row in calls],
        unpad_ms=[ms(row[10]) for row in calls],
        status=[STATUSES[row[11]] for row in calls],
    )


def _waited_from(row: tuple[Any, ...]) -> int:
    """Return when the driver began to wait for a call."""
    sent_ns = row[3] + row[4] + row[5] + row[6]
    return int(sent_ns if row[2] or row[7] is None else row[7])


def _reaches(row: tuple[Any, ...], from_ns: int) -> bool:
    """Say whether a call goes on past ``from_ns``; a future may be asked for its value long after the call's end."""
    return row[12] is None or row[12] > from_ns or _waited_from(row) + row[8] + row[9] + row[10] > from_ns


def _waited(row: tuple[Any, ...], end_ns: int) -> int:
    """Return how long the driver waited for a call, up to now where it still does."""
    if row[11] == RUNNING and row[2]:
        return max(0, end_ns - _waited_from(row))
    return int(row[8])


def _driver_spans(window: _Window, calls: list[tuple[Any, ...]]) -> list[_SlimRow]:
    """Return the driver's own time as spans: sending, and waiting until the result is there."""
    spans: list[_SlimRow] = []
    for row in calls:
        sending_ns = row[3] + row[4]
        if row[2]:
            # A blocking call has the driver from the gate to its end, as the roll-ups count it.
            ended_ns = max(sending_ns, window.end_ns if row[12] is None else row[12])
            spans.append((row[0], sending_ns, ended_ns))
            continue
        spans.append((row[0], sending_ns, sending_ns + row[5] + row[6]))
        if row[7] is not None:
            spans.append((row[0], row[7], row[7] + row[8] + row[9] + row[10]))
    return spans


def _heat_from_spans(window: _Window, spans: list[list[_SlimRow]], px: int) -> Heat:
    """Return the heat of ``spans``, the driver's first."""
    n_buckets = max(100, min(MAX_BUCKETS, px, 60_000 // len(spans)))
    width_ns = (window.to_ns - window.from_ns) / n_buckets
    shape = (len(spans), n_buckets)
    n_numbers = 3 * sum(map(len, spans))
    numbers = chain.from_iterable(chain.from_iterable(spans))
    call_id, began, ended = np.fromiter(numbers, dtype=np.int64, count=n_numbers).reshape(-1, 3).T
    place = np.repeat(np.arange(len(spans)), [len(lane) for lane in spans])
    a, b = (began - window.from_ns) / width_ns, (ended - window.from_ns) / width_ns
    busy = coverage(place, a, b, shape)
    inside = (a >= 0) & (a < n_buckets)
    length_ns = (ended - began).astype(np.float64)
    longest, whose = _longest(place[inside], a[inside].astype(np.int64), length_ns[inside], call_id[inside], shape)
    return _heat(width_ns, busy, longest, whose)


def coverage(
    lane: NDArray[np.int64], a: NDArray[np.float64], b: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Return for each lane and bucket how much of it the spans ``[a, b)`` cover, all in units of a bucket.

    Each span adds 1 from the bucket where it begins to the one before its last, less the part of its first bucket
    before it, plus the part of its last bucket that it reaches into; so a long span costs no more than a short one.
    """
    n_buckets = shape[1]
    a, b = np.clip(a, 0, n_buckets), np.clip(b, 0, n_buckets)
    first, last = a.astype(np.int64), b.astype(np.int64)
    turns = np.zeros((shape[0], n_buckets + 1))
    parts = np.zeros_like(turns)
    np.add.at(turns, (lane, first), 1.0)
    np.add.at(turns, (lane, last), -1.0)
    np.add.at(parts, (lane, first), first - a)
    np.add.at(parts, (lane, last), b - last)
    covered: NDArray[np.float64] = (np.cumsum(turns, axis=1) + parts)[:, :n_buckets]
    return covered


def _longest(
    lane: NDArray[np.int64],
    bucket: NDArray[np.int64],
    length_ns: NDArray[np.float64],
    call_id: NDArray[np.int64],
    shape: tuple[int, int],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the longest span that began in each bucket, and its call."""
    longest, whose = np.zeros(shape), np.zeros(shape, dtype=np.int64)
    # Of several values for one place numpy keeps the last: the longest, in this order.
    order = np.argsort(length_ns, kind="stable")
    longest[lane[order], bucket[order]] = length_ns[order]
    whose[lane[order], bucket[order]] = call_id[order]
    return longest, whose


def _heat_from_rolls(connection: sqlite3.Connection, window: _Window, px: int) -> tuple[Heat, int, int]:
    """Return the heat, and the window widened to whole buckets."""
    from_ns, to_ns = max(0, window.from_ns), max(window.from_ns + 1, window.end_ns)
    level = level_for(to_ns - from_ns, len(window.lanes) + 1, px)
    width_ns = BUCKET_NS[level]
    first, last = from_ns // width_ns, (to_ns - 1) // width_ns
    shape = (len(window.lanes) + 1, last - first + 1)
    busy, longest = np.zeros(shape), np.zeros(shape)
    whose = np.zeros(shape, dtype=np.int64)
    for place, lane_id in enumerate((0, *window.lane_ids)):
        rows = connection.execute(
            "SELECT bucket, busy_ns, max_ns, max_call_id FROM roll WHERE level = ? AND lane_id = ? "
            "AND bucket BETWEEN ? AND ?",
            (level, lane_id, first, last),
        ).fetchall()
        if rows:
            columns = np.array(rows, dtype=np.int64).T
            at = columns[0] - first
            busy[place, at], longest[place, at], whose[place, at] = columns[1] / width_ns, columns[2], columns[3]
    _add_running(connection, window, busy, first, width_ns)
    return _heat(width_ns, busy, longest, whose), first * width_ns, (last + 1) * width_ns


def _add_running(
    connection: sqlite3.Connection, window: _Window, busy: NDArray[np.float64], first: int, width_ns: int
) -> None:
    """Add to ``busy`` what is in flight: it reaches the roll-ups only when it ends."""
    places = {lane_id: place for place, lane_id in enumerate(window.lane_ids, start=1)}
    found = [(places[lane], span) for lane, spans in _running(connection, window).items() for span in spans]
    if found:
        lane = np.array([place for place, _ in found], dtype=np.int64)
        began = np.array([span[2] for _, span in found], dtype=np.float64)
        ended = np.array([span[3] for _, span in found], dtype=np.float64)
        busy += coverage(lane, began / width_ns - first, ended / width_ns - first, (busy.shape[0], busy.shape[1]))


def _heat(
    width_ns: float, busy: NDArray[np.float64], longest_ns: NDArray[np.float64], whose: NDArray[np.int64]
) -> Heat:
    return Heat(
        bucket_ms=width_ns / 1e6,
        n_buckets=busy.shape[1],
        # Two calls at once on a rank make it no busier than busy.
        busy=np.clip(busy, 0.0, 1.0).round(4).tolist(),
        max_ms=(longest_ns / 1e6).round(6).tolist(),
        max_call_id=whose.tolist(),
    )


def _markers(connection: sqlite3.Connection, from_ns: int, to_ns: int) -> tuple[Happening, ...]:
    rows = connection.execute(
        f"SELECT id, at_ns, level, kind, text FROM event WHERE at_ns BETWEEN ? AND ? AND {_MARKED} "
        "ORDER BY at_ns DESC LIMIT ?",
        (from_ns, to_ns, _N_MARKERS),
    ).fetchall()
    return tuple(Happening(row[0], ms(row[1]), LEVELS[row[2]], row[3], row[4]) for row in reversed(rows))
