"""The page Latency: percentiles per method, and over time a method's calls and its group's ranks as heat maps."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from web.figures import figure_specs
from web.frame import Content, Frame
from web.latency import LatencyMap, MethodLatency, RankMap
from web.source import RunSource

PX = 1200
# Cells of the map of ranks: more would make the page heavy, and no screen shows them.
_MOST_CELLS = 6_000
SLOW = 1.5
LAST_S = (60, 600, 3600)


def load_heatmap(source: RunSource, frame: Frame) -> Content:
    """Return the page of the query's ``group``, ``method`` and ``last`` seconds; else of the slowest method."""
    run_ms = source.run().duration_ms
    last = frame.params.get("last", "")
    last_s = int(last) if last.isascii() and last.isdigit() and len(last) < 10 and int(last) > 0 else None
    from_ms = None if last_s is None else max(run_ms - last_s * 1000.0, 0.0)
    methods = source.latencies(from_ms, None)
    chosen = choose(methods, frame.params.get("group", ""), frame.params.get("method", ""))
    ranks = None if chosen is None else source.rank_map(chosen.group, from_ms, None, px_for(source, chosen.group))
    shown = None if chosen is None else source.latency_map(chosen.group, chosen.method, from_ms, None, PX)
    return Content(
        methods=sorted(methods, key=lambda one: -one.p95_ms),
        chosen=chosen,
        shown=shown,
        block=None if shown is None else asdict(shown),
        filled=filled_cells(shown),
        rank_block=None if ranks is None or len(ranks.ranks) < 2 else asdict(ranks),
        rank_lines=rank_lines(ranks),
        last_s=last_s,
        choices=LAST_S,
        specs=None if frame.parts_only else figure_specs(),
    )


def choose(methods: tuple[MethodLatency, ...], group: str, method: str) -> MethodLatency | None:
    """Return the method that is asked for, else the one with the highest p95; None when there is none."""
    for one in methods:
        if (one.group, one.method) == (group, method):
            return one
    return max(methods, key=lambda one: one.p95_ms, default=None)


def filled_cells(shown: LatencyMap | None) -> list[tuple[float, float, float, int]]:
    """Return the rows of lengths that have calls, longest first: from, to, when the first of them began, how many."""
    if shown is None:
        return []
    found = []
    for i, counts in enumerate(shown.counts):
        n = sum(counts)
        if n:
            first = next(k for k, count in enumerate(counts) if count)
            found.append((shown.edges_ms[i], shown.edges_ms[i + 1], shown.from_ms + first * shown.bucket_ms, n))
    return found[::-1]


@dataclass(frozen=True, slots=True)
class RankLine:
    """A rank's worst buckets of time: how far above the median of the ranks, and its longest span, each with when."""

    rank: int
    worst: float
    worst_at_ms: float
    longest_ms: float
    longest_at_ms: float
    n_slow: int


def px_for(source: RunSource, group: str) -> int:
    """Return how wide a map of the group's ranks may be drawn."""
    n_ranks = len({worker.rank for worker in source.workers() if worker.group == group})
    return max(100, min(PX, _MOST_CELLS // max(n_ranks, 1)))


def rank_lines(shown: RankMap | None) -> list[RankLine]:
    """Return a line per rank that ran anything beside others, the one furthest above the median first."""
    if shown is None or len(shown.ranks) < 2:
        return []
    found = []
    for rank, longest, over in zip(shown.ranks, shown.longest_ms, shown.over_median, strict=True):
        worst, worst_at = max(((x, -k) for k, x in enumerate(over) if x is not None), default=(0.0, 0))
        most, most_at = max(((x, -k) for k, x in enumerate(longest) if x is not None), default=(0.0, 0))
        at_ms = [shown.from_ms - k * shown.bucket_ms for k in (worst_at, most_at)]
        n_slow = sum(x is not None and x >= SLOW for x in over)
        if worst:
            found.append(RankLine(rank, worst, at_ms[0], most, at_ms[1], n_slow))
    return sorted(found, key=lambda line: (-line.worst, line.rank))
