"""How a call's steps add up to the shares that the pages show."""

from __future__ import annotations

import pytest

from tests.unit.web_sample import SampleRun
from web.phases import PHASES, durations_ms, shares_of_call, shares_of_wall_time


def test_the_shares_of_a_call_are_a_whole() -> None:
    detail = SampleRun(150_000.0).call(10)
    assert detail is not None
    shares = shares_of_call(detail)
    assert [share.phase for share in shares] == list(PHASES)
    assert sum(share.share for share in shares) == pytest.approx(1)
    assert tuple(share.ms for share in shares) == durations_ms(detail)


def test_wall_time_is_phases_and_the_drivers_own_time() -> None:
    overview = SampleRun(150_000.0).overview()
    shares = shares_of_wall_time(overview.methods, overview.run.duration_ms)
    assert shares[-1].phase.name == "driver"
    assert sum(share.ms for share in shares) == pytest.approx(overview.run.duration_ms)
    assert sum(share.share for share in shares) == pytest.approx(1)


def test_calls_of_several_threads_never_make_more_than_a_whole() -> None:
    overview = SampleRun(150_000.0).overview()
    shares = shares_of_wall_time(overview.methods, 1_000.0)
    assert sum(share.share for share in shares) == pytest.approx(1)
    assert shares[-1].ms == 0


def test_no_calls_have_no_shares() -> None:
    assert {share.share for share in shares_of_wall_time((), 0.0)} == {0.0}
