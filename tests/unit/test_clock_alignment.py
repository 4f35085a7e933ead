"""How worker times come onto the driver's clock."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.events import CallFinished, CallStarted, RankFinished, WorkerClock
from core.group.clock import ClockAlignment
from core.testing import local_controller
from core.worker import shell, work
from tests.group_workers import Rows

spans = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))


def test_without_any_call_a_time_stays_as_it_is() -> None:
    assert ClockAlignment().align(17) == (17, 0)


def test_one_round_trip_puts_the_offset_in_the_middle_with_half_the_slack_as_error() -> None:
    clock = ClockAlignment()
    clock.learn(submitted_ns=1_000, started_ns=5_100, finished_ns=5_200, ready_ns=1_400)
    # offset is between 1000 - 5100 and 1400 - 5200
    assert clock.align(5_100) == (1_150, 150)


@given(offset_ns=st.integers(-(10**12), 10**12), calls=st.lists(spans, min_size=1, max_size=8))
def test_the_true_offset_is_within_the_error_and_more_calls_never_widen_it(
    offset_ns: int, calls: list[tuple[int, int, int]]
) -> None:
    clock, now_ns, errors = ClockAlignment(), 10**9, []
    for there_ns, running_ns, back_ns in calls:
        submitted_ns = now_ns
        started_ns = submitted_ns + there_ns
        finished_ns = started_ns + running_ns
        now_ns = finished_ns + back_ns
        clock.learn(submitted_ns, started_ns - offset_ns, finished_ns - offset_ns, now_ns)
        aligned_ns, error_ns = clock.align(started_ns - offset_ns)
        assert abs(aligned_ns - started_ns) <= error_ns + 1
        assert submitted_ns <= aligned_ns
        assert clock.align(finished_ns - offset_ns)[0] <= now_ns
        errors.append(error_ns)
    assert errors == sorted(errors, reverse=True)


def test_after_a_drift_that_no_offset_explains_it_learns_anew() -> None:
    clock = ClockAlignment()
    clock.learn(0, 100, 200, 110)
    clock.learn(10**9, 10**9 + 5_000, 10**9 + 5_100, 10**9 + 120)
    aligned_ns, error_ns = clock.align(10**9 + 5_000)
    assert 10**9 <= aligned_ns <= 10**9 + 120
    assert error_ns <= 60


def test_an_estimate_is_news_at_first_when_it_is_twice_as_good_and_when_it_is_another() -> None:
    clock = ClockAlignment()
    assert clock.news() is None
    clock.learn(0, 1_000, 1_100, 300)
    assert clock.news() == (-900, 100)
    clock.learn(1_000, 1_950, 2_000, 1_210)  # from -950 to -790: no better
    assert clock.news() is None
    clock.learn(2_000, 2_920, 2_950, 2_080)  # from -920 to -870
    assert clock.news() == (-895, 25)
    assert clock.news() is None
    clock.learn(10**9, 10**9, 10**9 + 10, 10**9 + 20)  # the clocks have drifted apart
    assert clock.news() == (5, 5)


class _Clock:
    """Stands for the ``time`` of workers: that of rank 1 is 5 s ahead."""

    @staticmethod
    def monotonic_ns() -> int:
        """Return this thread's time."""
        return time.monotonic_ns() + (5 * 10**9 if ":1" in threading.current_thread().name else 0)


def test_spans_of_a_worker_whose_clock_is_5_s_ahead_land_inside_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shell, work):
        monkeypatch.setattr(module, "time", _Clock)
    with local_controller() as (_, seen):
        group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Rows))
        for _ in range(3):
            group.echo(1)
        spans, calls = seen.await_count(RankFinished, 6), seen.await_count(CallFinished, 3)
        begins = {event.call_id: event.at_ns for event in seen.of(CallStarted)}
        clocks = seen.of(WorkerClock)
    for call in calls:
        for span in (span for span in spans if span.call_id == call.call_id):
            assert span.started_ns is not None
            assert span.finished_ns is not None
            # An estimate may be off by its error, and no more.
            assert begins[call.call_id] <= span.submitted_ns <= span.started_ns + span.clock_error_ns
            assert span.started_ns <= span.finished_ns <= span.ready_ns + span.clock_error_ns
            assert span.finished_ns <= call.at_ns + span.clock_error_ns
    for clock in clocks:
        assert abs(clock.offset_ns - 5 * 10**9 * clock.rank) <= clock.error_ns + 1
    assert {clock.rank for clock in clocks} == {0, 1}
