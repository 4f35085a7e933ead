"""The calls in flight as values: who is out, for how long, behind what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.errors import WorkerMethodError
from core.health.in_flight import calls_in_flight
from core.testing import FakeClock, RecordingObserver, local_controller
from tests.group_workers import Held, Waiting


@pytest.fixture
def local() -> Iterator[tuple[Controller, RecordingObserver]]:
    Held.gate.clear()
    with local_controller() as (controller, seen):
        try:
            yield controller, seen
        finally:
            Held.gate.set()


def test_a_call_in_flight_names_its_ranks_and_their_seconds(local: tuple[Controller, RecordingObserver]) -> None:
    runtime = local[0].runtime
    group = RayWorkerGroup(RayResourcePool([2], name_prefix="trainer"), RayClassWithInitArgs(Waiting))
    clock = FakeClock()
    runtime.clock = clock  # type: ignore[assignment]
    assert calls_in_flight(runtime) == ()
    for _ in local[0].steps(1):
        later = group.wait_later()
        clock.advance(3.5)
        (call,) = calls_in_flight(runtime)
    assert (call.group, call.pool, call.method, call.step) == ("Waiting", "trainer", "wait_later", 1)
    assert (call.blocking, call.failed, call.seconds, call.answered) == (False, False, 3.5, ())
    assert [(out.rank, out.seconds, out.behind) for out in call.out] == [(0, 3.5, 0), (1, 3.5, 0)]
    Held.gate.set()
    assert local[0].runtime.cluster.fetch(later) == [0, 1]
    local[1].last_call()
    assert calls_in_flight(runtime) == ()


def test_a_rank_that_is_still_out_with_an_earlier_call_is_said_to_be_behind_it(
    local: tuple[Controller, RecordingObserver],
) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Waiting))
    group.wait_later()
    group.nap_later(0.0)
    first, second = calls_in_flight(local[0].runtime)
    assert [out.behind for out in first.out] == [0, 0]
    assert [out.behind for out in second.out] == [first.call_id, first.call_id]


def test_a_call_that_failed_stays_in_flight_while_ranks_are_out(local: tuple[Controller, RecordingObserver]) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Waiting))
    with pytest.raises(WorkerMethodError):
        group.execute_all_sync("slow_on_one")
    (call,) = calls_in_flight(local[0].runtime)
    assert call.failed
    assert call.answered == (0,)
    assert [out.rank for out in call.out] == [1]
