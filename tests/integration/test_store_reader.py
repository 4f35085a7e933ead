"""The reader and real files."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.errors import (
    NotARunFileError,
    QueryTimeoutError,
    ReaderBusyError,
    RunFileError,
    RunFileMissingError,
    SchemaVersionError,
)
from app.recorder import Recorder
from app.store.models import SCHEMA_REVISION
from app.store.reader import Reader
from app.store.readpool import ReadPool
from app.store.writer import Writer, WriterOptions
from core.events import CallAwaited, ErrorFacts, Event, GroupClosed, Notice, OperationChanged, StepFinished, StepStarted
from tests.store_scene import MS, S, at, facts, finished, one_call, people, silent_span, span, started
from web.calls import CallFilter
from web.source import MAX_BARS, Heat, RunSource, Timeline

pytestmark = pytest.mark.integration


class Stage:
    """A run being recorded, and a reader of it."""

    def __init__(self, folder: Path) -> None:
        """Start recording into ``run.db`` in ``folder``."""
        self.path = folder / "run.db"
        self.recorder = Recorder(Writer(self.path, facts(os.getpid()), WriterOptions(interval_s=0.01)))
        self.recorder.start()
        self.reader = Reader(self.path, deadline_s=5.0)

    def play(self, *events: Event) -> Reader:
        """Record ``events`` and return the reader once they are on file."""
        for event in events:
            self.recorder.observe(event)
        assert self.recorder.flush(10)
        return self.reader


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Yield a run being recorded."""
    stage = Stage(tmp_path)
    yield stage
    stage.reader.close()
    stage.recorder.close()


def whole(heat: Heat, row: int) -> float:
    """Return the ms that a row of a heat map was busy."""
    return sum(heat.busy[row]) * heat.bucket_ms


def test_the_reader_is_a_run_source(stage: Stage) -> None:
    source: RunSource = stage.reader
    assert source.sequence() >= 0


def test_a_call_is_read_with_everything_that_was_recorded_of_it(stage: Stage) -> None:
    reader = stage.play(*people(), *one_call(1, 10), *one_call(2, 30), *one_call(3, 50))
    detail = reader.call(2)
    assert detail is not None
    row = detail.call
    assert (row.group, row.pool, row.method, row.dispatch_mode, row.execute_mode) == (
        "actor",
        "train",
        "update",
        "DP_COMPUTE_PROTO",
        "ALL",
    )
    assert (row.blocking, row.status, row.started_ms, row.duration_ms) == (True, "ok", 30.0, 12.0)
    assert (row.rows, row.padding_rows, row.bytes_out, row.bytes_in) == (7, 1, 800, 400)
    assert (detail.dispatch_ms, detail.execute_ms, detail.wait_ms, detail.collect_ms, detail.unpad_ms) == (
        1,
        2,
        3,
        4,
        5,
    )
    assert (detail.shard_sizes, detail.rows_out, detail.previous_id, detail.next_id) == ((4, 4), 7, 1, 3)
    assert (detail.slowest_rank, detail.median_ms, detail.max_ms) == (1, 7.0, 8.0)
    first = detail.spans[0]
    assert (first.rank, first.node, first.submitted_ms, first.started_ms, first.finished_ms, first.ready_ms) == (
        0,
        "10.0.0.1",
        32.9,
        33.0,
        39.0,
        39.1,
    )
    assert (first.clock_error_ms, first.rows_in, first.rows_out, first.bytes_in, first.bytes_out) == (
        0.001,
        4,
        4,
        400,
        200,
    )
    assert not first.outside


def test_a_call_that_does_not_exist_is_none(stage: Stage) -> None:
    assert stage.play(*people()).call(7) is None


def test_an_error_is_read_back_with_its_traceback_and_rank(stage: Stage) -> None:
    error = ErrorFacts("ValueError", "bad", "Traceback: bad", 1)
    reader = stage.play(*people(), started(1, 10), finished(1, 20, status="error")._replace(error=error))
    detail = reader.call(1)
    assert detail is not None
    assert (detail.error_type, detail.error_message, detail.error_traceback, detail.error_rank) == (
        "ValueError",
        "bad",
        "Traceback: bad",
        1,
    )


