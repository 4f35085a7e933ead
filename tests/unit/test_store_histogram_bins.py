"""Slots of length: a quarter of an octave each."""

from __future__ import annotations

import statistics
from collections import Counter
from random import Random

import pytest

from app.store.buckets import counts_with_coarser
from app.store.histogram_bins import bin_from_ns, bin_of, percentile_ns


@pytest.mark.parametrize("length_ns", [2, 3, 7, 1_000, 999_983, 10**9, 86_400 * 10**9])
def test_a_length_lies_within_its_slot(length_ns: int) -> None:
    slot = bin_of(length_ns)
    assert bin_from_ns(slot) <= length_ns * (1 + 1e-9)
    assert length_ns < bin_from_ns(slot + 1) * (1 + 1e-9)


def test_lengths_of_nothing_and_less_are_in_the_first_slot() -> None:
    assert [bin_of(length_ns) for length_ns in (-5, 0, 1)] == [0, 0, 0]


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 0.99])
def test_a_percentile_from_slots_is_at_most_a_tenth_off(share: float) -> None:
    chance = Random(3)
    lengths = [int(chance.lognormvariate(16, 0.6)) for _ in range(20_000)]
    exact = statistics.quantiles(lengths, n=100)[round(share * 100) - 1]
    assert percentile_ns(Counter(map(bin_of, lengths)), share) == pytest.approx(exact, rel=0.1)


def test_a_percentile_of_nothing_is_nothing() -> None:
    assert percentile_ns({}, 0.5) == 0.0


def test_coarser_buckets_count_the_same_calls() -> None:
    counts = {(0, 1, 0, 80): 2, (0, 1, 3, 80): 1, (0, 1, 4, 81): 5, (0, 2, 1023, 7): 1}
    whole = counts_with_coarser(counts)
    assert {key: n for key, n in whole.items() if key[0] == 1} == {
        (1, 1, 0, 80): 3,
        (1, 1, 1, 81): 5,
        (1, 2, 255, 7): 1,
    }
    assert [sum(n for key, n in whole.items() if key[0] == level) for level in range(6)] == [9] * 6
