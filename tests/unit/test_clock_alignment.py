"""How worker times come onto the driver's clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.group.clock import ClockAlignment

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
