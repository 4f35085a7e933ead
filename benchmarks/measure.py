"""Measuring in turn: every contender gets a short block of calls, round after round: all meet the same weather."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """A contender's times over all rounds: the median of the blocks' medians and their quartiles, in ms."""

    median_ms: float
    low_ms: float
    high_ms: float
    n_calls: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the bench: what was done, and each contender's times; ratios are to ``base``."""

    what: str
    base: str
    contenders: Mapping[str, Measured]

    def ratio(self, name: str) -> float:
        """Return how much longer ``name`` takes than the base."""
        return self.contenders[name].median_ms / self.contenders[self.base].median_ms


def measure_in_turn(
    what: str, base: str, contenders: Mapping[str, Callable[[], object]], n_rounds: int, n_calls: int
) -> Row:
    """Time ``contenders`` in turn: ``n_rounds`` blocks of ``n_calls`` calls each, after one that is thrown away."""
    blocks: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for round_number in range(n_rounds + 1):
        # Another one begins each round: whoever follows a busy neighbour would else always be the same.
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            median = _block(contenders[name], n_calls)
            if round_number > 0:
                blocks[name].append(median)
    return Row(what, base, {name: _summary(times, n_calls) for name, times in blocks.items()})


def _block(call: Callable[[], object], n_calls: int) -> float:
    times = []
    for _ in range(n_calls):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def _summary(medians: list[float], n_calls: int) -> Measured:
    low, median, high = statistics.quantiles(medians, n=4)
    return Measured(median, low, high, n_calls * len(medians))
