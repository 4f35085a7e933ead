"""Which spans go."""

from __future__ import annotations

from app.store.prune import Retention, cut_ns

S = 1_000_000_000


def test_a_young_run_in_a_small_file_keeps_everything() -> None:
    assert cut_ns(Retention(1000, 60), 100, 30 * S, 0) is None


def test_spans_older_than_asked_go() -> None:
    assert cut_ns(Retention(0, 60), 10**12, 100 * S, 0) == 40 * S


def test_age_is_looked_at_in_strides_and_not_for_every_span() -> None:
    assert cut_ns(Retention(0, 60), 0, 103 * S, 40 * S) is None
    assert cut_ns(Retention(0, 60), 0, 107 * S, 40 * S) == 47 * S


def test_a_file_nearly_full_lets_the_oldest_tenth_go() -> None:
    assert cut_ns(Retention(1000, 0), 899, 100 * S, 0) is None
    assert cut_ns(Retention(1000, 0), 901, 100 * S, 0) == 10 * S
    assert cut_ns(Retention(1000, 0), 901, 100 * S, 10 * S) == 19 * S


def test_no_bound_means_no_bound() -> None:
    assert cut_ns(Retention(0, 0), 10**15, 10**18, 0) is None


def test_when_nothing_is_left_to_let_go_nothing_is_asked_for() -> None:
    assert cut_ns(Retention(1000, 0), 901, 5 * S, 5 * S) is None
