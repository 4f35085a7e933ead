"""Calls as CSV and a window as a trace."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from app.api.routes import export as export_routes
from tests.app_doubles import House, MemorySource, check_problem, get, some_call
from tests.unit.web_sample import SampleRun
from tests.unit.web_sample_calls import EVIL
from web.export import csv_head, csv_lines, trace
from web.frame import Frame
from web.rendering import render_report
from web.rows import CallRow
from web.source import Bars, Lane, Timeline

NOW_MS = 150_000.0


def read(text: str) -> list[dict[str, str]]:
    """Return the lines of a CSV by name."""
    return list(csv.DictReader(io.StringIO(text)))


def test_every_field_of_a_call_is_a_column_and_odd_texts_come_back_whole() -> None:
    odd = replace(some_call(7), method='a "b", c\nd', group="=cmd|'/c calc'!A1", duration_ms=1.25)
    (line,) = read(csv_head() + csv_lines([odd]))
    assert list(line) == [field.name for field in fields(CallRow)]
    assert (line["id"], line["method"], line["duration_ms"]) == ("7", 'a "b", c\nd', "1.25")
    assert line["group"] == "'=cmd|'/c calc'!A1"


def test_all_calls_of_a_filter_are_sent_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_routes, "_CALLS_AT_ONCE", 7)
    answer = get("/export/calls.csv?status=ok")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="podium-calls.csv"'
    assert [int(line["id"]) for line in read(answer.text)] == list(range(25, 0, -1))
    assert [int(line["id"]) for line in read(get("/export/calls.csv?cursor=4").text)] == [3, 2, 1]
    monkeypatch.setattr(export_routes, "MOST_CALLS", 10)
    assert len(read(get("/export/calls.csv").text)) == 10
    check_problem(get("/export/calls.csv?colour=red"), 422, "invalid-request")


def test_an_export_needs_the_token_too() -> None:
    for path in ("/export/calls.csv", "/export/trace.json?to=10"):
        assert get(path, token="").status_code == 401


def test_a_window_that_holds_too_much_is_refused_in_words() -> None:
    assert "use a shorter window" in check_problem(get("/export/trace.json"), 422, "cannot-work")["detail"]
    answer = get("/export/trace.json?from=0&to=1000")
    assert answer.headers["content-disposition"] == 'attachment; filename="podium-trace.json"'
    assert any(event["name"] == "rollout.generate" for event in answer.json()["traceEvents"])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("from=5&to=2", "to=2 must be greater than from=5"),
        ("from=5&to=5", "to=5 must be greater than from=5"),
        ("to=-5", "window 0 to -5 ms is outside the run"),
        ("from=-9&to=-5", "window -9 to -5 ms is outside the run"),
        ("from=1e11", "outside the run (0 to "),
    ],
)
def test_a_window_that_there_is_not_is_told_with_the_numbers(query: str, said: str) -> None:
    assert said in check_problem(get(f"/export/trace.json?{query}"), 422, "cannot-work")["detail"]


def test_what_a_window_has_before_the_run_is_left_away() -> None:
    asked: list[tuple[float | None, float | None]] = []

    class Watched(MemorySource):
        def spans(self, from_ms: float | None, to_ms: float | None) -> Timeline | None:
            asked.append((from_ms, to_ms))
            return super().spans(from_ms, to_ms)

    assert get("/export/trace.json?from=-20&to=10", House(Watched())).status_code == 200
    get("/export/trace.json?from=-1", House(Watched()))
    get("/export/trace.json", House(Watched()))
    assert asked == [(0.0, 10.0), (0.0, None), (None, None)]


def sample_trace() -> list[dict[str, Any]]:
    """Return the events of the last seconds of the made-up run."""
    window = SampleRun(NOW_MS).spans(NOW_MS - 20_000.0, NOW_MS)
    assert window is not None
    assert window.mode == "bars"
    found: Any = trace(window, "ppo")["traceEvents"]
    return list(found)


def test_processes_and_threads_are_numbers_with_names() -> None:
    events = sample_trace()
    assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) for event in events)
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(processes.values()) == {"driver of ppo", "actor", "critic", "rollout"}
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= threads


def test_no_two_spans_of_a_thread_overlap_and_none_is_lost() -> None:
    events = [event for event in sample_trace() if event["ph"] == "X"]
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        by_thread.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_thread.values():
        assert all(first[1] <= second[0] + 0.01 for first, second in pairwise(sorted(spans)))
    window = SampleRun(NOW_MS).spans(NOW_MS - 20_000.0, NOW_MS)
    assert window is not None
    assert sum(event["pid"] > 1 for event in events) == len(window.bars.lane) > 20


def test_a_rank_with_thousands_of_spans_at_once_leaves_the_next_ranks_threads_alone() -> None:
    n = 3_000
    lanes = tuple(Lane(rank + 1, "pool", "actor", rank, "box", 1) for rank in range(2))
    bars = Bars(
        [1] * n + [2], range(n + 1), [0] * (n + 1), range(n + 1), [1e6] * (n + 1), [0.0] * (n + 1), ["ok"] * (n + 1)
    )
    found: Any = trace(Timeline(0, 1e6, 1e6, "bars", lanes, ("actor.ask",), bars), "demo")["traceEvents"]
    tids = {event["args"]["call"]: event["tid"] for event in found if event["ph"] == "X"}
    assert len(set(tids.values())) == n + 1
    names = {
        event["tid"]: event["args"]["name"] for event in found if event["pid"] == 2 and event["name"] == "thread_name"
    }
    assert [names[tids[call]] for call in (0, n - 1, n)] == ["rank 0", "rank 0, beside", "rank 1"]


def test_every_route_of_export_is_there() -> None:
    paths = {getattr(route, "path", "") for route in House().app.routes}
    assert {"/export/calls.csv", "/export/trace.json", "/export/report.html"} <= paths


@pytest.mark.parametrize("died", [False, True])
def test_the_report_has_the_runs_numbers_and_needs_no_other_file(died: bool) -> None:
    source = SampleRun(NOW_MS)
    source.died = died
    text = render_report(source, Frame("report"), datetime(2026, 11, 29, 22, 30, tzinfo=UTC))
    overview = source.overview()
    for total in overview.methods:
        assert f"<th>{total.group}.{total.method}</th>" in text
    assert "written 2026-11-29T22:30:00+00:00" in text
    assert (f"rank {overview.ranks[0].rank} (slow in " in text, "Workers that died" in text) == (True, died)
    assert re.findall(r"(?:src|href|url|@import|<script)[=(\s]", text) == []


def test_markup_in_names_is_text_in_the_report() -> None:
    source = SampleRun(NOW_MS, evil=True)
    source.died = True
    assert EVIL not in render_report(source, Frame("report"))


def test_the_report_is_sent_as_a_file() -> None:
    answer = get("/export/report.html")
    assert answer.headers["content-disposition"] == 'attachment; filename="podium-report.html"'
    assert "No finished calls." in answer.text
