"""The list of calls, narrowed by what no index answers, beside the same list narrowed by hand."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store import read_list
from app.store.reader import Reader
from benchmarks.synth import make
from web.calls import CallFilter
from web.rows import CallRow

pytestmark = pytest.mark.integration
N_CALLS = 2_000


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Yield a reader of a run of many calls on two ranks."""
    path = tmp_path_factory.mktemp("list") / "run.db"
    make(path, N_CALLS, 2)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE call SET padding_rows = id % 5")
        connection.commit()
    with contextlib.closing(Reader(path, deadline_s=10)) as reader:
        yield reader


@pytest.fixture(scope="module")
def every(reader: Reader) -> list[CallRow]:
    """Return all calls, newest first."""
    return listed(reader, CallFilter())


def listed(reader: Reader, narrowed: CallFilter, limit: int = 130) -> list[CallRow]:
    """Return all that a filter lets through, page by page."""
    found: list[CallRow] = []
    cursor: int | None = None
    while True:
        page = reader.calls(limit, cursor, narrowed)
        assert len(page.items) <= limit
        found += page.items
        if page.next_cursor is None:
            return found
        assert cursor is None or page.next_cursor < cursor
        cursor = page.next_cursor


@pytest.mark.parametrize("most", [37, read_list.MOST_LOOKED_AT])
@pytest.mark.parametrize("method", ["", "update"])
def test_every_filter_lets_through_what_it_says_however_little_a_page_looks_at(
    reader: Reader, every: list[CallRow], most: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_list, "MOST_LOOKED_AT", most)
    here = [call for call in every if method in {"", call.method}]
    middle = sorted(call.duration_ms for call in here)[len(here) // 2]
    longer = [call for call in here if call.duration_ms >= middle]
    assert listed(reader, CallFilter(method=method, min_ms=middle - 1e-6)) == longer
    assert 0 < len(longer) < len(here)
    padded = [call for call in here if call.padding_rows > 0.01 * (call.rows + call.padding_rows)]
    assert listed(reader, CallFilter(method=method, padding_above=0.01)) == padded
    assert 0 < len(padded) < len(here)
    p95 = {(one.group, one.method): one.p95_ms for one in reader.latencies(0.0, None)}
    slow = [call for call in here if call.duration_ms > p95[call.group, call.method]]
    assert listed(reader, CallFilter(method=method, above_p95=True)) == slow
    # The p95 comes from a histogram, so it is a slot off where all lengths are alike.
    assert 0 < len(slow) < 0.12 * len(here)


def test_filters_are_taken_together_and_with_those_that_an_index_answers(reader: Reader, every: list[CallRow]) -> None:
    narrowed = CallFilter(step=3, min_ms=5.0, padding_above=0.0)
    expected = [call for call in every if call.step == 3 and call.duration_ms >= 5.0 and call.padding_rows]
    assert listed(reader, narrowed) == expected
    assert listed(reader, CallFilter(min_ms=1e9)) == []


def test_however_many_calls_a_step_has_a_page_looks_at_so_many_and_goes_on(
    reader: Reader, every: list[CallRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_list, "MOST_LOOKED_AT", 10)
    of_step = [call for call in every if call.step == 3]
    assert len(of_step) == 40
    # Ten of the forty are looked at, none of which is so long: the page says how far it looked.
    page = reader.calls(100, None, CallFilter(step=3, min_ms=1e9))
    assert (page.items, page.next_cursor) == ((), of_step[9].id)
    # Nor does the step's index answer for a method or a status.
    assert reader.calls(100, None, CallFilter(step=3, status="died")).next_cursor == of_step[9].id
    page = reader.calls(100, None, CallFilter(step=3, method="save"))
    assert (len(page.items), page.next_cursor) == (sum(c.method == "save" for c in of_step[:10]), of_step[9].id)
    # What it does answer is a page as long as was asked for.
    assert reader.calls(100, None, CallFilter(step=3)).items == tuple(of_step)


@pytest.mark.parametrize("most", [3, read_list.MOST_LOOKED_AT])
def test_every_pair_of_filters_is_taken_together(
    reader: Reader, every: list[CallRow], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_list, "MOST_LOOKED_AT", most)
    failed = [call for call in every if call.status == "error"]
    assert failed
    step, method = failed[0].step, failed[0].method
    assert listed(reader, CallFilter(step=step, status="error")) == [c for c in failed if c.step == step]
    assert listed(reader, CallFilter(method=method, status="error")) == [c for c in failed if c.method == method]
    assert listed(reader, CallFilter(status="error", min_ms=1.0)) == [c for c in failed if c.duration_ms >= 1.0]
    here = [call for call in every if call.step == step]
    assert listed(reader, CallFilter(step=step, status="ok")) == [c for c in here if c.status == "ok"]
    assert listed(reader, CallFilter(step=step, group="actor", method=method)) == [
        c for c in here if c.method == method
    ]
    assert listed(reader, CallFilter(group="nobody", status="ok")) == []


def test_a_run_without_calls_has_an_empty_page(tmp_path: Path) -> None:
    make(tmp_path / "empty.db", 0, 2)
    with contextlib.closing(Reader(tmp_path / "empty.db", deadline_s=10)) as reader:
        page = reader.calls(10, None, CallFilter(above_p95=True, min_ms=1.0))
        assert (page.items, page.next_cursor) == ((), None)
