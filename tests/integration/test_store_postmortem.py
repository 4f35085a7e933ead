"""What a file says of deaths, calls in flight, live changes and how long calls took."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.store.event_reducer import EventReducer
from app.store.facts import AuditFacts
from app.store.reader import Reader
from app.store.runfile import Counters, RunFile
from app.store.runs import crash_path
from core.events import (
    CallStalled,
    DeathReport,
    Event,
    OperationChanged,
    PoolChanged,
    RankState,
    SlotFacts,
    WorkerClock,
    WorkerEnded,
)
from tests.store_scene import MS, START_NS, S, at, facts, one_call, people, span, started

pytestmark = pytest.mark.integration

REPORT = DeathReport("actor", "actor-1", "a1", "killed by signal 9 (SIGKILL) from outside", 9, None, False)
FULL = replace(
    REPORT,
    evidence=("no oom_kill", "end of file"),
    memory_bytes=300,
    memory_limit_bytes=4000,
    others=(RankState(0, "in update", 1.25),),
    log_tail=("step 7", "loss 0.3"),
    policy="abort",
)
SLOTS = (SlotFacts(0, "10.0.0.1", 0, 0), SlotFacts(1, "10.0.0.2", 1, 0))


def story() -> list[object]:
    """Return a run: 100 calls, one stalled, one in flight for less long, two deaths, a live change."""
    calls = [event for n in range(1, 101) for event in one_call(n, n * 100.0, (10.0, 20.0 if n % 10 else 200.0))]
    changes: list[Event] = [
        OperationChanged(at(3), "op1", "resize", "train", "waiting_for_safe_point", "ada", 0, plan='{"moves": 2}'),
        OperationChanged(at(9), "op1", "resize", "train", "running", "ada", 0),
        PoolChanged(at(10), "train", (1, 1), SLOTS, 1, "op1"),
        OperationChanged(at(11), "op1", "resize", "train", "succeeded", "ada", 0, downtime_ns=2 * MS),
        WorkerClock(at(12), "actor", 1, 5 * S, MS),
    ]
    last: list[Event] = [
        started(101, 20_000),
        span(101, 0, 20_003, 20_010),
        started(102, 21_000, blocking=False),
        CallStalled(at(80_000), 101, "actor", "update", (1,), 60.0),
        WorkerEnded(at(81_000), "actor", 1, True, "killed", 1001, "10.0.0.1", "update", 101, FULL),
        WorkerEnded(at(82_000), "actor", 0, True, "gone with it"),
    ]
    entry = AuditFacts(at(2), "ada", "127.0.0.1", "curl", "r1", "resize", "train", 0, "accepted", "", "op1")
    return [*people(), *changes, *calls, entry, *last]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Return a reader of a file whose driver died 90 s after it began."""
    path = tmp_path_factory.mktemp("died") / "run.db"
    file = RunFile(path)
    file.create(facts())
    reducer = EventReducer(START_NS)
    reducer.note_dropped(5, at(50), at(70), "disk is full")
    batch = reducer.take(story(), now_ns=at(90_000))
    assert batch.n_refused == 0
    file.write(batch, Counters(1, batch.n_events))
    file.close()
    crash_path(path).write_text(
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n", encoding="utf-8"
    )
    with contextlib.closing(Reader(path, wall_ns=lambda: 2 * START_NS)) as found:
        yield found


def test_the_deaths_are_told_in_order_each_with_its_report(reader: Reader) -> None:
    first, second = reader.deaths()
    assert (first.group, first.rank, first.pid, first.node, first.at_ms) == ("actor", 1, 1001, "10.0.0.1", 81_000.0)
    assert (first.cause, first.signal, first.exit_code, first.oom) == (FULL.cause, 9, None, False)
    assert (first.evidence, first.log_tail, first.policy) == (FULL.evidence, FULL.log_tail, "abort")
    assert (first.memory_bytes, first.memory_limit_bytes) == (300, 4000)
    assert [(other.rank, other.state, other.seconds) for other in first.others] == [(0, "in update", 1.25)]
    assert (first.role, first.worker, first.actor_id, first.method, first.call_id) == (
        "actor",
        "actor-1",
        "a1",
        "update",
        101,
    )
    assert (second.rank, second.cause, second.others, second.evidence) == (0, "gone with it", (), ())


def test_calls_in_flight_say_who_has_not_answered_and_for_how_long(reader: Reader) -> None:
    stalled, other = reader.in_flight(10)
    assert (stalled.id, stalled.method, stalled.n_ranks, stalled.is_stalled) == (101, "update", 2, True)
    assert [(rank.rank, rank.pid, rank.node) for rank in stalled.out] == [(1, 1001, "10.0.0.1")]
    assert stalled.running_ms == stalled.out[0].out_ms == 70_000.0
    assert (other.id, [rank.rank for rank in other.out], other.is_stalled, other.blocking) == (
        102,
        [0, 1],
        False,
        False,
    )
    assert [call.id for call in reader.in_flight(1)] == [101]


