"""The pages as text: what is in them, what is escaped in them, and what they say when there is nothing to show."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.unit.web_sample import SampleRun
from tests.unit.web_sample_calls import EVIL, FAILED_CALL
from web import pages, units
from web.calls import CallDetail, CallFilter, CallPage
from web.frame import Frame
from web.overview import MAX_STEPS_IN_FIGURE
from web.registry import PAGES
from web.rendering import render_call, render_page, render_problem
from web.rows import CallInFlight, RankOut, Run, Step
from web.source import Overview

NOW_MS = 150_000.0
VOID = {"meta", "link", "br", "img", "input", "hr"}


class _Page(HTMLParser):
    """Reads a page: its tags with attributes, and whether every one that was opened is closed again."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def having(self, attribute: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if attribute in attributes]


def every_page(source: SampleRun, frame: Frame) -> dict[str, str]:
    call = render_call(source, frame, FAILED_CALL)
    other = render_call(source, frame, FAILED_CALL - 2)
    assert call is not None
    assert other is not None
    return {
        "overview": render_page("overview", source, frame),
        "timeline": render_page("timeline", source, frame),
        "calls": render_page("calls", source, frame),
        "call": call,
        "other call": other,
        "heatmap": render_page("heatmap", source, frame),
        "stragglers": render_page("stragglers", source, frame),
        "data": render_page("data", source, frame),
        "compare": render_page("compare", source, frame),
        "pools": render_page("pools", source, frame),
        "workers": render_page("workers", source, frame),
        "operations": render_page("operations", source, frame),
        "postmortem": render_page("postmortem", source, frame),
        "problem": render_problem(frame, 404, EVIL, EVIL, EVIL),
    }


@pytest.fixture
def sample() -> SampleRun:
    return SampleRun(NOW_MS)


@pytest.mark.parametrize("controllable", [False, True])
def test_every_page_is_well_formed_and_has_no_inline_script_or_handler(controllable: bool) -> None:
    frame = Frame("overview", live=True, controllable=controllable, csrf="s", plotly_url="/static/plotly.js")
    source = SampleRun(NOW_MS)
    source.died = not controllable
    for name, text in every_page(source, frame).items():
        page = _Page(text)
        assert page.open == [], name
        for tag, attributes in page.tags:
            assert not [a for a in attributes if a.startswith("on")], (name, tag, attributes)
            if tag == "script":
                assert "src" in attributes or attributes["type"] == "application/json", name


def test_markup_in_names_and_errors_is_text_on_every_page() -> None:
    frame = Frame("overview", params={"method": EVIL, "status": "", "group": EVIL}, control_hint=EVIL)
    source = SampleRun(NOW_MS, evil=True)
    source.died = True
    for name, text in every_page(source, frame).items():
        assert "<img" not in text, name
        assert "&lt;img src=x onerror=alert(1)&gt;" in text, name


def test_no_page_names_another_origin() -> None:
    for name, text in every_page(SampleRun(NOW_MS), Frame("overview")).items():
        assert not re.search(r'(?:href|src|action)="(?:https?:)?//', text), name


def test_the_overview_says_the_runs_numbers_without_javascript(sample: SampleRun) -> None:
    text = render_page("overview", sample, Frame("overview"))
    assert f"{sample.overview().run.n_calls}</b>" in text
    assert "2 m 30 s" in text
    assert "generate_sequences" in text
    assert "reward/mean" in text
    assert "call 187 on rollout" in text
    assert "of 60" in text


def test_pause_buttons_are_there_only_for_who_may_press_them(sample: SampleRun) -> None:
    may = render_page("overview", sample, Frame("overview", controllable=True, csrf="secret-7"))
    may_not = render_page("overview", sample, Frame("overview", csrf="secret-7", control_hint="Start with --control."))
    assert may.count('data-pool-action="pause"') == 2
    assert '<meta name="csrf" content="secret-7">' in may
    assert "data-pool-action" not in may_not
    assert "secret-7" not in may_not
    assert "Start with --control." in may_not


def test_a_paused_pool_offers_to_resume(sample: SampleRun) -> None:
    sample.pool_states["train"] = "paused"
    text = render_page("overview", sample, Frame("overview", controllable=True, csrf="s"))
    assert text.count('data-pool-action="resume"') == 1
    assert text.count('data-pool-action="pause"') == 1


def test_a_run_without_calls_says_what_will_appear_and_where() -> None:
    empty = SampleRun(NOW_MS, is_empty=True)
    first = render_page("overview", empty, Frame("overview"))
    assert "No calls yet" in first
    assert "2 pools and 3 worker groups" in first
    assert "No step metrics yet" in first
    assert "No calls yet" in render_page("calls", empty, Frame("calls"))
    assert render_call(empty, Frame("call"), 1) is None


def test_a_dead_run_names_who_died_first(sample: SampleRun) -> None:
    sample.died = True
    text = render_page("overview", sample, Frame("overview"))
    assert "The driver died." in text
    assert "rollout · rank 3 died first, at 2:30.000: killed by SIGKILL, out of memory" in text


