"""The writer and a real file."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.errors import NotARunFileError, RunFileError, RunLockedError, RunsFolderError
from app.recorder import Recorder
from app.store.facts import AuditFacts
from app.store.lock import is_free, lock_path
from app.store.models import APPLICATION_ID
from app.store.prune import Retention
from app.store.reader import Reader
from app.store.writer import Writer, WriterOptions
from core.events import EventBus, Notice, WorkerEnded
from tests.store_scene import at, facts, finished, one_call, people, span, started

pytestmark = pytest.mark.integration

QUICK = WriterOptions(interval_s=0.01, retry_s=0.02, max_retry_s=0.05)


@contextlib.contextmanager
def recording(folder: Path, options: WriterOptions = QUICK) -> Iterator[Recorder]:
    """Record into ``run.db`` in ``folder`` until the block ends."""
    recorder = Recorder(Writer(folder / "run.db", facts(os.getpid()), options))
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close()


def ask(path: Path, query: str) -> list[tuple[object, ...]]:
    """Return the rows of ``query`` on a run's file."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def until(happened: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Wait until ``happened``, or fail."""
    ends_at = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < ends_at, "it never happened"
        time.sleep(0.005)


def test_what_was_observed_is_on_file_after_a_flush(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        for event in (*people(), *one_call(1, 10)):
            recorder.observe(event)
        assert recorder.flush()
        assert ask(recorder.path, "SELECT count(*) FROM call") == [(1,)]
        assert ask(recorder.path, "SELECT count(*) FROM rank_span") == [(2,)]
        assert ask(recorder.path, "SELECT n_recorded, n_dropped, n_calls FROM run") == [(8, 0, 1)]
        assert ask(recorder.path, "PRAGMA application_id") == [(APPLICATION_ID,)]


def test_a_recorder_behind_a_bus_hears_what_stands_and_what_comes(tmp_path: Path) -> None:
    bus = EventBus()
    for event in people():
        bus.emit(event)
    with recording(tmp_path) as recorder:
        bus.subscribe(recorder)
        for event in one_call(1, 10):
            bus.emit(event)
        assert recorder.flush()
        assert ask(recorder.path, "SELECT name, world_size FROM worker_group") == [("actor", 2)]
        assert ask(recorder.path, "SELECT id, status FROM call") == [(1, 1)]
        assert bus.n_observer_errors == 0


def test_a_worker_that_dies_is_on_file_at_once(tmp_path: Path) -> None:
    with recording(tmp_path, WriterOptions(interval_s=30)) as recorder:
        for event in people():
            recorder.observe(event)
        recorder.observe(WorkerEnded(at(5), "actor", 1, True, "SIGKILL"))
        until(lambda: ask(recorder.path, "SELECT count(*) FROM worker WHERE state = 'died'") == [(1,)])


def test_closing_writes_the_rest_and_leaves_one_file(tmp_path: Path) -> None:
    with recording(tmp_path, WriterOptions(interval_s=30)) as recorder:
        for event in (*people(), *one_call(1, 10)):
            recorder.observe(event)
    recorder.close()
    assert os.listdir(tmp_path) == ["run.db"]
    assert ask(recorder.path, "SELECT clean_exit, status FROM run") == [(1, "ended")]
    assert ask(recorder.path, "SELECT sum(n_slowest) FROM lane") == [(1,)]
    assert ask(recorder.path, "PRAGMA integrity_check") == [("ok",)]


def test_a_run_that_failed_says_so(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.close(status="failed")
    with contextlib.closing(Reader(recorder.path)) as reader:
        assert reader.run().state == "failed"


def test_nothing_fails_or_waits_after_closing(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        pass
    recorder.observe(Notice(at(1), "info", "too late"))
    began = time.monotonic()
    assert not recorder.flush(timeout_s=5)
    assert time.monotonic() - began < 1


def test_a_writer_refused_leaves_the_first_ones_lock_alone(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        with pytest.raises(RunLockedError):
            Writer(recorder.path, facts()).start()
        assert not is_free(recorder.path)
        assert lock_path(recorder.path).read_text(encoding="utf-8") == str(os.getpid())


def test_a_finished_run_is_never_written_over(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        pass
    with pytest.raises(RunFileError, match="already contains a run"):
        Writer(recorder.path, facts()).start()


def test_a_file_of_something_else_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("shopping list" * 100, encoding="utf-8")
    with pytest.raises(NotARunFileError):
        Writer(tmp_path / "run.db", facts()).start()
    assert (tmp_path / "run.db").read_text(encoding="utf-8").startswith("shopping list")


def test_a_folder_that_is_not_there_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(RunsFolderError) as caught:
        Writer(tmp_path / "gone" / "run.db", facts()).start()
    assert caught.value.folder == str(tmp_path / "gone")
    assert "No such file" in caught.value.reason


def test_a_full_disk_costs_nothing_but_the_newest_and_writing_goes_on_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = WriterOptions(
        interval_s=0.01, retry_s=0.02, max_retry_s=0.05, capacity=2_000, retention=Retention(400_000)
    )
    with caplog.at_level(logging.CRITICAL, "podium.store"), recording(tmp_path, options) as recorder:
        for event in people():
            recorder.observe(event)
        n_sent = 0
        while not recorder.state().error:
            for event in one_call(n_sent + 1, 10 + n_sent):
                recorder.observe(event)
            n_sent += 1
            if n_sent % 100 == 0:
                recorder.flush(0.05)
        assert "full" in recorder.state().error
        began = time.monotonic()
        for n in range(3_000):
            recorder.observe(Notice(at(n), "info", "while the disk is full"))
        assert time.monotonic() - began < 1
        until(lambda: recorder.state().n_dropped > 0)
        assert recorder.state().n_queued <= 2_000
        assert ask(recorder.path, "PRAGMA integrity_check") == [("ok",)]
        recorder.writer.limit_bytes(0)
        until(lambda: recorder.flush(1.0))
        n_dropped = recorder.state().n_dropped
        assert recorder.state().error == ""
        until(lambda: ask(recorder.path, "SELECT n_dropped FROM run") == [(n_dropped,)])
        (noted,) = ask(recorder.path, "SELECT count(*) FROM event WHERE kind = 'recorder'")[0]
        assert noted == 1
        assert ask(recorder.path, "SELECT count(*) FROM call WHERE status = 1")[0][0] == n_sent


def test_a_full_queue_drops_the_newest_and_says_how_many(tmp_path: Path) -> None:
    options = WriterOptions(interval_s=30, capacity=100)
    with recording(tmp_path, options) as recorder:
        for n in range(150):
            recorder.observe(Notice(at(n), "info", f"notice {n}"))
        assert recorder.state().n_dropped == 50
        assert recorder.flush()
        texts = [row[0] for row in ask(recorder.path, "SELECT text FROM event ORDER BY id")]
        told = "50 events were not recorded: the queue was full"
        assert texts.count(told) == 1
        assert [text for text in texts if text != told] == [f"notice {n}" for n in range(100)]
        assert ask(recorder.path, "SELECT n_dropped FROM run") == [(50,)]
        ((from_ns, to_ns, *rest),) = ask(recorder.path, "SELECT from_ns, to_ns, n_events, reason FROM gap")
        assert rest == [50, "the queue was full"]
        assert 0 <= int(str(from_ns)) <= int(str(to_ns))


def test_spans_that_are_too_old_go_and_what_they_added_up_to_stays(tmp_path: Path) -> None:
    options = WriterOptions(interval_s=0.01, prune_s=0.01, retention=Retention(keep_spans_s=10))
    with recording(tmp_path, options) as recorder:
        for event in people():
            recorder.observe(event)
        for n in range(1, 301):
            for event in one_call(n, n * 100):
                recorder.observe(event)
        assert recorder.flush()
        until(lambda: ask(recorder.path, "SELECT count(*) FROM rank_span WHERE began_ns < 19e9") == [(0,)])
        (n_left,) = ask(recorder.path, "SELECT count(*) FROM rank_span")[0]
        assert 180 <= int(str(n_left)) <= 220
        assert ask(recorder.path, "SELECT count(*) FROM call") == [(300,)]
        assert ask(recorder.path, "SELECT sum(n) FROM roll WHERE level = 0 AND lane_id = 1") == [(300,)]
        with contextlib.closing(Reader(recorder.path)) as reader:
            pruned_ms = reader.recorder().pruned_before_ms
            assert pruned_ms is not None
            assert 19_000 < pruned_ms < 22_000
            assert reader.timeline(0, 10_000, 800).mode == "heat"
            assert sum(reader.timeline(0, 10_000, 800).heat.busy[1]) > 0
            assert reader.timeline(pruned_ms + 100, pruned_ms + 5_000, 800).mode == "bars"


def test_a_file_that_is_nearly_full_lets_its_oldest_spans_go_and_goes_on(tmp_path: Path) -> None:
    options = WriterOptions(interval_s=0.01, prune_s=0.01, retention=Retention(max_bytes=1_200_000))
    with recording(tmp_path, options) as recorder:
        for event in people(8):
            recorder.observe(event)
        for n in range(1, 1201):
            for event in one_call(n, n * 100, (6.0,) * 8):
                recorder.observe(event)
            if n % 50 == 0:
                assert recorder.flush(5)
        assert recorder.state().error == ""
        assert ask(recorder.path, "SELECT count(*) FROM call") == [(1200,)]
        until(lambda: ask(recorder.path, "SELECT pruned_before_ns > 0 FROM run") == [(1,)])
        assert ask(recorder.path, "SELECT max(call_id) FROM rank_span") == [(1200,)]
        assert recorder.path.stat().st_size <= 1_200_000


def test_a_call_ends_on_file_even_when_its_end_meets_a_full_queue(tmp_path: Path) -> None:
    with recording(tmp_path, WriterOptions(interval_s=30, capacity=100)) as recorder:
        for event in (*people(), started(1, 10)):
            recorder.observe(event)
        for n in range(150):
            recorder.observe(Notice(at(n), "info", "noise"))
        recorder.observe(finished(1, 20))
        assert recorder.flush()
        assert ask(recorder.path, "SELECT status FROM call") == [(1,)]


def test_a_row_that_the_file_refuses_is_counted_and_the_rest_of_its_batch_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "podium.store"), recording(tmp_path) as recorder:
        for event in (*people(), *one_call(1, 10), span(2**70, 0, 1, 2), *one_call(2, 30)):
            recorder.observe(event)
        assert recorder.flush()
        assert ask(recorder.path, "SELECT count(*) FROM call WHERE status = 1") == [(2,)]
        assert recorder.state().n_dropped >= 1
        for event in one_call(3, 50):
            recorder.observe(event)
        assert recorder.flush()
        assert ask(recorder.path, "SELECT count(*) FROM call WHERE status = 1") == [(3,)]


def test_audit_entries_can_be_added_and_nothing_else(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        entry = AuditFacts(at(2), "ada", "127.0.0.1", "curl", "r1", "pause", "train", 3, "accepted")
        assert recorder.audit(entry)
        with contextlib.closing(Reader(recorder.path)) as reader:
            (read,) = reader.audit_entries(10, None)
        assert (read.actor, read.action, read.target, read.expected_generation) == ("ada", "pause", "train", 3)
    with contextlib.closing(sqlite3.connect(recorder.path)) as connection:
        for statement in ("UPDATE audit_entry SET actor = 'eve'", "DELETE FROM audit_entry"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)


def test_the_write_ahead_log_is_emptied_when_nothing_happens(tmp_path: Path) -> None:
    options = WriterOptions(interval_s=0.01, checkpoint_s=0.05, heartbeat_s=60)
    with recording(tmp_path, options) as recorder:
        for event in (*people(), *one_call(1, 10)):
            recorder.observe(event)
        recorder.flush()
        log = tmp_path / "run.db-wal"
        until(lambda: log.stat().st_size == 0)


def test_the_heart_beats_while_nothing_is_recorded(tmp_path: Path) -> None:
    with recording(tmp_path, WriterOptions(interval_s=0.01, heartbeat_s=0.02)) as recorder:
        recorder.flush()
        first = ask(recorder.path, "SELECT heartbeat_wall_ns, sequence FROM run")[0]
        until(lambda: ask(recorder.path, "SELECT heartbeat_wall_ns FROM run")[0][0] != first[0])
        assert ask(recorder.path, "SELECT sequence FROM run") == [(first[1],)]


def test_many_threads_may_observe_at_once(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:

        def shout(who: int) -> None:
            for n in range(500):
                recorder.observe(Notice(at(n), "info", f"{who}"))

        threads = [threading.Thread(target=shout, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert recorder.flush()
        assert ask(recorder.path, "SELECT text, count(*) FROM event GROUP BY text") == [(str(n), 500) for n in range(4)]


def test_a_forked_child_neither_writes_nor_closes_the_parents_file(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        pid = os.fork()
        if pid == 0:
            recorder.observe(Notice(at(1), "info", "from the child"))
            alright = not recorder.flush(0.1)
            recorder.close()
            os._exit(0 if alright else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        recorder.observe(Notice(at(1), "info", "from the parent"))
        assert recorder.flush()
        assert ask(recorder.path, "SELECT text FROM event") == [("from the parent",)]
        assert ask(recorder.path, "SELECT clean_exit FROM run") == [(0,)]


def test_a_text_that_utf8_cannot_say_costs_nothing_else(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.observe(Notice(at(1), "info", "cannot open 'caf\udce9.txt'"))
        for event in (*people(), *one_call(1, 10)):
            recorder.observe(event)
        assert recorder.flush()
    path = tmp_path / "run.db"
    assert ask(path, "SELECT text FROM event ORDER BY id LIMIT 1") == [("cannot open 'caf?.txt'",)]
    assert ask(path, "SELECT n_calls, n_dropped, status FROM run") == [(1, 0, "ended")]
