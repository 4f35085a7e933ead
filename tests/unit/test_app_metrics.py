"""What a driver did, as Prometheus reads it."""

from __future__ import annotations

import time
from dataclasses import replace

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import CONTENT_TYPE, Metrics
from app.store.writer import WriterState
from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core import get as get_values
from core.dispatch import Dispatch
from core.events import CallAwaited, CallFinished, CallStarted, Event, PoolStateChanged, RankFinished
from core.testing import local_controller
from tests.app_doubles import House, answer, check_problem, get


class Adder(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, left: int, right: int) -> int:
        return left + right

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def later(self) -> int:
        return 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        raise ValueError("no")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def recorder() -> WriterState:
    return WriterState(0, 10, 3, 0.25, "")


def read(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every sample by name and label values, in the order of the labels' names."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def started(call_id: int, blocking: bool = True) -> CallStarted:
    return CallStarted(call_id, 1_000_000_000, "actor", "gpus", 1, "update", "DP", "ALL", blocking, 20_000_000, 1)


def rank(call_id: int, number: int, ran_ms: int) -> RankFinished:
    return RankFinished(call_id, "actor", number, 0, 0, ran_ms * 1_000_000, 0, 0, "ok", 1, 1, 10, 10)


def finished(call_id: int, status: str = "ok", wait_ms: int = 300) -> CallFinished:
    return CallFinished(
        call_id, 1_400_000_000, status, 10, 10, (6, 6), 2, 1000, 2000, 2_000_000, 0, wait_ms * 1_000_000, 0, 0
    )


def tell(metrics: Metrics, *events: Event) -> None:
    for event in events:
        metrics.observe(event)


def test_a_call_is_counted_with_its_phases_and_the_spread_of_its_ranks() -> None:
    clock = Clock()
    metrics = Metrics(recorder, clock)
    tell(metrics, started(1), rank(1, 0, 100), finished(1), rank(1, 1, 160))
    assert ("podium_rank_spread_seconds_count", ("actor", "update")) in read(metrics)
    assert read(metrics)["podium_rank_spread_seconds_count", ("actor", "update")] == 0
    clock.now_s = 1.1
    found = read(metrics)
    assert found["podium_calls_total", ("actor", "update", "ok")] == 1
    assert found["podium_call_duration_seconds_sum", ("actor", "update", "wait")] == pytest.approx(0.3)
    assert found["podium_call_duration_seconds_sum", ("actor", "update", "gate")] == pytest.approx(0.02)
    assert found["podium_call_duration_seconds_sum", ("actor", "update", "total")] == pytest.approx(0.4)
    assert found["podium_call_duration_seconds_bucket", ("actor", "0.25", "update", "wait")] == 0
    assert found["podium_call_duration_seconds_bucket", ("actor", "0.5", "update", "wait")] == 1
    assert found["podium_call_duration_seconds_bucket", ("actor", "+Inf", "update", "wait")] == 1
    assert found["podium_rank_spread_seconds_sum", ("actor", "update")] == pytest.approx(0.06)
    assert found["podium_padding_rows_total", ("actor", "update")] == 2
    assert found["podium_payload_bytes_total", ("out",)] == 1000
    assert found["podium_payload_bytes_total", ("in",)] == 2000
    assert found["podium_recorder_dropped_total", ()] == 3
    assert found["podium_recorder_lag_seconds", ()] == 0.25
    assert found["podium_calls_in_flight", ()] == 0


@pytest.mark.parametrize("awaited_first", [True, False])
def test_the_wait_of_a_call_that_does_not_block_comes_when_its_value_is_asked_for(awaited_first: bool) -> None:
    metrics = Metrics(recorder, Clock())
    awaited = CallAwaited(1, 0, 50_000_000, 0, 0)
    both = (awaited, finished(1, wait_ms=0)) if awaited_first else (finished(1, wait_ms=0), awaited)
    tell(metrics, started(1, blocking=False), *both[:1])
    tell(metrics, both[1])
    found = read(metrics)
    assert found["podium_call_duration_seconds_sum", ("actor", "update", "wait")] == pytest.approx(0.05)


def test_nothing_grows_with_the_number_of_calls() -> None:
    clock = Clock()
    metrics = Metrics(recorder, clock)
    for call_id in range(1, 12_000):
        tell(metrics, started(call_id, blocking=False), finished(call_id))
    held = vars(metrics)
    assert (len(held["_calls"]), len(held["_settling"]), len(held["_unawaited"])) == (256, 256, 10_000)
    tell(metrics, finished(99_999), rank(99_999, 0, 1), CallAwaited(99_999, 0, 0, 0, 0))
    assert len(metrics.text()) < 20_000


def test_a_real_driver_is_counted_and_no_label_names_a_rank() -> None:
    metrics = Metrics(recorder)
    with local_controller() as (controller, seen):
        controller.runtime.bus.subscribe(metrics)
        with RayResourcePool([2], name_prefix="gpus") as pool:
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Adder))
            group.add(1, 2)
            assert get_values(group.later()) == [1, 1]
            with pytest.raises(Exception, match="no"):
                group.fail()
            seen.await_count(CallFinished, 3)
            found = read(metrics)
            statuses = {key[1][1:]: value for key, value in found.items() if key[0] == "podium_calls_total"}
            assert statuses == {("add", "ok"): 1, ("later", "ok"): 1, ("fail", "error"): 1}
            assert found["podium_workers", ("alive",)] == 2
            assert found["podium_pool_generation", ("gpus",)] == pool.generation
        found = read(metrics)
        assert (found["podium_workers", ("alive",)], found["podium_workers", ("ended",)]) == (0, 2)
        assert ("podium_pool_generation", ("gpus",)) not in found
    assert b"rank=" not in metrics.text()


def test_our_registry_is_our_own() -> None:
    Metrics(recorder)
    assert b"podium_" not in prometheus_client.generate_latest()


def test_a_pool_that_failed_keeps_its_generation() -> None:
    metrics = Metrics(recorder)
    tell(metrics, PoolStateChanged(0, "gpus", "failed", 4))
    assert read(metrics)["podium_pool_generation", ("gpus",)] == 4


def test_observing_a_call_costs_microseconds() -> None:
    metrics = Metrics(recorder)
    events = [event for call_id in range(2000) for event in (started(call_id), rank(call_id, 0, 5), finished(call_id))]
    began_s = time.thread_time()
    tell(metrics, *events)
    # Far above what it takes; a cost that grows with the number of calls would be seen.
    assert (time.thread_time() - began_s) / len(events) < 100e-6


def test_metrics_need_the_read_token_unless_they_are_open() -> None:
    for is_open in (False, True):
        house = House(metrics_open=is_open)
        metrics = Metrics(recorder)
        house.app.state.context = replace(house.app.state.context, metrics=metrics.text)
        scraped = get("/metrics", house, token=house.tokens.read)
        assert (scraped.status_code, scraped.headers["content-type"]) == (200, CONTENT_TYPE)
        assert "podium_recorder_lag_seconds 0.25" in scraped.text
        assert get("/metrics", house, token="").status_code == (200 if is_open else 401)
        assert get("/api/v1/runs", house, token="").status_code == 401
        assert answer(house, "POST", "/metrics", token="", json={}).status_code == 401


def test_a_file_has_no_metrics() -> None:
    house = House(plane=None)
    check_problem(get("/metrics", house, token=house.tokens.read), 404, "not-found")
