"""Measuring in turn: every contender gets a short block of calls, round after round: all meet the same weather."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """A contender's times over all rounds: the median of the blocks' medians and their quartiles, in ms."""

    median_ms: float
    low_ms: float
    high_ms: float
    n_calls: int


@dataclass(frozen=True, slots=True)
class Target:
    """``contender`` takes at most ``at_most`` times as long as ``against``; below 1 that says how much faster it is."""

    contender: str
    against: str
    at_most: float

    def __str__(self) -> str:
        if self.at_most < 1:
            return f"{1 / self.at_most:g} x faster than {self.against}"
        return f"<= {self.at_most:.2f} x {self.against}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the bench: what was done, each contender's times, and what was aimed at; ratios are to ``base``."""

    what: str
    base: str
    contenders: Mapping[str, Measured]
    targets: tuple[Target, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, name: str, against: str = "") -> float:
        """Return how much longer ``name`` takes than ``against``, the base if that is not said."""
        return self.contenders[name].median_ms / self.contenders[against or self.base].median_ms

    def verdicts(self) -> dict[str, bool]:
        """Return, for each target whose contenders were there, whether it was met."""
        return {
            f"{target.contender} {target}": self.ratio(target.contender, target.against) <= target.at_most
            for target in self.targets
            if {target.contender, target.against} <= self.contenders.keys()
        }


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: at most ``n_rounds`` blocks of ``n_calls`` calls, and no new round after ``budget_s``."""

    n_rounds: int
    n_calls: int
    budget_s: float


def measure_in_turn(
    what: str,
    base: str,
    contenders: Mapping[str, Callable[[], object]],
    effort: Effort,
    targets: tuple[Target, ...] = (),
) -> Row:
    """Time ``contenders`` in turn, after one round that is thrown away; three rounds are made in any case."""
    blocks: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    began = time.monotonic()
    for round_number in range(effort.n_rounds + 1):
        if round_number > MIN_ROUNDS and time.monotonic() - began > effort.budget_s:
            break
        # Another one begins each round: whoever follows a busy neighbour would else always be the same.
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            median = _block(contenders[name], effort.n_calls)
            if round_number > 0:
                blocks[name].append(median)
    summaries = {name: _summary(times, effort.n_calls) for name, times in blocks.items()}
    return Row(what, base, summaries, targets)


def _block(call: Callable[[], object], n_calls: int) -> float:
    times = []
    for _ in range(n_calls):
        began = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - began) * 1e3)
        # Freeing it is part of no call: the next one would else pay for it, or not.
        del result
    return statistics.median(times)


def _summary(medians: list[float], n_calls: int) -> Measured:
    low, median, high = statistics.quantiles(medians, n=4)
    return Measured(median, low, high, n_calls * len(medians))
