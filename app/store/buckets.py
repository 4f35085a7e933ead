"""Buckets of time: pure arithmetic behind the roll-ups.

A bucket of level ``k`` lasts ``4 ** k`` seconds and holds four of level ``k - 1``, so coarse levels are exact sums of
fine ones.
"""

from __future__ import annotations

from dataclasses import dataclass

FACTOR = 4
N_LEVELS = 6
BUCKET_NS = tuple(1_000_000_000 * FACTOR**level for level in range(N_LEVELS))
MAX_BUCKETS = 2000
_MOST_CELLS = 600_000


@dataclass(slots=True)
class Cell:
    """What fell into one bucket of one lane."""

    n: int = 0
    busy_ns: int = 0
    max_ns: int = 0
    max_call_id: int = 0
    err_n: int = 0

    def add(self, other: Cell) -> None:
        """Add what fell into a part of this bucket."""
        self.n += other.n
        self.busy_ns += other.busy_ns
        self.err_n += other.err_n
        if other.max_ns > self.max_ns:
            self.max_ns, self.max_call_id = other.max_ns, other.max_call_id


Cells = dict[tuple[int, int, int], Cell]
"""Cells by (level, lane, bucket)."""

Counts = dict[tuple[int, int, int, int], int]
"""Numbers of calls by (level, method, bucket, slot of their length)."""


def add_busy(cells: Cells, lane_id: int, began_ns: int, ended_ns: int) -> None:
    """Spread the time from ``began_ns`` to ``ended_ns`` over the finest buckets that it touches."""
    width = BUCKET_NS[0]
    first, last = began_ns // width, max(began_ns, ended_ns - 1) // width
    if first == last:
        _cell(cells, 0, lane_id, first).busy_ns += ended_ns - began_ns
        return
    _cell(cells, 0, lane_id, first).busy_ns += (first + 1) * width - began_ns
    for bucket in range(first + 1, last):
        _cell(cells, 0, lane_id, bucket).busy_ns += width
    _cell(cells, 0, lane_id, last).busy_ns += ended_ns - last * width


def add_span(cells: Cells, lane_id: int, began_ns: int, length_ns: int, call_id: int, failed: bool) -> None:
    """Count a span of ``length_ns`` in the finest bucket where it began; its busy time goes by ``add_busy``."""
    cell = _cell(cells, 0, lane_id, began_ns // BUCKET_NS[0])
    cell.n += 1
    cell.err_n += failed
    if length_ns > cell.max_ns:
        cell.max_ns, cell.max_call_id = length_ns, call_id


def add_run(cells: Cells, lane_id: int, began_ns: int, length_ns: int, call_id: int, failed: bool) -> None:
    """Count a span and spread its time: both in one, as nearly every span lies within one bucket."""
    width = BUCKET_NS[0]
    first = began_ns // width
    if began_ns + length_ns > (first + 1) * width:
        add_span(cells, lane_id, began_ns, length_ns, call_id, failed)
        add_busy(cells, lane_id, began_ns, began_ns + length_ns)
        return
    cell = _cell(cells, 0, lane_id, first)
    cell.n += 1
    cell.busy_ns += length_ns
    if failed:
        cell.err_n += 1
    if length_ns > cell.max_ns:
        cell.max_ns, cell.max_call_id = length_ns, call_id


def with_coarser(cells: Cells) -> Cells:
    """Return the finest cells together with those of every coarser level."""
    whole = dict(cells)
    below = cells
    for level in range(1, N_LEVELS):
        here: Cells = {}
        for (_, lane_id, bucket), cell in below.items():
            _cell(here, level, lane_id, bucket // FACTOR).add(cell)
        whole.update(here)
        below = here
    return whole


def counts_with_coarser(counts: Counts) -> Counts:
    """Return the finest counts together with those of every coarser level."""
    whole = dict(counts)
    below = counts
    for level in range(1, N_LEVELS):
        here: Counts = {}
        for (_, method_id, bucket, slot), n in below.items():
            key = (level, method_id, bucket // FACTOR, slot)
            here[key] = here.get(key, 0) + n
        whole.update(here)
        below = here
    return whole


def together(n_buckets: int, n_lanes: int) -> int:
    """Return how many buckets of the coarsest level are drawn as one, so that an answer's size has a bound."""
    return max(1, -(-n_buckets * n_lanes // _MOST_CELLS))


def level_for(window_ns: int, n_lanes: int, px: int) -> int:
    """Return the finest level whose buckets are neither too many for ``px`` pixels nor for an answer's size."""
    widest = min(MAX_BUCKETS, max(200, int(1.5 * px)), max(100, 60_000 // max(1, n_lanes)))
    for level, width in enumerate(BUCKET_NS):
        if window_ns <= width * widest:
            return level
    return N_LEVELS - 1


def _cell(cells: Cells, level: int, lane_id: int, bucket: int) -> Cell:
    key = (level, lane_id, bucket)
    cell = cells.get(key)
    if cell is None:
        cell = cells[key] = Cell()
    return cell
