"""The page Compare: two step ranges of a run side by side."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from web.frame import Content, Frame
from web.phases import Share, durations_ms, shares_of_call
from web.slowness import autocorrelation_time
from web.source import RunSource
from web.steps import MethodInSteps, StepsSum

_STEPS = re.compile(r"\s*(\d{1,15})\s*(?:(?:-|–|to)\s*(\d{1,15})\s*)?")
# The probability of an interval to contain the true difference.
CONFIDENCE = 0.99
LEAST_CALLS = 10
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which shares of A a median grew, with the probability ``CONFIDENCE``."""

    low: float
    high: float

    @property
    def tone(self) -> str:
        """Whether it grew (worse), shrank (better), or neither can be distinguished from noise (same)."""
        return "worse" if self.low > 0 else "better" if self.high < 0 else "same"


@dataclass(frozen=True, slots=True)
class Different:
    """What differs between the sides besides the durations, such as the number of ranks."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Change:
    """A number on both sides; ``share`` is what it grew by, None where one side has none."""

    a: float | None
    b: float | None

    @property
    def share(self) -> float | None:
        """By what part of itself the number grew."""
        return None if self.a is None or self.b is None or self.a <= 0 else self.b / self.a - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A method on both sides; a side on which it was not called is None, and its phases are none.

    ``interval`` is that of the change of the median, None where a side has fewer than ``LEAST_CALLS`` independent
    calls.
    """

    group: str
    method: str
    a: MethodInSteps | None
    b: MethodInSteps | None
    p50: Change
    p95: Change
    padding: Change
    phases: tuple[tuple[Share, ...], tuple[Share, ...]]
    interval: Interval | None
    different: tuple[Different, ...]


def load_compare(source: RunSource, frame: Frame) -> Content:
    """Return the page of the query's stretches ``a`` and ``b``, such as 1-10; else of both halves of the run."""
    steps = source.overview().steps
    last = steps[-1].index if steps else 0
    first = steps[0].index if steps else 0
    middle = (first + last) // 2
    halves = ((first, middle), (min(middle + 1, last), last))
    asked = [stretch(frame.params.get(name, "")) or half for name, half in zip("ab", halves, strict=True)]
    a, b = (source.steps_between(*one) for one in asked)
    return Content(
        a=a,
        b=b,
        rows=rows_of(a, b),
        asked=[f"{low}-{high}" for low, high in asked],
        has_steps=bool(steps),
        least_calls=LEAST_CALLS,
        confidence=CONFIDENCE,
        wall=[shares_of_call(_sum(side)) for side in (a, b)],
    )


def stretch(text: str) -> tuple[int, int] | None:
    """Return the first and last step that ``text`` names, such as ``1-10`` or ``7``; None when it names none."""
    found = _STEPS.fullmatch(text)
    if found is None:
        return None
    low, high = int(found[1]), int(found[2] or found[1])
    return min(low, high), max(low, high)


def rows_of(a: StepsSum, b: StepsSum) -> tuple[Row, ...]:
    """Return a row per method of either side, the one whose p50 changed most first."""
    sides = [{(one.group, one.method): one for one in side.methods} for side in (a, b)]
    names = sorted(sides[0].keys() | sides[1].keys())
    found = [_row(*name, sides[0].get(name), sides[1].get(name)) for name in names]
    return tuple(sorted(found, key=lambda row: -abs(row.p50.share or 0.0)))


def _row(group: str, method: str, a: MethodInSteps | None, b: MethodInSteps | None) -> Row:
    return Row(
        group,
        method,
        a,
        b,
        p50=Change(a.p50_ms if a else None, b.p50_ms if b else None),
        p95=Change(a.p95_ms if a else None, b.p95_ms if b else None),
        padding=Change(_padding(a), _padding(b)),
        phases=(shares_of_call(a) if a else (), shares_of_call(b) if b else ()),
        interval=interval(a.took_ms, b.took_ms) if a and b else None,
        different=different(a, b) if a and b else (),
    )


def interval(a_ms: tuple[float, ...], b_ms: tuple[float, ...]) -> Interval | None:
    """Return by what share the median of B is above that of A, as an interval; None if there are too few calls.

    The standard error of each median of logarithms is taken from its quantiles (Price and Bonett, Distribution-free
    confidence intervals for difference and ratio of medians, 2002), for as many calls as are independent.
    """
    sides = [_median_and_error(took_ms) for took_ms in (a_ms, b_ms)]
    if sides[0] is None or sides[1] is None:
        return None
    (a, a_error), (b, b_error) = sides[0], sides[1]
    error = _Z * math.hypot(a_error, b_error)
    return Interval(math.expm1(b - a - error), math.expm1(b - a + error))


def _median_and_error(took_ms: tuple[float, ...]) -> tuple[float, float] | None:
    """Return the median of the durations' logarithms and its standard error."""
    if len(took_ms) < LEAST_CALLS:
        return None
    logs = np.log(np.maximum(took_ms, 1e-6))
    n_independent = len(logs) / autocorrelation_time(logs[:, None])
    if n_independent < LEAST_CALLS:
        return None
    beside = _Z / 2 / math.sqrt(n_independent)
    low, median, high = np.quantile(logs, (0.5 - beside, 0.5, 0.5 + beside))
    return float(median), float(high - low) / (2 * _Z)


def different(a: MethodInSteps, b: MethodInSteps) -> tuple[Different, ...]:
    """Return what else differs: ranks, pool, its generation, and rows and bytes per call by more than 1 %."""
    found = [
        Different(name, ", ".join(map(str, of_a)), ", ".join(map(str, of_b)))
        for name, of_a, of_b in (
            ("ranks", a.n_ranks, b.n_ranks),
            ("pool", a.pools, b.pools),
            ("generation", a.generations, b.generations),
        )
        if of_a != of_b
    ]
    for name, a_sum, b_sum in (
        ("rows per call", a.rows, b.rows),
        ("bytes out per call", a.bytes_out, b.bytes_out),
        ("bytes in per call", a.bytes_in, b.bytes_in),
    ):
        of_a, of_b = a_sum / a.n_calls, b_sum / b.n_calls
        if abs(of_a - of_b) > 0.01 * max(of_a, of_b):
            found.append(Different(name, f"{of_a:,.0f}", f"{of_b:,.0f}"))
    return tuple(found)


def _padding(one: MethodInSteps | None) -> float | None:
    if one is None:
        return None
    rows = one.rows + one.padding_rows
    return one.padding_rows / rows if rows else 0.0


@dataclass(frozen=True, slots=True)
class _Phases:
    gate_ms: float
    dispatch_ms: float
    execute_ms: float
    wait_ms: float
    collect_ms: float
    unpad_ms: float


def _sum(side: StepsSum) -> _Phases:
    """Return the phases of all methods added up."""
    each = [durations_ms(one) for one in side.methods]
    return _Phases(*(sum(phase) for phase in zip(*each, strict=True))) if each else _Phases(0, 0, 0, 0, 0, 0)
