"""Which rank is slow, since when, and where in time: from a real file."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from app.store.reader import Reader
from app.store.writer import Writer
from tests.store_scene import facts, one_call, people
from web.heatmap import rank_lines
from web.stragglers import Straggler, nodes_of, stragglers
from web.verdicts import verdicts

pytestmark = pytest.mark.integration
N_RANKS, N_CALLS, SLOW_FROM, SLOW = 8, 50, 21, 5


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Yield a run of a call a second on 8 ranks, of which one is 1.3 times slower from the 21st call on."""
    path = tmp_path_factory.mktemp("ranks") / "run.db"
    dice = random.Random(6)
    writer = Writer(path, facts())
    writer.start()
    for event in people(N_RANKS):
        writer.put(event)
    for call_id in range(1, N_CALLS + 1):
        lengths = [100.0 + dice.uniform(-2.0, 2.0) for _ in range(N_RANKS)]
        if call_id >= SLOW_FROM:
            lengths[SLOW] *= 1.3
        for event in one_call(call_id, call_id * 1000.0, tuple(lengths)):
            writer.put(event)
    writer.close()
    with contextlib.closing(Reader(path, deadline_s=10)) as reader:
        yield reader


def found_in(reader: Reader) -> tuple[Straggler, ...]:
    workers = reader.workers()
    return stragglers(reader.overview().ranks, workers, verdicts(reader.rank_runs(), nodes_of(workers)))


def test_the_run_times_are_those_of_the_spans_of_each_call(reader: Reader) -> None:
    (runs,) = reader.rank_runs()
    assert (runs.group, runs.method, runs.n_ranks, runs.ranks) == ("actor", "update", N_RANKS, tuple(range(N_RANKS)))
    assert runs.call_id.tolist() == list(range(1, N_CALLS + 1))
    for row, call_id in enumerate(runs.call_id.tolist()):
        detail = reader.call(call_id)
        assert detail is not None
        for place, span in enumerate(detail.spans):
            assert span.started_ms is not None
            assert span.finished_ms is not None
            assert runs.run_ms[row, place] == pytest.approx(span.finished_ms - span.started_ms)
            assert runs.started_ms[row, place] == pytest.approx(span.started_ms)
            assert (runs.rows[row, place], runs.bytes[row, place]) == (span.rows_in, span.bytes_in)
            assert runs.clock_error_ms[place] == span.clock_error_ms


def test_the_verdict_says_which_rank_is_slow_and_since_which_call(reader: Reader) -> None:
    (found,) = verdicts(reader.rank_runs(), nodes_of(reader.workers()))
    (slow,) = found.slow
    assert (slow.rank, slow.since_call, slow.is_ongoing, slow.cause) == (SLOW, SLOW_FROM, True, "rank")
    assert slow.ratio == pytest.approx(1.3, abs=0.03)


def test_a_slow_rank_is_first_and_no_healthy_one_comes_near_it(reader: Reader) -> None:
    first, *others = found_in(reader)
    assert (first.total.rank, first.is_slow) == (SLOW, True)
    assert max(one.total.lost_ms for one in others) < 0.05 * first.total.lost_ms
    assert not any(one.is_slow for one in others)


def test_how_often_in_a_row_it_was_the_slowest_and_since_when(reader: Reader) -> None:
    first, *others = found_in(reader)
    n_slow = N_CALLS - SLOW_FROM + 1
    assert (first.total.streak, first.total.longest_streak, first.goes_on) == (n_slow, n_slow, True)
    assert first.total.longest_streak_from_ms == SLOW_FROM * 1000.0
    assert all(one.total.streak == 0 and one.total.longest_streak < n_slow and not one.goes_on for one in others)
    assert sum(one.total.n_slowest for one in (first, *others)) == N_CALLS


def test_the_map_of_ranks_shows_who_and_when(reader: Reader) -> None:
    found = reader.rank_map("actor", None, None, 1200)
    assert found is not None
    assert (found.bucket_ms, found.ranks) == (1000.0, tuple(range(N_RANKS)))
    for call_id in range(1, N_CALLS + 1):
        over = [row[call_id] for row in found.over_median]
        assert all(0.9 < x < 1.1 for rank, x in enumerate(over) if x and (rank, call_id >= SLOW_FROM) != (SLOW, True))
        assert ((over[SLOW] or 0.0) > 1.2) is (call_id >= SLOW_FROM)
    assert [row[0] for row in found.longest_ms] == [None] * N_RANKS
    worst = rank_lines(found)[0]
    assert (worst.rank, worst.n_slow) == (SLOW, 0)
    assert worst.worst_at_ms >= SLOW_FROM * 1000.0


def test_a_rank_that_is_alone_has_no_median_and_an_unknown_group_no_map(reader: Reader) -> None:
    assert reader.rank_map("nobody", None, None, 1200) is None
    later = reader.rank_map("actor", 900_000.0, 901_000.0, 1200)
    assert later is not None
    assert {number for row in later.over_median for number in row} == {None}
    assert rank_lines(later) == []