def test_the_timeline_lists_a_lane_per_rank_and_the_drivers(sample: SampleRun) -> None:
    page = _Page(render_page("timeline", sample, Frame("timeline")))
    lanes = [attributes["data-lane"] for attributes in page.having("data-lane")]
    assert lanes == [
        "driver",
        *(f"rollout/{rank}" for rank in range(4)),
        *(f"{group}/{rank}" for group in ("actor", "critic") for rank in range(2)),
    ]


def test_the_page_of_a_failed_call_shows_error_rank_and_traceback(sample: SampleRun) -> None:
    text = render_call(sample, Frame("call"), FAILED_CALL)
    assert text is not None
    assert "torch.OutOfMemoryError" in text
    assert "on rank 3" in text
    assert "Traceback (most recent call last)" in text
    assert 'href="/calls/181"' in text
    assert 'href="/calls/193"' in text


def test_the_page_of_a_call_has_a_line_per_rank_longest_first(sample: SampleRun) -> None:
    text = render_call(sample, Frame("call"), FAILED_CALL) or ""
    ranks = re.findall(r'<th scope="row">(\d+)', text)
    assert sorted(ranks) == ["0", "1", "2", "3"]
    assert ranks[0] == "3"
    assert text.count("slowest</span>") == 1


def test_an_unknown_call_has_no_page(sample: SampleRun) -> None:
    assert render_call(sample, Frame("call"), 10**9) is None


def test_the_calls_are_narrowed_and_the_next_page_keeps_the_filter(sample: SampleRun) -> None:
    text = render_page("calls", sample, Frame("calls", params={"group": "rollout"}))
    listed = re.findall(r'<tr data-key="(\d+)"', text)
    expected = sample.calls(pages.CALLS_PER_PAGE, None, CallFilter(group="rollout")).items
    assert listed == [str(call.id) for call in expected]
    everything = render_page("calls", sample, Frame("calls", params={"status": "ok"}))
    cursor = re.search(r'href="/calls\?cursor=(\d+)&amp;status=ok"', everything)
    assert cursor is not None
    older = render_page("calls", sample, Frame("calls", params={"status": "ok", "cursor": cursor[1]}))
    assert f'data-key="{int(cursor[1]) - 1}"' in older
    assert 'href="/calls?status=ok"' in older


def test_a_filter_that_matches_nothing_is_named_and_can_be_cleared(sample: SampleRun) -> None:
    text = render_page("calls", sample, Frame("calls", params={"method": "no_such", "status": "error"}))
    assert "No call matches method <code>no_such</code>, status <code>error</code>." in text
    assert '<a href="/calls">Clear filters</a>' in text


@pytest.mark.parametrize(
    "params",
    [
        {"step": "x"}, {"step": "-1"}, {"step": "9" * 40}, {"step": "²"}, {"status": "odd"}, {"min_ms": "long"},
        {"min_ms": "-3"}, {"min_ms": "nan"}, {"min_ms": "inf"}, {"padding_above": "101"}, {"above_p95": "no"},
    ],
)  # fmt: skip
def test_a_filter_that_cannot_be_meant_narrows_nothing(params: dict[str, str]) -> None:
    assert pages.call_filter(params) == CallFilter()


def test_only_the_first_page_of_the_list_follows_the_run(sample: SampleRun) -> None:
    first = render_page("calls", sample, Frame("calls", params={"status": "ok"}))
    assert re.findall(r'data-live-part="(calls)" data-mark-new', first) == ["calls"]
    assert 'data-live-part="calls"' not in render_page("calls", sample, Frame("calls", params={"cursor": "100"}))


def test_a_page_that_follows_the_run_fetches_its_parts_and_nothing_around_them(sample: SampleRun) -> None:
    for page in PAGES:
        whole = render_page(page.name, sample, Frame(page.name, live=True))
        parts = render_page(page.name, sample, Frame(page.name, live=True, parts_only=True))
        names = re.findall(r'data-live-part="([^"]+)"', whole)
        assert sorted(re.findall(r'data-live-part="([^"]+)"', parts)) == sorted(names), page.name
        assert {"run-state", "recorder"} <= set(names), page.name
        assert not re.search(r"<nav class=.tabs|<dialog class=.help|<script (?:src|type=.module)", parts), page.name


def test_the_panel_of_now_asks_the_driver_where_there_is_one(sample: SampleRun) -> None:
    live = CallInFlight(901, "actor", "train", "update_now", True, 1.0, 2_500.0, 2, (RankOut(1, 2_400.0, "n0", 7),))
    text = render_page("overview", sample, Frame("overview", controllable=True, csrf="s", in_flight=lambda: (live,)))
    assert "update_now" in text
    assert 'data-stacks="901"' in text
    assert "update_now" not in render_page("overview", sample, Frame("overview"))
    assert "data-stacks" not in render_page("overview", sample, Frame("overview", in_flight=lambda: (live,)))


