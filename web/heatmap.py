"""The page Latency: percentiles per method, and how long a method's calls took over time as a heat map."""

from __future__ import annotations

from dataclasses import asdict

from web.figures import figure_specs
from web.frame import Frame, render
from web.latency import LatencyMap, MethodLatency
from web.source import RunSource

PX = 1200
LAST_S = (60, 600, 3600)


def render_heatmap(source: RunSource, frame: Frame) -> str:
    """Return the page of the query's ``group``, ``method`` and ``last`` seconds; else of the slowest method."""
    run_ms = source.run().duration_ms
    last = frame.params.get("last", "")
    last_s = int(last) if last.isascii() and last.isdigit() and len(last) < 10 and int(last) > 0 else None
    from_ms = None if last_s is None else max(run_ms - last_s * 1000.0, 0.0)
    methods = source.latencies(from_ms, None)
    chosen = choose(methods, frame.params.get("group", ""), frame.params.get("method", ""))
    shown = None if chosen is None else source.latency_map(chosen.group, chosen.method, from_ms, None, PX)
    return render(
        "heatmap.html",
        frame,
        source,
        methods=sorted(methods, key=lambda one: -one.p95_ms),
        chosen=chosen,
        shown=shown,
        block=None if shown is None else asdict(shown),
        filled=filled_cells(shown),
        last_s=last_s,
        choices=LAST_S,
        specs=figure_specs(),
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
