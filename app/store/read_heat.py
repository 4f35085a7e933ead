"""A window of a run as heat: how busy each lane was in each bucket of time, from spans or from roll-ups."""

from __future__ import annotations

import sqlite3

import numpy as np
from numpy.typing import NDArray

from app.store.buckets import BUCKET_NS, MAX_BUCKETS, level_for, together
from app.store.columns import Column, join, read_columns
from app.store.windows import N_BEFORE, Window, calls_before, running_spans, waited_from
from web.source import Heat

_SPAN = ("call_id", "began_ns", "ended_ns")


def heat_from_spans(connection: sqlite3.Connection, window: Window, px: int) -> Heat:
    """Return the heat of every span that touches the window, the driver's first."""
    lanes = [_driver_spans(connection, window), *_lane_spans(connection, window)]
    n_buckets = max(100, min(MAX_BUCKETS, px, 60_000 // len(lanes)))
    width_ns = (window.to_ns - window.from_ns) / n_buckets
    shape = (len(lanes), n_buckets)
    call_id, began, ended = join(lanes, 3)
    place = np.repeat(np.arange(len(lanes)), [len(lane[0]) for lane in lanes])
    a, b = (began - window.from_ns) / width_ns, (ended - window.from_ns) / width_ns
    busy = coverage(place, a, b, shape)
    inside = (a >= 0) & (a < n_buckets)
    length_ns = (ended - began).astype(np.float64)
    longest, whose = _longest(place[inside], a[inside].astype(np.int64), length_ns[inside], call_id[inside], shape)
    return _heat(width_ns, busy, longest, whose)


def _lane_spans(connection: sqlite3.Connection, window: Window) -> list[list[Column]]:
    """Return for each lane call, beginning and end of its spans that touch the window, those still running too."""
    running = running_spans(connection, window)
    found = []
    for lane_id, reach_ns in zip(window.lane_ids, window.reach_ns, strict=True):
        inside = read_columns(
            connection,
            _SPAN,
            "rank_span WHERE lane_id = ? AND began_ns BETWEEN ? AND ?",
            (lane_id, window.from_ns, window.to_ns),
        )
        before = read_columns(
            connection,
            _SPAN,
            "(SELECT call_id, began_ns, ended_ns FROM rank_span WHERE lane_id = ? AND began_ns >= ? AND began_ns < ? "
            f"ORDER BY began_ns DESC LIMIT {N_BEFORE}) WHERE ended_ns > ?",
            (lane_id, window.from_ns - reach_ns, window.from_ns, window.from_ns),
        )
        rows = running.get(lane_id, [])
        now = np.array([(row[0], row[2], row[3]) for row in rows], dtype=np.int64).reshape(-1, 3).T
        found.append(join([before, inside, list(now)], 3))
    return found


def _driver_spans(connection: sqlite3.Connection, window: Window) -> list[Column]:
    """Return the driver's own time as spans: sending, and waiting until the result is there.

    A blocking call has the driver from the gate to its end, as the roll-ups count it.
    """
    sent = "started_ns + gate_ns"
    ended = f"CASE WHEN blocking THEN max({sent}, coalesce(ended_ns, ?)) ELSE {sent} + dispatch_ns + execute_ns END"
    inside = read_columns(
        connection,
        ("id", sent, ended),
        "call WHERE started_ns BETWEEN ? AND ?",
        (window.end_ns, window.from_ns, window.to_ns),
    )
    awaited = read_columns(
        connection,
        ("id", "awaited_ns", "awaited_ns + wait_ns + collect_ns + unpad_ns"),
        "call WHERE started_ns BETWEEN ? AND ? AND NOT blocking AND awaited_ns IS NOT NULL",
        (window.from_ns, window.to_ns),
    )
    before: list[tuple[int, int, int]] = []
    for row in calls_before(connection, window):
        sending_ns = row[3] + row[4]
        if row[2]:
            before.append((row[0], sending_ns, max(sending_ns, window.end_ns if row[12] is None else row[12])))
            continue
        before.append((row[0], sending_ns, sending_ns + row[5] + row[6]))
        if row[7] is not None:
            before.append((row[0], row[7], waited_from(row) + row[8] + row[9] + row[10]))
    return join([list(np.array(before, dtype=np.int64).reshape(-1, 3).T), inside, awaited], 3)


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


def heat_from_rolls(connection: sqlite3.Connection, window: Window, px: int) -> tuple[Heat, int, int]:
    """Return the heat, and the window widened to whole buckets."""
    from_ns, to_ns = max(0, window.from_ns), max(window.from_ns + 1, window.end_ns)
    level = level_for(to_ns - from_ns, len(window.lanes) + 1, px)
    width_ns = BUCKET_NS[level]
    first, last = from_ns // width_ns, (to_ns - 1) // width_ns
    every = together(last - first + 1, len(window.lanes) + 1)
    n_buckets = -(-(last - first + 1) // every)
    shape = (len(window.lanes) + 1, n_buckets)
    busy, longest = np.zeros(shape), np.zeros(shape)
    whose = np.zeros(shape, dtype=np.int64)
    for place, lane_id in enumerate((0, *window.lane_ids)):
        bucket, busy_ns, longest_ns, call_id = read_columns(
            connection,
            ("bucket", "busy_ns", "max_ns", "max_call_id"),
            "roll WHERE level = ? AND lane_id = ? AND bucket BETWEEN ? AND ?",
            (level, lane_id, first, last),
        )
        at = (bucket - first) // every
        np.add.at(busy[place], at, busy_ns / (width_ns * every))
        # Of several values for one place numpy keeps the last: the longest, in this order.
        order = np.argsort(longest_ns, kind="stable")
        longest[place, at[order]], whose[place, at[order]] = longest_ns[order], call_id[order]
    wide_ns = width_ns * every
    _add_running(connection, window, busy, first * width_ns, wide_ns)
    return _heat(wide_ns, busy, longest, whose), first * width_ns, first * width_ns + n_buckets * wide_ns


def _add_running(
    connection: sqlite3.Connection, window: Window, busy: NDArray[np.float64], first_ns: int, width_ns: int
) -> None:
    """Add to ``busy`` what is in flight: it reaches the roll-ups only when it ends."""
    places = {lane_id: place for place, lane_id in enumerate(window.lane_ids, start=1)}
    found = [(places[lane], span) for lane, spans in running_spans(connection, window).items() for span in spans]
    if found:
        lane = np.array([place for place, _ in found], dtype=np.int64)
        began = np.array([span[2] for _, span in found], dtype=np.float64)
        ended = np.array([span[3] for _, span in found], dtype=np.float64)
        busy += coverage(
            lane, (began - first_ns) / width_ns, (ended - first_ns) / width_ns, (busy.shape[0], busy.shape[1])
        )


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