def test_a_span_that_sticks_out_of_its_call_by_more_than_the_clocks_error_is_marked(stage: Stage) -> None:
    reader = stage.play(*people(), started(1, 10), span(1, 0, 11, 19), span(1, 1, 11, 21), finished(1, 20))
    detail = reader.call(1)
    assert detail is not None
    assert [one.outside for one in detail.spans] == [False, True]


def test_a_rank_that_never_said_has_no_times_of_its_own(stage: Stage) -> None:
    died = silent_span(1, 1, 11, 19)
    reader = stage.play(*people(), started(1, 10), span(1, 0, 11, 12), died, finished(1, 20, status="died"))
    detail = reader.call(1)
    assert detail is not None
    silent = detail.spans[1]
    assert (silent.status, silent.started_ms, silent.finished_ms) == ("died", None, None)
    assert detail.slowest_rank is None


def test_of_a_call_in_flight_the_ranks_that_have_not_answered_are_shown_as_running(stage: Stage) -> None:
    reader = stage.play(*people(3), started(1, 10), span(1, 1, 11, 12))
    detail = reader.call(1)
    assert detail is not None
    assert detail.call.status == "running"
    assert [(one.rank, one.status, one.started_ms) for one in detail.spans] == [
        (1, "ok", 11.0),
        (0, "running", None),
        (2, "running", None),
    ]


@pytest.mark.parametrize(("execute_mode", "pending"), [("ALL", [0, 1, 2]), ("RANK_ZERO", [0])])
def test_which_ranks_a_call_waits_for_is_known_by_how_it_executes_and_not_by_its_modes_name(
    stage: Stage, execute_mode: str, pending: list[int]
) -> None:
    call = started(1, 10)._replace(
        dispatch_mode="NOT_RANK_ZERO", execute_mode=execute_mode, ranks=tuple(range(len(pending)))
    )
    detail = stage.play(*people(3), call).call(1)
    assert detail is not None
    assert [one.rank for one in detail.spans] == pending


def test_a_call_to_rank_zero_waits_for_nobody_else(stage: Stage) -> None:
    reader = stage.play(*people(3), started(1, 10)._replace(dispatch_mode="RANK_ZERO", execute_mode="RANK_ZERO"))
    detail = reader.call(1)
    assert detail is not None
    assert [one.rank for one in detail.spans] == [0]


@pytest.mark.parametrize("asked_first", [False, True])
def test_a_future_shows_when_its_value_was_asked_for(stage: Stage, asked_first: bool) -> None:
    asked = CallAwaited(1, at(40), 6 * MS, 7 * MS, 8 * MS)
    pair: list[Event] = [finished(1, 22), asked]
    reader = stage.play(*people(), started(1, 10, blocking=False))
    for event in reversed(pair) if asked_first else pair:
        stage.play(event)
    detail = reader.call(1)
    assert detail is not None
    assert (detail.awaited_ms, detail.wait_ms, detail.collect_ms, detail.unpad_ms) == (40.0, 6.0, 7.0, 8.0)
    driver = reader.timeline(30, 100, 800).driver
    assert (driver.waited_from_ms, driver.blocking) == ([40.0], [False])


def test_a_future_asked_for_long_after_its_call_is_still_in_the_window_of_its_wait(stage: Stage) -> None:
    asked = CallAwaited(1, at(500), 60 * MS, 0, 0)
    reader = stage.play(*people(), started(1, 10, blocking=False), finished(1, 22), asked)
    assert list(reader.timeline(520, 530, 800).driver.call_id) == [1]
    assert list(reader.timeline(570, 600, 800).driver.call_id) == []


def test_a_future_asked_for_but_not_ended_is_in_the_heat(stage: Stage) -> None:
    late = started(5_000, 2_000, blocking=False)
    reader = stage.play(*many(1_100, 14), late, CallAwaited(5_000, at(2_100), 60 * MS, 0, 0))
    assert reader.timeline(0, 20_000, 700).mode == "heat"


def test_an_error_on_asking_makes_a_call_that_had_ended_well_a_failed_one(stage: Stage) -> None:
    asked = CallAwaited(1, at(40), 1, 1, 1, ErrorFacts("RowIdentityError", "9 rows for 7"))
    reader = stage.play(*people(), started(1, 10, blocking=False), finished(1, 22))
    detail = stage.play(asked).call(1)
    assert detail is not None
    assert (detail.call.status, detail.error_type, detail.error_rank) == ("error", "RowIdentityError", -1)
    assert reader.run().n_failed_calls == 1


