"""Which ranks are slow, and why: verdicts from the run times of each method's last calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from web.rank_runs import MethodRuns, Numbers
from web.slowness import (
    FALSE_ALARMS,
    LEAST_EFFECT,
    LEAST_MS,
    correlation_calls,
    evidence,
    least_calls,
    scores,
    windows,
)

# A single call this many times as long as the median is worth a line of its own.
ONE_OFF = 2.0
MOST_ONE_OFFS = MOST_EARLY = 3
_MOSTLY = 0.5
_OF_NODE = 0.75
_TOGETHER = 0.01

Nodes = Mapping[tuple[str, int], str]


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slower than the others by more than chance and ``LEAST_EFFECT``.

    ``cause`` is "rank", "node" (most ranks on its node are slow), or "input" (it got more rows or bytes, and is not
    slow for that). ``ratio`` is the median over the ``n_calls`` since ``since_ms`` of its run time by the median of the
    other ranks', ``input_ratio`` the same of what it was sent. ``from_start`` says that it was slow already in the
    first call that was looked at. ``z`` is the evidence in standard errors.
    """

    rank: int
    node: str
    cause: str
    ratio: float
    input_ratio: float
    n_calls: int
    n_slower: int
    since_ms: float
    since_call: int
    from_start: bool
    is_ongoing: bool
    lost_ms: float
    z: float


@dataclass(frozen=True, slots=True)
class OneOff:
    """A single call in which a rank took at least ``ONE_OFF`` times the median of its ranks."""

    rank: int
    call_id: int
    at_ms: float
    run_ms: float
    median_ms: float


@dataclass(frozen=True, slots=True)
class MethodVerdict:
    """What the run times of a method say.

    ``state`` is "slow" (``slow`` has the ranks), "rotating" (in most calls some rank is slow, but not the same one),
    "even", or "few" (``n_calls`` of ``least_calls`` so far). ``n_behind`` is in how many calls some rank was slower
    than the median by more than the least effect; ``lost_ms`` is what the ranks took above the median.
    ``finish_together`` says that all ranks end at the same time, as they do when the method waits for the others in a
    collective: a slow rank then cannot be seen in the run times. ``early`` are ranks that run longer than the others by
    more than chance, but start so early that they do not finish late: they are slow, or wait for others.
    """

    group: str
    method: str
    state: str
    n_ranks: int
    n_calls: int
    least_calls: int
    n_behind: int
    lost_ms: float
    finish_together: bool
    slow: tuple[SlowRank, ...] = ()
    early: tuple[SlowRank, ...] = ()
    one_offs: tuple[OneOff, ...] = ()


def verdicts(all_runs: Sequence[MethodRuns], nodes: Nodes) -> tuple[MethodVerdict, ...]:
    """Return a verdict per method, slow ones first; ``nodes`` has the node of a rank of a group."""
    n_ranks = sum(runs.n_ranks for runs in all_runs)
    found = [verdict(runs, nodes, n_ranks) for runs in all_runs]
    return tuple(sorted(found, key=lambda one: (one.state != "slow", -one.lost_ms, one.group, one.method)))


def verdict(runs: MethodRuns, nodes: Nodes, n_looked_at: int) -> MethodVerdict:
    """Return the verdict on one method; ``n_looked_at`` is the number of ranks of all methods that are looked at."""
    score = scores(runs.run_ms)
    time_calls = correlation_calls(runs.run_ms) if runs.n_calls > 1 else 1.0
    least = least_calls(len(runs.ranks), time_calls)
    together = _finish_together(runs)
    found, early = _slow_ranks(runs, nodes, score, time_calls, windows(runs.n_calls, least), n_looked_at)
    median_ms = np.median(runs.run_ms, axis=1, keepdims=True)
    behind = (runs.run_ms > median_ms * (1 + LEAST_EFFECT) + LEAST_MS).any(axis=1)
    state = "slow" if found else "few" if runs.n_calls < least else "rotating" if behind.mean() > _MOSTLY else "even"
    return MethodVerdict(
        group=runs.group,
        method=runs.method,
        state=state,
        n_ranks=runs.n_ranks,
        n_calls=runs.n_calls,
        least_calls=least,
        n_behind=int(behind.sum()),
        lost_ms=float(np.maximum(runs.run_ms - median_ms, 0).sum()),
        finish_together=together,
        slow=_by_node(found, runs, nodes),
        early=() if together else _by_node(early, runs, nodes)[:MOST_EARLY],
        one_offs=_one_offs(runs, median_ms),
    )


