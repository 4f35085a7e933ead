"""Questions about how long calls take, answered from the histograms and never from the calls themselves."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from app.store.buckets import BUCKET_NS, N_LEVELS, level_for, together
from app.store.columns import read_columns
from app.store.histogram_bins import N_BINS, bin_from_ns, percentile_ns
from app.store.row_query import ms
from web.latency import LatencyMap, MethodLatency, RankMap

# Enough for the edges of a window to be sharp, few enough to add up at once.
_MOST_BUCKETS = 400


def latencies(connection: sqlite3.Connection, from_ns: int, to_ns: int) -> tuple[MethodLatency, ...]:
    """Return the percentiles of each method's calls that began in the window, by group and method."""
    methods = connection.execute(
        "SELECT m.id, g.name, m.name FROM method m JOIN worker_group g ON g.id = m.group_id ORDER BY g.name, m.name"
    ).fetchall()
    found = []
    for method_id, group, name in methods:
        counts = _counts(connection, method_id, from_ns, to_ns)
        if counts:
            percentiles = (percentile_ns(counts, share) / 1e6 for share in (0.5, 0.9, 0.95, 0.99))
            found.append(MethodLatency(group, name, sum(counts.values()), *percentiles))
    return tuple(found)


def p95_ns(connection: sqlite3.Connection, run_ns: int) -> dict[int, float]:
    """Return the p95 of each method's calls over the whole run, by the method's id."""
    methods = [method_id for (method_id,) in connection.execute("SELECT id FROM method ORDER BY id").fetchall()]
    counted = ((method_id, _counts(connection, method_id, 0, run_ns)) for method_id in methods)
    return {method_id: percentile_ns(counts, 0.95) for method_id, counts in counted if counts}


def _counts(connection: sqlite3.Connection, method_id: int, from_ns: int, to_ns: int) -> dict[int, int]:
    """Return how many of a method's calls that began in the window fell into each slot of length."""
    level = next(
        (level for level, width_ns in enumerate(BUCKET_NS) if to_ns - from_ns <= width_ns * _MOST_BUCKETS), N_LEVELS - 1
    )
    first, last = from_ns // BUCKET_NS[level], max(from_ns, to_ns - 1) // BUCKET_NS[level]
    return dict(
        connection.execute(
            "SELECT slot, sum(n) FROM latency WHERE level = ? AND method_id = ? AND bucket BETWEEN ? AND ? "
            "AND slot BETWEEN 0 AND ? GROUP BY slot",
            (level, method_id, first, last, N_BINS - 1),
        ).fetchall()
    )


def latency_map(
    connection: sqlite3.Connection, group: str, method: str, from_ns: int, to_ns: int, px: int
) -> LatencyMap | None:
    """Return a method's calls over time, or None when there is no such method."""
    row = connection.execute(
        "SELECT m.id FROM method m JOIN worker_group g ON g.id = m.group_id WHERE g.name = ? AND m.name = ?",
        (group, method),
    ).fetchone()
    if row is None:
        return None
    level = level_for(to_ns - from_ns, 1, px)
    width_ns = BUCKET_NS[level]
    first, last = from_ns // width_ns, max(from_ns, to_ns - 1) // width_ns
    every = together(last - first + 1, N_BINS)
    cells = connection.execute(
        "SELECT (bucket - ?) / ? AS place, slot, sum(n) FROM latency "
        "WHERE level = ? AND method_id = ? AND bucket BETWEEN ? AND ? AND slot BETWEEN 0 AND ? GROUP BY place, slot",
        (first, every, level, row[0], first, last, N_BINS - 1),
    ).fetchall()
    return _as_map(cells, ms(first * width_ns), -(-(last - first + 1) // every), width_ns * every)


def rank_map(connection: sqlite3.Connection, group: str, from_ns: int, to_ns: int, px: int) -> RankMap | None:
    """Return a group's ranks over time from the roll-ups, or None when there is no such group."""
    lanes = connection.execute(
        "SELECT l.id, l.rank FROM lane l JOIN worker_group g ON g.id = l.group_id WHERE g.name = ? ORDER BY l.rank",
        (group,),
    ).fetchall()
    if not lanes:
        return None
    level = level_for(to_ns - from_ns, len(lanes), px)
    width_ns = BUCKET_NS[level]
    first, last = from_ns // width_ns, max(from_ns, to_ns - 1) // width_ns
    every = together(last - first + 1, len(lanes))
    longest = np.full((len(lanes), -(-(last - first + 1) // every)), np.nan)
    for place, (lane_id, _) in enumerate(lanes):
        bucket, max_ns = read_columns(
            connection,
            ("bucket", "max_ns"),
            "roll WHERE level = ? AND lane_id = ? AND n > 0 AND bucket BETWEEN ? AND ?",
            (level, lane_id, first, last),
        )
        np.fmax.at(longest[place], (bucket - first) // every, max_ns.astype(np.float64))
    return RankMap(
        from_ms=ms(first * width_ns),
        bucket_ms=ms(width_ns * every),
        n_buckets=longest.shape[1],
        ranks=tuple(rank for _, rank in lanes),
        longest_ms=_or_none((longest / 1e6).round(3)),
        over_median=_or_none(_over_median(longest).round(2)),
    )


def _over_median(longest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each number by the median of its column, NaN where it is alone in it."""
    shared = (~np.isnan(longest)).sum(axis=0) > 1
    median = np.full(longest.shape[1], np.nan)
    median[shared] = np.nanmedian(longest[:, shared], axis=0)
    return longest / np.where(median > 0, median, np.nan)


def _or_none(table: NDArray[np.float64]) -> list[list[float | None]]:
    return [[None if number != number else number for number in row] for row in table.tolist()]


def _as_map(cells: list[tuple[int, int, int]], from_ms: float, n_buckets: int, width_ns: int) -> LatencyMap:
    """Return the map of ``cells``: (place of the bucket, slot, number of calls)."""
    if not cells:
        return LatencyMap(from_ms, ms(width_ns), n_buckets)
    by_bucket: dict[int, dict[int, int]] = defaultdict(dict)
    for bucket, slot, n in cells:
        by_bucket[bucket][slot] = n
    low, high = min(cell[1] for cell in cells), max(cell[1] for cell in cells)
    counts = np.zeros((high - low + 1, n_buckets), dtype=np.int64)
    columns = np.array(cells, dtype=np.int64).T
    counts[columns[1] - low, columns[0]] = columns[2]

    def over_time(share: float) -> list[float | None]:
        return [
            percentile_ns(by_bucket[bucket], share) / 1e6 if bucket in by_bucket else None
            for bucket in range(n_buckets)
        ]

    return LatencyMap(
        from_ms=from_ms,
        bucket_ms=ms(width_ns),
        n_buckets=n_buckets,
        edges_ms=[bin_from_ns(slot) / 1e6 for slot in range(low, high + 2)],
        counts=counts.tolist(),
        p50_ms=over_time(0.5),
        p95_ms=over_time(0.95),
        p99_ms=over_time(0.99),
    )
