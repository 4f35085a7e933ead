"""How long calls take: percentiles per method, and how they move over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MethodLatency:
    """Percentiles of a method's ended calls, from a histogram whose slots are a quarter of an octave: 10 % off at most.

    A call's time counts from when the driver made it, a wait at the pool's gate included.
    """

    group: str
    method: str
    n_calls: int
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class LatencyMap:
    """A method's calls by when they began and how long they took.

    ``counts`` has a row per slot of length, shortest first, each of ``n_buckets`` numbers; row ``i`` counts lengths in
    ``[edges_ms[i], edges_ms[i + 1])``. The percentiles have a number per bucket, None where no call began.
    """

    from_ms: float
    bucket_ms: float
    n_buckets: int
    edges_ms: Sequence[float] = ()
    counts: Sequence[Sequence[int]] = ()
    p50_ms: Sequence[float | None] = ()
    p95_ms: Sequence[float | None] = ()
    p99_ms: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class RankMap:
    """A group's ranks over time, by the longest span of any method that began in each bucket.

    The tables have a row per rank, each of ``n_buckets`` numbers, None where no span of the rank began.
    ``over_median`` is ``longest_ms`` by the median of the ranks in that bucket, None also where a rank was alone in it.
    """

    from_ms: float
    bucket_ms: float
    n_buckets: int
    ranks: Sequence[int] = ()
    longest_ms: Sequence[Sequence[float | None]] = ()
    over_median: Sequence[Sequence[float | None]] = ()


class LatencySource(Protocol):
    """Answers about how long calls take. Every method may be called from several threads at once."""

    def latencies(self, from_ms: float | None, to_ms: float | None) -> tuple[MethodLatency, ...]:
        """Return the percentiles of each method's calls that began in a window, by group and method.

        The window is widened to whole buckets of time; None is the run's start or its end.
        """
        ...

    def latency_map(
        self, group: str, method: str, from_ms: float | None, to_ms: float | None, px: int
    ) -> LatencyMap | None:
        """Return a method's calls over time for a figure ``px`` wide, or None when there is no such method."""
        ...

    def rank_map(self, group: str, from_ms: float | None, to_ms: float | None, px: int) -> RankMap | None:
        """Return a group's ranks over time for a figure ``px`` wide, or None when there is no such group."""
        ...
