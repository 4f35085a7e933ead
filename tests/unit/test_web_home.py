"""The list of runs: what a query finds, in which order, and small charts."""

from __future__ import annotations

import math
from typing import cast

import pytest

from tests.app_doubles import some_run
from web.home import RUNS_PER_PAGE, RunEntry, load_home, sparkline


def entry(number: int, **changes: object) -> RunEntry:
    """Return the entry of a run that ended."""
    started_at = f"2026-01-02T03:{number:02d}:05.678+00:00"
    run = some_run(**{"id": f"run-{number}", "state": "ended", "started_at": started_at, "n_calls": number, **changes})
    return RunEntry(f"{number:02d}.db", 0.0, 1000 - number, run=run, n_steps=number)


OLD, NEW = entry(1), entry(2, name="other", script="ppo.py", n_failed_calls=3)
LIVE = entry(0, state="running")
NOTED = RunEntry("03.db", 0.0, 5, run=some_run(state="died", n_calls=9), note="Larger Batch", tags=("lr3e-4", "x"))
BROKEN = RunEntry("99.db", 0.0, 7, problem="is not a Podium run file")
UNREAD = RunEntry("98.db", 0.0, 7)
ALL = (BROKEN, UNREAD, NOTED, NEW, OLD, LIVE)


def found(**params: str) -> list[str]:
    """Return the files that a query finds, in order."""
    return [one.file for one in cast("list[RunEntry]", load_home(ALL, params)["entries"])]


def test_runs_that_go_on_stand_first_then_the_newest_and_files_that_are_not_runs_last() -> None:
    assert found() == ["00.db", "03.db", "02.db", "01.db", "99.db", "98.db"]


@pytest.mark.parametrize(
    ("params", "files"),
    [
        ({"q": "larger BATCH"}, ["03.db"]),
        ({"q": "lr3e-4"}, ["03.db"]),
        ({"q": "ppo other"}, ["02.db"]),
        ({"q": "ppo missing"}, []),
        ({"q": "run file"}, ["99.db"]),
        ({"state": "died"}, ["03.db"]),
        ({"state": "unreadable"}, ["99.db"]),
        ({"state": "nonsense", "q": "99"}, ["99.db"]),
        ({"tag": "x"}, ["03.db"]),
        ({"tag": "lr3e"}, []),
    ],
)
def test_a_query_is_words_in_any_case_a_state_and_a_whole_tag(params: dict[str, str], files: list[str]) -> None:
    assert found(**params) == files


def test_columns_sort_the_largest_first_and_names_alphabetically() -> None:
    assert found(sort="calls")[:2] == ["03.db", "02.db"]
    assert found(sort="size")[:2] == ["00.db", "01.db"]
    assert found(sort="failed")[0] == "02.db"
    assert found(sort="name", state="ended") == ["01.db", "02.db"]
    assert found(sort="nonsense") == found()


def test_a_long_list_has_pages_and_a_page_that_is_not_there_is_the_last_or_the_first() -> None:
    many = tuple(entry(i % 60) for i in range(RUNS_PER_PAGE + 1))
    for asked, page, n in [
        ("", 1, RUNS_PER_PAGE),
        ("2", 2, 1),
        ("77", 2, 1),
        ("0", 1, RUNS_PER_PAGE),
        ("-1", 1, RUNS_PER_PAGE),
    ]:
        content = load_home(many, {"page": asked})
        assert (content["page"], len(cast("list[RunEntry]", content["entries"]))) == (page, n)


def test_a_small_chart_goes_through_its_box_and_leaves_out_what_is_not_finite() -> None:
    assert sparkline((0.0, 1.0)) == "2.0,18.0 74.0,2.0"
    assert sparkline((5.0, 5.0)) == "2.0,10.0 74.0,10.0"
    assert sparkline((0.0, math.nan, 1.0)) == "2.0,18.0 74.0,2.0"
    assert sparkline((1.0,)) == sparkline(()) == sparkline((math.inf, 1.0)) == ""
    assert sparkline((-1.7e308, 1.7e308)) == "2.0,18.0 74.0,2.0"


def test_an_entry_says_its_state_also_without_a_run() -> None:
    assert [one.state for one in ALL] == ["unreadable", "not read yet", "died", "ended", "ended", "running"]
