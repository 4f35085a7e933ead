"""Two stretches of a run side by side."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.web_sample import SampleRun
from web.compare import Change, Different, different, interval, rows_of, stretch
from web.frame import Frame
from web.rendering import render_page
from web.steps import MethodInSteps, StepsSum

NOW_MS = 150_000.0


def summed(method: str, p50_ms: float, rows: int = 100, padding_rows: int = 0) -> MethodInSteps:
    """Return a method of ten calls."""
    return MethodInSteps("actor", method, 10, 0, p50_ms, 2 * p50_ms, 0, 1, 1, 8, 0, 0, rows, padding_rows, 0, 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1-10", (1, 10)), ("7", (7, 7)), (" 3 to 5 ", (3, 5)), ("10–2", (2, 10)), ("", None), ("-1", None),
        ("1-", None), ("9" * 16, None), ("all", None),
    ],
)  # fmt: skip
def test_a_stretch_is_read_as_a_person_writes_it(text: str, found: tuple[int, int] | None) -> None:
    assert stretch(text) == found


def test_what_changed_most_comes_first_and_small_changes_are_none() -> None:
    a = StepsSum(1, 2, 30, False, (summed("update", 10.0), summed("save", 5.0), summed("gone", 1.0)))
    b = StepsSum(3, 4, 20, False, (summed("update", 13.0, 90, 10), summed("save", 5.2), summed("new", 2.0)))
    rows = {row.method: row for row in rows_of(a, b)}
    assert next(iter(rows)) == "update"
    assert rows["update"].p50.share == pytest.approx(0.3)
    assert (rows["update"].padding.a, rows["update"].padding.b) == (0.0, 0.1)
    assert (rows["new"].a, rows["new"].p50) == (None, Change(None, 2.0))
    assert Change(0.0, 8.0).share is None


def durations(dice: np.random.Generator, n: int, factor: float = 1.0, phi: float = 0.0) -> tuple[float, ...]:
    """Return durations around 100 ms with 20 % noise, of which each is ``phi`` like the one before."""
    steps = dice.normal(0.0, 1.0, n)
    for call in range(1, n):
        steps[call] = phi * steps[call - 1] + math.sqrt(1 - phi**2) * steps[call]
    return tuple((100.0 * factor * np.exp(0.2 * steps)).tolist())


@pytest.mark.parametrize(("n_a", "n_b", "phi"), [(11, 31, 0.0), (200, 200, 0.0), (300, 300, 0.8)])
def test_equal_stretches_differ_no_more_often_than_the_interval_says(n_a: int, n_b: int, phi: float) -> None:
    dice = np.random.default_rng(1)
    found = [interval(durations(dice, n_a, phi=phi), durations(dice, n_b, phi=phi)) for _ in range(200)]
    assert sum(one is not None and one.tone != "same" for one in found) <= 8


def test_a_real_difference_is_found_and_the_interval_contains_it() -> None:
    dice = np.random.default_rng(2)
    found = [interval(durations(dice, 100), durations(dice, 100, 1.3)) for _ in range(100)]
    assert sum(one is not None and one.tone == "worse" for one in found) >= 98
    assert sum(one is not None and one.low <= 0.3 <= one.high for one in found) >= 95
    faster = interval(durations(dice, 100), durations(dice, 100, 0.7))
    assert faster is not None
    assert faster.tone == "better"
    assert interval(durations(dice, 9), durations(dice, 100)) is None


def test_what_else_changed_is_named() -> None:
    a = replace(summed("update", 10.0), n_ranks=(2,), pools=("train",), generations=(1,))
    b = replace(summed("update", 10.0, rows=200), n_ranks=(2, 4), pools=("train",), generations=(2,))
    assert different(a, a) == ()
    assert different(a, b) == (
        Different("ranks", "2", "2, 4"), Different("generation", "1", "2"), Different("rows per call", "10", "20")
    )  # fmt: skip


def test_the_page_compares_both_halves_until_it_is_told_which_steps() -> None:
    source = SampleRun(NOW_MS)
    last = source.overview().steps[-1].index
    halves = render_page("compare", source, Frame("compare"))
    assert f'name="a" size="9" value="1-{(1 + last) // 2}"' in halves
    assert f'name="b" size="9" value="{(1 + last) // 2 + 1}-{last}"' in halves
    told = render_page("compare", source, Frame("compare", params={"a": "2", "b": "4-5"}))
    assert "step 2, " in told
    assert "steps 4 to 5, " in told
    n_calls = source.steps_between(4, 5).n_calls
    assert f"{n_calls} calls" in told
    nothing = render_page("compare", source, Frame("compare", params={"a": "5000", "b": "5001"}))
    assert "No finished call in these steps." in nothing
    assert "No steps yet." in render_page("compare", SampleRun(NOW_MS, is_empty=True), Frame("compare"))
