"""The arithmetic of roll-ups and of heat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.buckets import (
    BUCKET_NS,
    FACTOR,
    MAX_BUCKETS,
    N_LEVELS,
    Cells,
    add_busy,
    add_span,
    level_for,
    with_coarser,
)
from app.store.read_heat import coverage
from app.store.totals import median

S = 1_000_000_000


def test_a_span_inside_one_bucket_is_busy_there_for_its_length() -> None:
    cells: Cells = {}
    add_busy(cells, 3, int(1.25 * S), int(1.75 * S))
    assert {key: cell.busy_ns for key, cell in cells.items()} == {(0, 3, 1): S // 2}


def test_a_span_that_ends_on_a_border_leaves_the_next_bucket_alone() -> None:
    cells: Cells = {}
    add_busy(cells, 1, 0, 2 * S)
    assert {key: cell.busy_ns for key, cell in cells.items()} == {(0, 1, 0): S, (0, 1, 1): S}


@given(st.integers(0, 100 * S), st.integers(0, 100 * S))
def test_busy_time_is_neither_lost_nor_made_on_any_level(began_ns: int, length_ns: int) -> None:
    cells: Cells = {}
    add_busy(cells, 1, began_ns, began_ns + length_ns)
    whole = with_coarser(cells)
    for level in range(N_LEVELS):
        assert sum(cell.busy_ns for (own, _, _), cell in whole.items() if own == level) == length_ns
        assert all(cell.busy_ns <= BUCKET_NS[level] for (own, _, _), cell in whole.items() if own == level)


def test_a_coarse_bucket_keeps_the_longest_span_of_its_fine_ones_and_counts_all() -> None:
    cells: Cells = {}
    for bucket, (length_ns, call_id) in enumerate([(5, 11), (9, 12), (7, 13), (1, 14)]):
        add_span(cells, 1, bucket * S, length_ns, call_id, failed=call_id == 13)
    coarse = with_coarser(cells)[1, 1, 0]
    assert (coarse.n, coarse.max_ns, coarse.max_call_id, coarse.err_n) == (FACTOR, 9, 12, 1)


def test_taking_coarser_cells_leaves_the_fine_ones_as_they_were() -> None:
    cells: Cells = {}
    add_span(cells, 1, 0, 5, 11, failed=False)
    with_coarser(cells)
    assert list(cells) == [(0, 1, 0)]


@pytest.mark.parametrize("hours", [0.01, 1, 8, 100])
@pytest.mark.parametrize("n_lanes", [2, 9, 65, 1025])
def test_a_window_gets_no_more_buckets_than_an_answer_may_hold(hours: float, n_lanes: int) -> None:
    window_ns = int(hours * 3600 * S)
    level = level_for(window_ns, n_lanes, 1400)
    n_buckets = window_ns / BUCKET_NS[level]
    assert n_buckets <= MAX_BUCKETS
    assert n_buckets * n_lanes <= 102_500 or level == N_LEVELS - 1


def test_a_wider_figure_never_gets_coarser_buckets() -> None:
    levels = [level_for(4 * 3600 * S, 9, px) for px in (200, 600, 1200, 2400)]
    assert levels == sorted(levels, reverse=True)


@given(st.lists(st.tuples(st.floats(-5, 25), st.floats(0, 20)), max_size=30))
def test_coverage_equals_what_each_span_covers_of_each_bucket(spans: list[tuple[float, float]]) -> None:
    a = np.array([begin for begin, _ in spans], dtype=np.float64)
    b = np.array([begin + length for begin, length in spans], dtype=np.float64)
    covered = coverage(np.zeros(len(spans), dtype=np.int64), a, b, (1, 20))[0]
    for bucket in range(20):
        expected = sum(max(0.0, min(end, bucket + 1) - max(begin, bucket)) for begin, end in zip(a, b, strict=True))
        assert covered[bucket] == pytest.approx(expected, abs=1e-9)


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    assert median([1, 2, 9]) == 2
    assert median([1, 2, 4, 9]) == 3