def _slow_ranks(
    runs: MethodRuns, nodes: Nodes, score: Numbers, time_calls: float, sizes: list[int], n_looked_at: int
) -> tuple[list[SlowRank], list[SlowRank]]:
    """Return the ranks that are slow by run time and finish late, and those that do not finish late.

    Those slow for their input are marked. A rank that starts early and then waits for the others runs long, but does
    not finish late: that does not make it slow.
    """
    if not sizes:
        return [], []
    critical = NormalDist().inv_cdf(1 - FALSE_ALARMS / (n_looked_at * len(sizes)))

    def significant(score: Numbers) -> tuple[NDArray[np.bool_], Numbers]:
        z = np.array([evidence(score[-size:], time_calls) for size in sizes])
        return z > critical, z

    by_run, z = significant(score)
    if not by_run.any():
        return [], []
    # From the first rank's start, and at the earliest that its clock allows.
    late_ms = runs.ended_ms - runs.started_ms.min(axis=1, keepdims=True)
    by_end, _ = significant(scores(late_ms - runs.clock_error_ms, late_ms))
    by_input, _ = significant(scores(runs.run_ms / np.maximum(_input_ratio(runs), 1.0)))
    late, early = by_run & by_end, by_run & ~by_end & by_input

    def described(places: NDArray[np.intp], of: NDArray[np.bool_]) -> list[SlowRank]:
        found = []
        for place in places:
            window = int(np.flatnonzero(of[:, place])[np.argmax(z[of[:, place], place])])
            cause = "rank" if (of & by_input)[:, place].any() else "input"
            found.append(_slow_rank(runs, nodes, score, int(place), sizes[window], float(z[window, place]), cause))
        return found

    is_late = late.any(axis=0)
    return described(np.flatnonzero(is_late), late), described(np.flatnonzero(early.any(axis=0) & ~is_late), early)


def _finish_together(runs: MethodRuns) -> bool:
    median_ms = np.maximum(np.median(runs.run_ms, axis=1), 1e-6)
    return bool(np.median(np.ptp(runs.ended_ms, axis=1) / median_ms) < _TOGETHER)


def _slow_rank(runs: MethodRuns, nodes: Nodes, score: Numbers, place: int, size: int, z: float, cause: str) -> SlowRank:
    first, end = _stretch(score[:, place] - score[-size:, place].mean() / 2)
    run_ms = runs.run_ms[first:end]
    own_ms = run_ms[:, place]
    others_ms = np.median(np.delete(run_ms, place, axis=1), axis=1)
    return SlowRank(
        rank=runs.ranks[place],
        node=nodes.get((runs.group, runs.ranks[place]), ""),
        cause=cause,
        ratio=float(np.median(own_ms / np.maximum(others_ms, 1e-6))),
        input_ratio=float(np.median(_input_ratio(runs)[first:end, place])),
        n_calls=end - first,
        n_slower=int((own_ms > others_ms * (1 + LEAST_EFFECT) + LEAST_MS).sum()),
        since_ms=float(runs.started_ms[first, place]),
        since_call=int(runs.call_id[first]),
        from_start=first == 0,
        is_ongoing=runs.n_calls - end <= max(2, runs.n_calls // 50),
        lost_ms=float(np.maximum(own_ms - np.median(run_ms, axis=1), 0).sum()),
        z=z,
    )


def _stretch(above: Numbers) -> tuple[int, int]:
    """Return the first index and the end of the part of ``above`` with the largest sum (Kadane's algorithm)."""
    sums = np.concatenate([[0.0], np.cumsum(above)])
    lowest = np.minimum.accumulate(sums[:-1])
    end = int(np.argmax(sums[1:] - lowest)) + 1
    return int(np.argmin(sums[:end])), end


def _input_ratio(runs: MethodRuns) -> Numbers:
    """Return how much each rank was sent, by the median of the ranks: rows or bytes, whichever is more."""
    ratio = np.ones_like(runs.run_ms)
    for sent in (runs.rows, runs.bytes):
        median = np.median(sent, axis=1, keepdims=True)
        ratio = np.maximum(ratio, np.divide(sent, median, out=np.ones_like(ratio), where=median > 0))
    return ratio


def _by_node(found: Iterable[SlowRank], runs: MethodRuns, nodes: Nodes) -> tuple[SlowRank, ...]:
    """Return the ranks, the most lost time first, with the cause "node" where most ranks of a node are slow."""
    found = list(found)
    of = [nodes.get((runs.group, rank), "") for rank in runs.ranks]
    slow = [one.node for one in found if one.cause == "rank"]
    blamed = {
        node
        for node in set(slow) - {""}
        if of.count(node) > 1 and slow.count(node) >= _OF_NODE * of.count(node) and len(set(of)) > 1
    }
    marked = [_with_cause(one, "node") if one.cause == "rank" and one.node in blamed else one for one in found]
    return tuple(sorted(marked, key=lambda one: (-one.lost_ms, one.rank)))


def _with_cause(one: SlowRank, cause: str) -> SlowRank:
    values = {name: getattr(one, name) for name in one.__slots__}
    return SlowRank(**(values | {"cause": cause}))


def _one_offs(runs: MethodRuns, median_ms: Numbers) -> tuple[OneOff, ...]:
    """Return the calls with a rank far above the median, the longest first; none where they are not rare."""
    excess_ms = runs.run_ms - np.maximum(median_ms * ONE_OFF, median_ms + LEAST_MS)
    calls, places = np.nonzero(excess_ms > 0)
    if len(calls) > max(MOST_ONE_OFFS, runs.n_calls // 50):
        return ()
    order = np.argsort(-(runs.run_ms - median_ms)[calls, places], kind="stable")[:MOST_ONE_OFFS]
    return tuple(
        OneOff(
            runs.ranks[place],
            int(runs.call_id[call]),
            float(runs.started_ms[call, place]),
            float(runs.run_ms[call, place]),
            float(median_ms[call, 0]),
        )
        for call, place in zip(calls[order], places[order], strict=True)
    )
