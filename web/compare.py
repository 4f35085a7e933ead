"""The page Compare: two step ranges of a run side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass

from web.frame import Content, Frame
from web.phases import Share, durations_ms, shares_of_call
from web.source import RunSource
from web.steps import MethodInSteps, StepsSum

_STEPS = re.compile(r"\s*(\d{1,15})\s*(?:(?:-|–|to)\s*(\d{1,15})\s*)?")
# Less of a difference is nothing to look at.
NOTABLE = 0.1


@dataclass(frozen=True, slots=True)
class Change:
    """A number on both sides; ``share`` is what it grew by, None where one side has none."""

    a: float | None
    b: float | None

    @property
    def share(self) -> float | None:
        """By what part of itself the number grew."""
        return None if self.a is None or self.b is None or self.a <= 0 else self.b / self.a - 1

    @property
    def tone(self) -> str:
        """Whether it grew (worse), shrank (better), or stayed about what it was (same)."""
        if self.share is None or abs(self.share) < NOTABLE:
            return "same"
        return "worse" if self.share > 0 else "better"


@dataclass(frozen=True, slots=True)
class Row:
    """A method on both sides; a side on which it was not called is None, and its phases are none."""

    group: str
    method: str
    a: MethodInSteps | None
    b: MethodInSteps | None
    p50: Change
    p95: Change
    padding: Change
    phases: tuple[tuple[Share, ...], tuple[Share, ...]]


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
    )


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
