"""The order of the test files in a parallel run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.longest_first import LONGEST_FIRST, missing, turn

TESTS = Path(__file__).parents[1]


def test_every_file_of_the_list_exists() -> None:
    assert missing(TESTS) == []


def test_the_listed_files_come_in_the_order_of_the_list_and_before_all_others() -> None:
    turns = [turn(TESTS / name) for name in LONGEST_FIRST]
    assert turns == sorted(turns)
    assert turn(TESTS / "unit/test_longest_first.py") > turns[-1]


def test_a_parallel_run_does_not_sort_the_files_by_their_number_of_tests(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.option.loadscopereorder is False