def test_the_overview_adds_up_what_the_calls_say(stage: Stage) -> None:
    reader = stage.play(
        *people(),
        StepStarted(at(1), 1, 5),
        *one_call(1, 10),
        *one_call(2, 30),
        StepFinished(at(60), 1, (("reward", 0.5),)),
    )
    overview = reader.overview()
    (method,) = overview.methods
    assert (method.group, method.method, method.n_calls, method.total_ms, method.mean_ms) == (
        "actor",
        "update",
        2,
        24.0,
        12.0,
    )
    assert (method.dispatch_ms, method.wait_ms, method.rows, method.padding_rows) == (2.0, 6.0, 14, 2)
    slow, quick = overview.ranks
    assert (slow.rank, slow.n_calls, slow.busy_ms, slow.lost_ms, slow.n_slowest) == (1, 2, 16.0, 2.0, 2)
    assert (quick.rank, quick.lost_ms, quick.n_slowest) == (0, 0.0, 0)
    (step,) = overview.steps
    assert (step.index, step.total, step.started_ms, step.ended_ms, step.metrics) == (
        1,
        5,
        1.0,
        60.0,
        (("reward", 0.5),),
    )
    (pool,) = overview.pools
    assert (pool.name, pool.state, pool.process_on_nodes, pool.world_size, pool.groups) == (
        "train",
        "active",
        (2,),
        2,
        ("actor",),
    )
    assert [worker.name for worker in overview.workers] == ["actor-0", "actor-1"]
    assert overview.run.n_calls == 2
    assert overview.recorder.n_recorded == 14


def test_a_straggler_is_first_and_no_healthy_rank_near_it(stage: Stage) -> None:
    lengths = tuple(10.0 * (1.3 if rank == 5 else 1 + 0.002 * rank) for rank in range(8))
    events = [event for n in range(50) for event in one_call(n + 1, 10 + 20 * n, lengths)]
    ranks = stage.play(*people(8), *events).overview().ranks
    assert (ranks[0].rank, ranks[0].n_slowest) == (5, 50)
    assert ranks[1].lost_ms < 0.05 * ranks[0].lost_ms


def test_a_closed_group_leaves_its_pool(stage: Stage) -> None:
    reader = stage.play(*people(), GroupClosed(at(50), "actor", "train"))
    assert reader.pools()[0].groups == ()
    assert {worker.state for worker in reader.workers()} == {"ended"}


