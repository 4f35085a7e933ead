"""Two stretches of a run side by side."""

from __future__ import annotations

import pytest

from tests.unit.web_sample import SampleRun
from web.compare import Change, rows_of, stretch
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
    assert (rows["update"].p50.tone, rows["save"].p50.tone, rows["gone"].p50.tone) == ("worse", "same", "same")
    assert (rows["update"].padding.a, rows["update"].padding.b) == (0.0, 0.1)
    assert (rows["new"].a, rows["new"].p50) == (None, Change(None, 2.0))
    assert Change(10.0, 8.0).tone == "better"
    assert Change(0.0, 8.0).share is None


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