def test_what_faulthandler_left_is_found_beside_the_file(reader: Reader, tmp_path: Path) -> None:
    assert reader.crash_text().startswith("Fatal Python error: Aborted")
    with contextlib.closing(Reader(tmp_path / "none.db")) as other:
        assert other.crash_text() == ""


def test_a_long_crash_text_is_cut_at_its_front(tmp_path: Path) -> None:
    crash_path(tmp_path / "run.db").write_text("x" * 300_000 + "the end", encoding="utf-8")
    with contextlib.closing(Reader(tmp_path / "run.db")) as other:
        assert len(other.crash_text()) == 256 * 1024
        assert other.crash_text().endswith("the end")


def test_each_generation_of_a_pool_is_there_with_its_slots_and_its_operation(reader: Reader) -> None:
    first, second = reader.pool_generations()
    assert (first.pool, first.generation, first.process_on_nodes, first.operation_id) == ("train", 0, (2,), "")
    assert [(slot.index, slot.node, slot.local_index) for slot in first.slots] == [
        (0, "10.0.0.1", 0),
        (1, "10.0.0.1", 1),
    ]
    assert (second.generation, second.process_on_nodes, second.operation_id) == (1, (1, 1), "op1")
    assert [slot.node for slot in second.slots] == ["10.0.0.1", "10.0.0.2"]


def test_an_operation_tells_its_plan_its_wait_and_its_downtime(reader: Reader) -> None:
    (operation,) = reader.operations(5, None)
    assert (operation.plan, operation.safe_point_ms, operation.downtime_ms) == ({"moves": 2}, 6.0, 2.0)
    (entry,) = reader.audit_entries(5, None)
    assert (entry.actor, entry.operation_id) == ("ada", "op1")


def test_a_worker_tells_its_clock_and_its_last_call(reader: Reader) -> None:
    zero, one = reader.workers()
    assert (one.clock_offset_ms, one.clock_error_ms) == (5_000.0, 1.0)
    assert zero.clock_offset_ms is None
    assert (zero.last_call_id, zero.last_method, one.last_call_id) == (101, "update", 100)


def test_a_gap_says_when_how_much_and_why(reader: Reader) -> None:
    (gap,) = reader.gaps()
    assert (gap.from_ms, gap.to_ms, gap.n_events, gap.reason) == (50.0, 70.0, 5, "disk is full")


def test_percentiles_come_from_the_histograms(reader: Reader) -> None:
    (update,) = reader.latencies(None, None)
    assert (update.group, update.method, update.n_calls) == ("actor", "update", 100)
    assert update.p50_ms == pytest.approx(24.0, rel=0.1)
    assert update.p95_ms == pytest.approx(204.0, rel=0.1)
    (early,) = reader.latencies(0, 1_000)
    assert early.n_calls == 9
    assert reader.latencies(50_000, 60_000) == ()


def test_a_methods_calls_are_laid_out_over_time_and_length(reader: Reader) -> None:
    found = reader.latency_map("actor", "update", 0, 12_000, 1000)
    assert found is not None
    assert (found.from_ms, found.bucket_ms, found.n_buckets) == (0.0, 1000.0, 12)
    assert sum(map(sum, found.counts)) == 100
    assert len(found.edges_ms) == len(found.counts) + 1
    assert found.edges_ms[0] <= 24.0 <= found.edges_ms[1]
    assert found.edges_ms[-2] <= 204.0 <= found.edges_ms[-1]
    assert (found.p50_ms[0], found.p50_ms[11]) == (pytest.approx(24.0, rel=0.1), None)
    assert reader.latency_map("actor", "nothing", None, None, 1000) is None
    empty = reader.latency_map("actor", "update", 50_000, 60_000, 1000)
    assert empty is not None
    assert (empty.n_buckets, empty.counts) == (10, ())


def test_an_older_file_tells_of_its_deaths_and_has_no_percentiles(tmp_path: Path) -> None:
    packed = Path(__file__).parents[1] / "data" / "run-schema-0001.db.gz"
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    with contextlib.closing(Reader(path)) as old:
        (death,) = old.deaths()
        assert (death.rank, death.pid, death.cause) == (1, 1001, "killed by signal 9 (SIGKILL) from outside")
        assert [(call.id, [rank.rank for rank in call.out]) for call in old.in_flight(5)] == [(241, [0, 1, 2])]
        assert (old.latencies(None, None), old.gaps()) == ((), ())
        assert old.workers()[0].last_call_id == 240
        assert [entry.outcome for entry in old.audit_entries(5, None)] == ["accepted"]
        assert len(old.pool_generations()) == 1