def test_calls_are_paged_newest_first_without_gap_or_repeat(stage: Stage) -> None:
    stage.play(*people(), *(event for n in range(1, 26) for event in one_call(n, n * 20)))
    seen, cursor = [], None
    while True:
        page = stage.reader.calls(10, cursor, CallFilter())
        seen += [row.id for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == list(range(25, 0, -1))


def test_a_page_that_holds_the_last_call_has_no_next(stage: Stage) -> None:
    stage.play(*people(), *(event for n in range(1, 11) for event in one_call(n, n * 20)))
    assert stage.reader.calls(10, None, CallFilter()).next_cursor is None


@pytest.mark.parametrize(
    ("narrowed", "expected"),
    [
        (CallFilter(method="update"), [6, 4, 3, 1]),
        (CallFilter(method="log"), [5, 2]),
        (CallFilter(group="actor"), [6, 5, 4, 3, 2, 1]),
        (CallFilter(group="nobody"), []),
        (CallFilter(status="error"), [4]),
        (CallFilter(status="running"), [6]),
        (CallFilter(status="ok"), [5, 3, 2, 1]),
        (CallFilter(status="no such status"), []),
        (CallFilter(step=1), [4, 3]),
        (CallFilter(step=0, method="update", status="ok"), [1]),
        (CallFilter(group="actor", method="update", status="error", step=1), [4]),
    ],
)
def test_the_list_of_calls_is_narrowed(stage: Stage, narrowed: CallFilter, expected: list[int]) -> None:
    reader = stage.play(
        *people(),
        *(started(1, 10), finished(1, 11)),
        *(started(2, 20, method="log"), finished(2, 21)),
        *(started(3, 30, step=1), finished(3, 31)),
        *(started(4, 40, step=1), finished(4, 41, status="error")),
        *(started(5, 50, method="log"), finished(5, 51)),
        started(6, 60),
    )
    assert [row.id for row in reader.calls(10, None, narrowed).items] == expected
    first, rest = reader.calls(1, None, narrowed), []
    if first.next_cursor is not None:
        rest = [row.id for row in reader.calls(10, first.next_cursor, narrowed).items]
    assert [row.id for row in first.items] + rest == expected


def test_few_spans_are_bars_and_say_when_each_began(stage: Stage) -> None:
    shown = stage.play(*people(), *one_call(1, 10), *one_call(2, 30)).timeline(0, 100, 800)
    assert (shown.mode, shown.methods[0]) == ("bars", "actor.update")
    assert [(lane.group, lane.rank, lane.node, lane.pid) for lane in shown.lanes] == [
        ("actor", 0, "10.0.0.1", 1000),
        ("actor", 1, "10.0.0.1", 1001),
    ]
    indexes = [lane.index for lane in shown.lanes]
    assert list(shown.bars.lane) == [indexes[0]] * 2 + [indexes[1]] * 2
    assert list(shown.bars.call_id) == [1, 2, 1, 2]
    assert list(shown.bars.start_ms) == [13.0, 33.0, 13.0, 33.0]
    assert list(shown.bars.end_ms) == [19.0, 39.0, 21.0, 41.0]
    assert list(shown.bars.queued_ms) == [0.1] * 4
    assert list(shown.driver.call_id) == [1, 2]
    assert list(shown.driver.waited_from_ms) == [13.0, 33.0]


def test_a_span_that_began_before_the_window_is_not_lost(stage: Stage) -> None:
    reader = stage.play(
        *people(), *one_call(1, 10, (500.0, 1.0)), *(e for n in range(2, 9) for e in one_call(n, 20 * n, (1.0, 1.0)))
    )
    shown = reader.timeline(300, 310, 800)
    assert list(shown.bars.call_id) == [1]
    assert list(shown.driver.call_id) == [1]
    assert (shown.bars.start_ms, shown.bars.end_ms) == ([13.0], [513.0])


def test_spans_still_running_reach_the_windows_end(stage: Stage) -> None:
    reader = stage.play(*people(), started(1, 10), span(1, 0, 11, 12))
    while reader.run().duration_ms < 15:  # A window does not reach beyond the present.
        time.sleep(0.002)
    shown = reader.timeline(0, 15, 800)
    assert list(zip(shown.bars.call_id, shown.bars.start_ms, shown.bars.end_ms, shown.bars.status, strict=True)) == [
        (1, 11.0, 12.0, "ok"),
        (1, 10.0, 15.0, "running"),
    ]
    assert (shown.driver.status, shown.driver.wait_ms) == (["running"], [5.0])


def many(n_calls: int, gap_ms: float) -> list[Event]:
    """Return a pool and so many calls, each 12 ms long, one every ``gap_ms``."""
    return [*people(), *(event for n in range(n_calls) for event in one_call(n + 1, 10 + n * gap_ms))]


def check_heat(shown: Timeline, n_calls: int) -> None:
    """Make sure that a heat map adds up to the spans behind it."""
    heat = shown.heat
    assert shown.mode == "heat"
    assert [len(heat.busy), len(heat.max_ms), len(heat.max_call_id)] == [3, 3, 3]
    assert {len(row) for row in heat.busy} == {heat.n_buckets}
    assert shown.to_ms - shown.from_ms == pytest.approx(heat.bucket_ms * heat.n_buckets)
    assert whole(heat, 1) == pytest.approx(6 * n_calls, rel=0.01)
    assert whole(heat, 2) == pytest.approx(8 * n_calls, rel=0.01)
    assert max(heat.max_ms[1]) == 6.0
    assert set(heat.max_call_id[2]) <= set(range(n_calls + 1))


def test_more_spans_than_bars_become_heat_made_from_the_spans(stage: Stage) -> None:
    n_calls = MAX_BARS // 2 + 10
    reader = stage.play(*many(n_calls, 14))
    shown = reader.timeline(0, 10 + n_calls * 14 + 100, 700)
    check_heat(shown, n_calls)
    assert whole(shown.heat, 0) == pytest.approx(12 * n_calls, rel=0.01)
    assert shown.heat.n_buckets == 700


def test_more_spans_than_are_read_one_by_one_become_heat_made_from_roll_ups(stage: Stage) -> None:
    n_calls = 10_050
    reader = stage.play(*many(n_calls, 14))
    shown = reader.timeline(0, 10 + n_calls * 14 + 100, 700)
    check_heat(shown, n_calls)
    assert whole(shown.heat, 0) == pytest.approx(12 * n_calls, rel=0.01)
    assert shown.heat.bucket_ms == 1000
    assert shown.from_ms <= 0 < shown.to_ms


def test_zooming_into_heat_finds_the_bars_again(stage: Stage) -> None:
    reader = stage.play(*many(3_000, 14))
    shown = reader.timeline(10_000, 10_500, 700)
    assert shown.mode == "bars"
    assert 60 <= len(shown.bars.call_id) <= 80


def test_what_is_in_flight_is_in_the_heat_too(stage: Stage) -> None:
    stage.play(*many(10_050, 14), Notice(at(400_000), "info", "late"), started(20_000, 200_000))
    shown = stage.reader.timeline(0, 400_000, 700)
    row = shown.heat.busy[1]
    assert shown.mode == "heat"
    at_300_s = int((300_000 - shown.from_ms) / shown.heat.bucket_ms)
    assert row[at_300_s] == 1.0


def test_markers_and_steps_are_those_of_the_window(stage: Stage) -> None:
    reader = stage.play(
        *people(),
        *(StepStarted(at(10), 1, 0), StepFinished(at(20), 1, ()), StepStarted(at(30), 2, 0)),
        *(Notice(at(15), "warning", "early"), Notice(at(45), "info", "late")),
    )
    shown = reader.timeline(25, 100, 800)
    assert [step.index for step in shown.steps] == [2]
    assert [(one.text, one.level, one.kind) for one in shown.markers] == [("late", "info", "notice")]


def test_of_very_many_steps_an_even_selection_with_the_last_is_returned(stage: Stage) -> None:
    for n in range(1, 2_502):
        stage.recorder.observe(StepStarted(at(n), n, 0))
        stage.recorder.observe(StepFinished(at(n + 0.5), n, (("reward", float(n)),)))
    listed = stage.play().overview().steps
    assert 1_000 <= len(listed) <= 2_000
    assert listed[-1].index == 2_501
    assert all(step.metrics == (("reward", float(step.index)),) for step in listed)
    assert len(stage.reader.timeline(None, None, 800).steps) <= 401
    assert [step.index for step in stage.reader.timeline(100.1, 102.1, 800).steps] == [100, 101, 102]


def test_an_empty_run_is_an_empty_timeline(stage: Stage) -> None:
    shown = stage.play().timeline(None, None, 800)
    assert (shown.mode, shown.lanes, list(shown.bars.lane)) == ("bars", (), [])


def test_events_and_operations_are_paged_newest_first(stage: Stage) -> None:
    for n in range(5):
        stage.play(OperationChanged(at(n), f"op{n}", "pause", "train", "succeeded", "ada", None, "active", "paused"))
    newest = stage.reader.operations(2, None)
    assert [one.id for one in newest] == ["op4", "op3"]
    assert [one.id for one in stage.reader.operations(10, "op3")] == ["op2", "op1", "op0"]
    assert stage.reader.operations(10, "nonsense") == ()
    assert (newest[0].before, newest[0].after, newest[0].who) == ("active", "paused", "ada")
    events = stage.reader.events(2, None)
    assert [one.id for one in stage.reader.events(10, events[-1].id)] == [3, 2, 1]


def test_the_sequence_grows_with_every_recording_and_not_without(stage: Stage) -> None:
    first = stage.play(Notice(at(1), "info", "one")).sequence()
    assert stage.reader.sequence() == first
    assert stage.play(Notice(at(2), "info", "two")).sequence() > first


def test_a_running_run_becomes_an_ended_one_under_the_same_reader(stage: Stage) -> None:
    assert stage.play(*people()).run().state == "running"
    before = stage.reader.sequence()
    stage.recorder.close()
    assert stage.reader.run().state == "ended"
    assert stage.reader.sequence() > before
    duration_ms = stage.reader.run().duration_ms
    time.sleep(0.02)
    assert stage.reader.run().duration_ms == duration_ms


def test_reading_while_writing_never_fails_and_never_sees_half_a_batch(stage: Stage) -> None:
    stage.play(*people())
    seen, failed = [], []
    stop = threading.Event()

    def look() -> None:
        reader = Reader(stage.path, deadline_s=5.0)
        try:
            while not stop.is_set():
                overview = reader.overview()
                n_spans = sum(rank.n_calls for rank in overview.ranks)
                n_calls = sum(method.n_calls for method in overview.methods)
                seen.append((n_calls, n_spans))
                reader.timeline(None, None, 500)
        except Exception as error:
            failed.append(error)
        finally:
            reader.close()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(40):
        stage.play(*(event for k in range(20) for event in one_call(n * 20 + k + 1, 10 + (n * 20 + k) * 15)))
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(seen) > 2
    # One batch holds a call and its two spans together, so no look can find one without the other.
    assert all(n_spans == 2 * n_calls for n_calls, n_spans in seen)
    assert stage.reader.run().n_calls == 800


def test_a_slow_question_is_broken_off_and_the_connection_lives_on(stage: Stage) -> None:
    stage.play(*people())
    pool = ReadPool(stage.path, size=1, deadline_s=0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    began = time.monotonic()
    with pytest.raises(QueryTimeoutError) as caught, pool.lend() as connection:
        connection.execute(endless).fetchone()
    assert time.monotonic() - began < 2
    assert caught.value.deadline_s == 0.05
    with pool.lend() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    pool.close()


def test_when_every_connection_is_taken_the_answer_is_busy(stage: Stage) -> None:
    pool = ReadPool(stage.path, size=1, deadline_s=0.02)
    with pool.lend(), pytest.raises(ReaderBusyError), pool.lend():
        pass
    pool.close()


def test_a_reader_cannot_write(stage: Stage) -> None:
    pool = ReadPool(stage.path, size=1)
    with pytest.raises(RunFileError, match="readonly"), pool.lend() as connection:
        connection.execute("DELETE FROM event")
    pool.close()


def test_a_closed_reader_says_so_and_closes_twice(stage: Stage) -> None:
    reader = Reader(stage.path).open()
    reader.close()
    reader.close()
    with pytest.raises(RunFileError, match="closed"):
        reader.run()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileMissingError, match=r"no\.db"):
        Reader(tmp_path / "no.db").open()


@pytest.mark.parametrize("content", [b"", b"not a database" * 100])
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.db").write_bytes(content)
    with pytest.raises(NotARunFileError):
        Reader(tmp_path / "other.db").open()


def test_a_file_of_another_schema_is_refused_with_both_versions_and_a_way_out(stage: Stage) -> None:
    stage.recorder.close()
    with contextlib.closing(sqlite3.connect(stage.path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
        connection.commit()
    with pytest.raises(SchemaVersionError) as caught:
        Reader(stage.path).open()
    assert (caught.value.found, caught.value.expected) == ("0000", SCHEMA_REVISION)
    for part in ("0000", "0001", "the version of Podium that wrote it", str(stage.path)):
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "make"), [("pipe", os.mkfifo), ("folder", os.mkdir)])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    make(tmp_path / name)
    with pytest.raises(NotARunFileError, match=f"{name} is not a Podium run file: it is a {name}"):
        Reader(tmp_path / name).open()


def test_a_file_without_a_run_and_one_with_a_text_for_a_time_are_refused_in_words(stage: Stage) -> None:
    stage.recorder.close()
    stage.reader.close()
    with contextlib.closing(sqlite3.connect(stage.path)) as connection:
        connection.execute("UPDATE run SET started_wall_ns = 'long ago'")
        connection.commit()
        with (
            contextlib.closing(Reader(stage.path)) as reader,
            pytest.raises(RunFileError, match="started_wall_ns of the run is not a number"),
        ):
            reader.run()
        connection.execute("DELETE FROM run")
        connection.commit()
    with contextlib.closing(Reader(stage.path)) as reader:
        for ask in (reader.open, reader.run):
            with pytest.raises(NotARunFileError, match="it contains no run"):
                ask()


def test_a_path_with_odd_letters_is_opened_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "50% off? #1 &mode=rw"
    folder.mkdir()
    stage = Stage(folder)
    try:
        assert stage.play(*people()).run().name == "demo"
    finally:
        stage.reader.close()
        stage.recorder.close()


def test_times_are_milliseconds_since_the_start(stage: Stage) -> None:
    run = stage.play(*people(), Notice(at(2 * S / MS), "info", "two seconds in")).run()
    assert run.duration_ms >= 2000
    assert stage.reader.events(1, None)[0].at_ms == 2000.0