def test_lengths_padding_and_slowness_are_filters_that_the_url_keeps(sample: SampleRun) -> None:
    params = {"min_ms": "12.5", "padding_above": "5", "above_p95": "1"}
    narrowed = pages.call_filter(params)
    assert narrowed == CallFilter(min_ms=12.5, padding_above=0.05, above_p95=True)
    assert {name: str(value) for name, value in pages.filter_params(narrowed).items() if value} == params
    text = render_page("calls", sample, Frame("calls", params=params))
    assert 'name="min_ms" inputmode="decimal" pattern="[0-9]*[.]?[0-9]*" size="5" value="12.5"' in text
    assert '<input type="checkbox" name="above_p95" value="1" checked>' in text


@pytest.mark.parametrize("name", ["min_ms", "padding_above"])
@pytest.mark.parametrize("text", ["33.333333", "0.000001", "7", "0"])
def test_a_number_in_a_filter_is_the_same_on_the_next_page(name: str, text: str) -> None:
    assert pages.filter_params(pages.call_filter({name: text}))[name] == text


@pytest.mark.parametrize("text", ["1000000", "1234567.25", "1000000000000"])
def test_a_long_time_in_a_filter_has_no_exponent_that_the_form_would_not_take(text: str) -> None:
    assert pages.filter_params(pages.call_filter({"min_ms": text}))["min_ms"] == text


def test_a_page_that_looked_at_many_calls_in_vain_says_how_far_and_goes_on(sample: SampleRun) -> None:
    class Long(SampleRun):
        def calls(self, limit: int, cursor: int | None, narrowed: CallFilter) -> CallPage:
            return CallPage((), 800_000)

    text = render_page("calls", Long(NOW_MS), Frame("calls", params={"min_ms": "99"}))
    assert "No call down to #800,000 matches duration of at least (ms) <code>99</code>." in text
    assert 'rel="next" href="/calls?cursor=800000&amp;min_ms=99"' in text


def test_urls_and_assets_keep_the_root_path_and_the_version(sample: SampleRun) -> None:
    frame = Frame("overview", asset_version="f00", root="/podium")
    text = render_page("overview", sample, frame)
    assert 'href="/podium/static/podium.css?v=f00"' in text
    assert 'data-root="/podium"' in text
    assert not re.search(r'(?:href|src)="/(?!podium)', text)


def test_the_height_of_the_metrics_is_known_before_they_are_drawn(sample: SampleRun) -> None:
    text = render_page("overview", sample, Frame("overview"))
    assert "--wide-px:232px;--narrow-px:468px" in text


def test_a_metric_that_is_no_number_does_not_break_the_data_block() -> None:
    class Odd(SampleRun):
        def overview(self) -> Overview:
            steps = (Step(0, 2, 0.0, 5.0, (("loss", float("nan")), ("norm", float("inf")), ("reward", 0.5))),)
            return replace(super().overview(), steps=steps)

    text = render_page("overview", Odd(NOW_MS), Frame("overview"))
    block = re.search(r'id="steps">(.*?)</script>', text)
    assert block is not None
    (step,) = json.loads(block[1], parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert step["metrics"] == [["loss", None], ["norm", None], ["reward", 0.5]]


def test_a_running_call_says_how_long_it_has_run(sample: SampleRun) -> None:
    (running,) = sample.calls(10, None, CallFilter(status="running")).items
    text = render_call(sample, Frame("call", live=True), running.id)
    assert text is not None
    assert f"{units.duration(NOW_MS - running.started_ms)} so far" in text


def test_a_call_in_flight_when_the_driver_died_says_so() -> None:
    class Dead(SampleRun):
        def run(self) -> Run:
            return replace(super().run(), state="died")

    dead = Dead(NOW_MS)
    (running,) = dead.calls(10, None, CallFilter(status="running")).items
    text = render_call(dead, Frame("call"), running.id)
    assert text is not None
    assert ", in flight when the run died" in text


def test_a_long_runs_page_carries_a_thinned_figure_with_its_last_step() -> None:
    class Long(SampleRun):
        def overview(self) -> Overview:
            steps = tuple(Step(i, 25_000, i * 10.0, i * 10.0 + 9, (("reward", 0.5),)) for i in range(25_000))
            return replace(super().overview(), steps=steps)

    text = render_page("overview", Long(NOW_MS), Frame("overview"))
    block = re.search(r'id="steps">(.*?)</script>', text)
    assert block is not None
    steps = json.loads(block[1])
    assert MAX_STEPS_IN_FIGURE / 2 < len(steps) <= MAX_STEPS_IN_FIGURE + 1
    assert steps[-1]["index"] == 24_999


def test_a_call_outside_of_steps_names_none(sample: SampleRun) -> None:
    class Stepless(SampleRun):
        def call(self, call_id: int) -> CallDetail | None:
            found = super().call(call_id)
            return found and replace(found, call=replace(found.call, step=0))

    assert "not in a step" in (render_call(Stepless(NOW_MS), Frame("call"), 5) or "")
    assert "not in a step" not in (render_call(sample, Frame("call"), 5) or "")
