"""Where the ranks' bars of a call lie on its page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.web_sample import SampleRun
from web.calls import CallDetail
from web.rows import RankSpan
from web.spans import rank_rows

SPAN = RankSpan(0, "node-0", 100.0, 110.0, 180.0, 190.0, 0.1, "ok", 8, 8, 64, 64)


def call_of(*spans: RankSpan) -> CallDetail:
    detail = SampleRun(150_000.0).call(1)
    assert detail is not None
    return replace(detail, spans=spans, slowest_rank=1, median_ms=70.0, max_ms=80.0)


def test_queued_ran_and_fetched_follow_each_other_without_gap() -> None:
    (row,) = rank_rows(call_of(SPAN), now_ms=500.0)
    assert [piece.kind for piece in row.pieces] == ["queued", "ran", "fetched"]
    assert [piece.ms for piece in row.pieces] == [10.0, 70.0, 10.0]
    assert [piece.left for piece in row.pieces] == pytest.approx([0, 11.111, 88.889])
    assert sum(piece.width for piece in row.pieces) == pytest.approx(100, abs=0.01)
    assert (row.queued_ms, row.ran_ms, row.fetched_ms, row.total_ms) == (10.0, 70.0, 10.0, 90.0)


def test_the_longest_rank_comes_first_and_the_slowest_is_marked() -> None:
    slower = replace(SPAN, rank=1, finished_ms=185.0)
    rows = rank_rows(call_of(SPAN, slower), now_ms=500.0)
    assert [row.span.rank for row in rows] == [1, 0]
    assert [row.is_slowest for row in rows] == [True, False]
    assert [row.over_median_ms for row in rows] == [5.0, 0.0]


def test_a_running_span_reaches_until_now() -> None:
    running = replace(SPAN, finished_ms=None, ready_ms=None, status="running")
    (row,) = rank_rows(call_of(running), now_ms=300.0)
    assert row.ran_ms == 190.0
    assert row.fetched_ms is None
    assert [piece.kind for piece in row.pieces] == ["queued", "ran"]


def test_a_rank_that_never_said_anything_has_one_piece_of_unknown() -> None:
    silent = replace(SPAN, started_ms=None, finished_ms=None)
    (row,) = rank_rows(call_of(silent), now_ms=300.0)
    assert [(piece.kind, piece.ms) for piece in row.pieces] == [("unknown", 90.0)]
    assert (row.queued_ms, row.ran_ms) == (None, None)


def test_a_span_that_sticks_out_of_its_call_stays_inside_of_the_bar() -> None:
    early = replace(SPAN, started_ms=90.0, outside=True)
    (row,) = rank_rows(call_of(early), now_ms=300.0)
    assert all(piece.left >= 0 and piece.left + piece.width <= 100.001 for piece in row.pieces)


def test_a_call_without_ranks_has_no_rows() -> None:
    assert rank_rows(call_of(), now_ms=300.0) == ()


def test_a_run_clock_that_is_behind_does_not_hide_a_running_rank() -> None:
    waiting = replace(SPAN, rank=1, started_ms=None, finished_ms=None, ready_ms=None, status="running")
    rows = rank_rows(call_of(SPAN, waiting), now_ms=50.0)
    pieces = {row.span.rank: row.pieces for row in rows}
    assert [(piece.kind, piece.ms) for piece in pieces[1]] == [("unknown", 90.0)]
