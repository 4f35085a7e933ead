"""Calls that last: told once, again when the time has doubled, and never for a call that waits behind another."""

from __future__ import annotations

from dataclasses import replace

import pytest

import core
from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.errors import UsageError
from core.events import CallStalled
from core.health.in_flight import CallInFlight, RankOut
from core.health.stalls import Stalls
from core.testing import local_controller
from tests.group_workers import Held, Waiting

CALL = CallInFlight(7, "trainer", "pool", "step", 1, True, 0, 0.0, (RankOut(0, 0.0), RankOut(1, 0.0)), ())


def lasting(seconds: float, behind: int = 0) -> CallInFlight:
    """Return the call when its rank 1 has been out for so long."""
    return replace(CALL, out=(RankOut(1, seconds, behind),))


def test_a_stall_is_told_when_it_is_due_and_each_time_it_doubles() -> None:
    stalls = Stalls()
    told = [seconds for seconds in range(0, 500, 10) if stalls.due([lasting(seconds)], 60)]
    assert told == [60, 120, 240, 480]


def test_a_call_behind_another_is_not_told_and_one_that_ended_is_forgotten() -> None:
    stalls = Stalls()
    assert stalls.due([lasting(100, behind=3)], 60) == []
    assert len(stalls.due([lasting(100)], 60)) == 1
    assert stalls.due([], 60) == []
    assert len(stalls.due([lasting(100)], 60)) == 1


def test_a_stall_jumps_over_the_times_that_passed_unseen() -> None:
    stalls = Stalls()
    assert [bool(stalls.due([lasting(seconds)], 60)) for seconds in (1000, 1919, 1920)] == [True, False, True]


def test_a_call_that_lasts_is_an_event_with_the_ranks_that_are_out() -> None:
    Held.gate.clear()
    with local_controller() as (_, seen):
        core.set_health(stall_s=0.05)
        group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Waiting))
        group.wait_later()
        try:
            first, second = seen.await_count(CallStalled, 2)[:2]
        finally:
            Held.gate.set()
        assert (first.call_id, first.group, first.method, first.ranks) == (1, "Waiting", "wait_later", (0, 1))
        assert 0.05 <= first.seconds < second.seconds


def test_a_stall_must_have_a_time() -> None:
    with local_controller(), pytest.raises(UsageError, match="stall_s must be positive"):
        core.set_health(stall_s=0)
