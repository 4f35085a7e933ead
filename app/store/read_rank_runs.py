"""The run times of each method's last calls, rank by rank, from a bounded number of spans."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

import numpy as np

from app.store.codes import OK, SAID_END, SAID_START
from app.store.columns import Column, read_columns
from web.rank_runs import MethodRuns

# Enough for verdicts, few enough to read at each visit.
MOST_SPANS = 16_000
MOST_RANKS = 64
_LEAST_PER_LANE, _MOST_PER_LANE = 64, 2_000
_REPORTED = SAID_START | SAID_END
_COLUMNS = ("call_id", "began_ns", "ended_ns", "method_id", "rows_in", "bytes_in", "clock_error_ns")
_Lane = tuple[int, int, int, int]


def rank_runs(connection: sqlite3.Connection) -> tuple[MethodRuns, ...]:
    """Return the last calls of the methods that more than one rank executes, as far back as ``MOST_SPANS`` allow.

    Only calls that ended well on all ranks that executed the method last are returned, with reported times.
    """
    groups: dict[tuple[int, str], list[_Lane]] = defaultdict(list)
    for group_id, name, *lane in connection.execute(
        "SELECT g.id, g.name, l.id, l.rank, l.lost_ns, l.streak FROM lane l JOIN worker_group g ON g.id = l.group_id "
        "WHERE l.n_calls > 0 AND (g.world_size = 0 OR l.rank < g.world_size) ORDER BY g.id, l.rank"
    ):
        groups[group_id, name].append((lane[0], lane[1], lane[2], lane[3]))
    chosen = {key: _chosen(lanes) for key, lanes in groups.items()}
    n_lanes = sum(map(len, chosen.values()))
    limit = min(max(MOST_SPANS // max(n_lanes, 1), _LEAST_PER_LANE), _MOST_PER_LANE)
    methods = dict(connection.execute("SELECT id, name FROM method").fetchall())
    found = []
    for (group_id, name), lanes in chosen.items():
        spans = [_spans(connection, lane[0], limit) for lane in lanes]
        for method_id in sorted(set(np.concatenate([span[3] for span in spans]).tolist()) & methods.keys()):
            own = [[column[span[3] == method_id] for column in span] for span in spans]
            runs = _method_runs(name, methods[method_id], len(groups[group_id, name]), lanes, own)
            if runs is not None:
                found.append(runs)
    return tuple(found)


def _chosen(lanes: list[_Lane]) -> list[_Lane]:
    """Return the lanes to compare: of many those that lost most, those slowest of late, and an even sample."""
    if len(lanes) <= MOST_RANKS:
        return lanes
    by_lost = sorted(lanes, key=lambda lane: -lane[2])[: MOST_RANKS // 4]
    by_streak = sorted(lanes, key=lambda lane: -lane[3])[: MOST_RANKS // 4]
    chosen = {*by_lost, *by_streak}
    rest = [lane for lane in lanes if lane not in chosen]
    n_free = MOST_RANKS - len(chosen)
    chosen.update(rest[place * len(rest) // n_free] for place in range(n_free))
    return sorted(chosen, key=lambda lane: lane[1])


def _spans(connection: sqlite3.Connection, lane_id: int, limit: int) -> list[Column]:
    """Return the columns of a lane's last spans that ended well and that the worker reported."""
    *columns, reported = read_columns(
        connection,
        (*_COLUMNS, f"said = {_REPORTED} AND status = {OK}"),
        "(SELECT * FROM rank_span WHERE lane_id = ? ORDER BY began_ns DESC LIMIT ?)",
        (lane_id, limit),
    )
    return [column[reported == 1] for column in columns]


def _method_runs(
    group: str, method: str, n_ranks: int, lanes: list[_Lane], spans: list[list[Column]]
) -> MethodRuns | None:
    """Return the calls that all ranks of the method's last call answered; None when it has fewer than two."""
    last = max((int(span[0].max()) for span in spans if span[0].size), default=0)
    places = [place for place, span in enumerate(spans) if last in span[0]]
    if len(places) < 2:
        return None
    calls, counts = np.unique(np.concatenate([span[0] for span in spans]), return_counts=True)
    calls = calls[counts == len(places)]
    for place in places:
        calls = np.intersect1d(calls, spans[place][0], assume_unique=True)
    columns: list[list[Column]] = [[] for _ in _COLUMNS]
    for place in places:
        order = np.argsort(spans[place][0])
        rows = order[np.searchsorted(spans[place][0], calls, sorter=order)]
        for column, values in zip(columns, spans[place], strict=True):
            column.append(values[rows])
    _, began, ended, _, n_rows, n_bytes, error = (np.stack(column, axis=1).astype(np.float64) for column in columns)
    return MethodRuns(
        group=group,
        method=method,
        n_ranks=n_ranks,
        ranks=tuple(lanes[place][1] for place in places),
        call_id=calls,
        run_ms=(ended - began) / 1e6,
        ended_ms=ended / 1e6,
        rows=n_rows,
        bytes=n_bytes,
        clock_error_ms=error.max(axis=0) / 1e6,
    )
