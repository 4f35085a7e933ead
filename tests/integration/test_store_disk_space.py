"""The recorder on disks that are full, short, read-only or far away, and with a writer that fails: training goes on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.recorder import Recorder
from app.store import writer as writing
from app.store.check import check
from app.store.disk_space import DiskSpace
from app.store.event_reducer import EventReducer
from app.store.reader import Reader
from app.store.runfile import RunFile
from app.store.writer import Writer, WriterOptions
from core.events import Notice, OperationChanged
from tests.integration.test_store_writer import ask, until
from tests.store_scene import at, facts, one_call, people

pytestmark = pytest.mark.integration

QUICK = WriterOptions(interval_s=0.01, retry_s=0.02, max_retry_s=0.05, min_free_bytes=0)

# In a namespace of its own even a user without rights may mount a disk, and it goes with the process.
SMALL_DISK = """
import json, os, sys, time
from pathlib import Path
from app.errors import RunsFolderError
from app.recorder import Recorder
from app.store.writer import Writer, WriterOptions
from tests.store_scene import facts, one_call, people

folder = Path(sys.argv[1])
options = WriterOptions(
    interval_s=0.01, retry_s=0.02, max_retry_s=0.05, capacity=2_000, min_free_bytes=0, ballast_bytes=2 << 20
)

def until(happened):
    ends_at = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < ends_at, "it never happened"
        time.sleep(0.005)

def free():
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize

recorder = Recorder(Writer(folder / "run.db", facts(os.getpid()), options))
before = free()
recorder.start()
until(lambda: before - free() >= 2 << 20)
for event in people():
    recorder.observe(event)
assert recorder.flush()
with (folder / "filler").open("wb") as filler:
    filler.write(b"x" * (free() - 65_536))
said = {"held": free()}
n_sent, took, went_on = 0, [], 0
while not recorder.state().error:
    went_on = max(went_on, free())
    n_sent += 1
    for event in one_call(n_sent, 10.0 * n_sent):
        began = time.perf_counter()
        recorder.observe(event)
        took.append(time.perf_counter() - began)
    if n_sent % 50 == 0:
        recorder.flush(0.05)
said |= {"error": recorder.state().error, "p99_s": sorted(took)[len(took) * 99 // 100], "went_on": went_on}
for _ in range(2_000):
    n_sent += 1
    for event in one_call(n_sent, 10.0 * n_sent):
        recorder.observe(event)
until(lambda: recorder.state().n_dropped > 0)
(folder / "filler").unlink()
until(lambda: recorder.flush(1))
assert recorder.state().error == ""
n_sent += 1
for event in one_call(n_sent, 10.0 * n_sent):
    recorder.observe(event)
until(lambda: recorder.flush(1))
said |= {"n_sent": n_sent, "n_dropped": recorder.state().n_dropped, "left": sorted(os.listdir(folder))}
recorder.close()
os.makedirs(sys.argv[2], exist_ok=True)
Path(sys.argv[2], "run.db").write_bytes((folder / "run.db").read_bytes())
print(json.dumps(said))
"""

NO_RIGHT = """
import sys
from pathlib import Path
from app.errors import RunsFolderError
from app.recorder import start_run
try:
    start_run(Path(sys.argv[1]), name="x", script="x", started_ns=1, podium_version="1", ray_version="")
except RunsFolderError as error:
    print(error)
"""

NO_ROOM_FOR_A_LOG = """
import shutil, subprocess, sys
from pathlib import Path
from app.errors import RunFileError
from app.store.reader import Reader
folder, other = Path(sys.argv[1]), Path(sys.argv[2])
for name in ("dead.db", "dead.db-wal"):
    shutil.copy(other / name, folder / name)
subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
try:
    Reader(folder / "dead.db").run()
except RunFileError as error:
    print(error)
"""


@contextlib.contextmanager
def recording(folder: Path, options: WriterOptions = QUICK) -> Iterator[Recorder]:
    """Record into ``run.db`` in ``folder`` until the block ends."""
    recorder = Recorder(Writer(folder / "run.db", facts(os.getpid()), options))
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close()


def on_a_disk(folder: Path, options: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` with a fresh tmpfs on ``folder``, its path as the first argument."""
    folder.mkdir()
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    shell = 'mount -t tmpfs -o "$1" tmpfs "$2" && exec "$3" -c "$4" "$2" "${@:5}"'
    command = [unshare, "-Urm", "bash", "-c", shell, "bash", options, str(folder), sys.executable, script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_on_a_full_disk_the_driver_goes_on_and_what_could_not_be_kept_is_told(tmp_path: Path) -> None:
    done = on_a_disk(tmp_path / "small", "size=8m", SMALL_DISK, str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["held"] < 70_000
    assert said["went_on"] > 1_000_000, "the ballast was not let go"
    assert "full" in said["error"]
    assert said["p99_s"] < 0.005
    path = tmp_path / "kept" / "run.db"
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]
    gaps = ask(path, "SELECT n_events, reason FROM gap")
    # Beside the gaps there are ends whose beginning fell into one.
    assert 0 < sum(int(str(n)) for n, _ in gaps) <= said["n_dropped"]
    assert all("full" in str(reason) for _, reason in gaps)
    assert ask(path, "SELECT max(id) FROM call WHERE status = 1") == [(said["n_sent"],)]
    found = check(path)
    assert found.n_calls + sum(gap.last - gap.first + 1 for gap in found.missing) == said["n_sent"]
    assert {gap.table for gap in found.missing} == {"call"}


def test_a_folder_that_nobody_may_write_is_refused_at_the_start_with_the_systems_reason(tmp_path: Path) -> None:
    done = on_a_disk(tmp_path / "fixed", "ro", NO_RIGHT)
    assert "Read-only file system" in done.stdout, done.stderr


def test_a_killed_run_in_a_folder_that_nobody_may_write_says_how_it_can_be_read(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        for event in (*people(), *one_call(1, 10)):
            recorder.observe(event)
        assert recorder.flush(5)
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"run.db{suffix}", tmp_path / f"dead.db{suffix}")
    done = on_a_disk(tmp_path / "fixed", "size=4m", NO_ROOM_FOR_A_LOG, str(tmp_path))
    assert "copy it together with dead.db-wal" in done.stdout, done.stderr
    with contextlib.closing(Reader(tmp_path / "dead.db")) as reader:
        assert reader.run().n_calls == 1


def test_on_a_network_filesystem_there_is_no_log_and_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writing, "filesystem_of", lambda _: "nfs4")
    with caplog.at_level(logging.CRITICAL, "podium.store"), recording(tmp_path) as recorder:
        for event in (*people(), *one_call(1, 10)):
            recorder.observe(event)
        assert recorder.flush(5)
        assert not (tmp_path / "run.db-wal").exists()
        with contextlib.closing(Reader(recorder.path)) as reader:
            assert (reader.recorder().journal, reader.run().n_calls) == ("delete", 1)
            (warning,) = [line for line in reader.events(10, None) if line.kind == "recorder"]
            assert (warning.level, "of type nfs4" in warning.text) == ("warning", True)
    assert ask(recorder.path, "PRAGMA integrity_check") == [("ok",)]


def test_with_little_room_left_only_what_is_flushed_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = {"bytes": 500}
    monkeypatch.setattr(DiskSpace, "free_bytes", lambda _: free["bytes"])
    monkeypatch.setattr("app.store.disk_space._LOOK_S", 0.0)
    options = WriterOptions(interval_s=0.01, min_free_bytes=1_000, heartbeat_s=0.01)
    with caplog.at_level(logging.CRITICAL, "podium.store"), recording(tmp_path, options) as recorder:
        for event in people():
            recorder.observe(event)
        until(lambda: ask(recorder.path, "SELECT count(*) FROM event WHERE kind = 'recorder'") == [(1,)])
        assert "500 bytes are free" in recorder.state().error
        (told,) = ask(recorder.path, "SELECT text FROM event WHERE kind = 'recorder'")[0]
        assert str(told).startswith("recording stops: 500 bytes are free")
        for event in one_call(1, 10):
            recorder.observe(event)
        (beat,) = ask(recorder.path, "SELECT heartbeat_wall_ns FROM run")
        until(lambda: ask(recorder.path, "SELECT heartbeat_wall_ns FROM run") != [beat])
        assert ask(recorder.path, "SELECT count(*) FROM call") == [(0,)]
        recorder.observe(OperationChanged(at(5), "op", "pause", "train", "pending", "ada", None))
        assert recorder.flush(5)
        assert ask(recorder.path, "SELECT count(*) FROM call") == [(1,)]
        recorder.observe(Notice(at(6), "info", "waits"))
        free["bytes"] = 5_000
        until(lambda: ask(recorder.path, "SELECT count(*) FROM event WHERE text = 'waits'") == [(1,)])
        assert recorder.state().error == ""


def test_a_log_that_a_reader_holds_on_to_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = WriterOptions(interval_s=0.01, checkpoint_s=0.02, log_warn_bytes=300_000, min_free_bytes=0)
    with caplog.at_level(logging.CRITICAL, "podium.store"), recording(tmp_path, options) as recorder:
        for event in people():
            recorder.observe(event)
        assert recorder.flush(5)
        stuck = sqlite3.connect(f"file:{recorder.path}?mode=ro", uri=True, isolation_level=None)
        with contextlib.closing(stuck):
            stuck.execute("BEGIN")
            stuck.execute("SELECT * FROM run").fetchall()
            n = 0
            while not ask(recorder.path, "SELECT 1 FROM event WHERE kind = 'recorder'"):
                n += 1
                assert n < 20_000
                for event in one_call(n, n * 10.0):
                    recorder.observe(event)
                if n % 100 == 0:
                    assert recorder.flush(5)
        (text,) = ask(recorder.path, "SELECT text FROM event WHERE kind = 'recorder'")[0]
        assert str(text).startswith("the write-ahead log has grown to ")


def test_the_wall_clock_is_noted_now_and_then(tmp_path: Path) -> None:
    options = WriterOptions(interval_s=0.01, anchor_s=0.02, min_free_bytes=0)
    with recording(tmp_path, options) as recorder:
        until(lambda: len(ask(recorder.path, "SELECT * FROM clock_anchor")) >= 3)
        rows: list[tuple[Any, ...]] = ask(recorder.path, "SELECT at_ns, wall_ns FROM clock_anchor ORDER BY at_ns")
        ((started_wall_ns,),) = ask(recorder.path, "SELECT started_wall_ns FROM run")
    assert all(abs(at_ns - (wall_ns - int(str(started_wall_ns)))) < 500_000_000 for at_ns, wall_ns in rows)


def test_a_writer_that_blocks_never_blocks_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, write = threading.Event(), RunFile.write

    def slow(file: RunFile, *arguments: Any) -> None:
        go_on.wait(30)
        write(file, *arguments)

    monkeypatch.setattr(RunFile, "write", slow)
    options = WriterOptions(interval_s=0.01, capacity=1_000, min_free_bytes=0)
    with recording(tmp_path, options) as recorder:
        began = time.monotonic()
        for n in range(5_000):
            recorder.observe(Notice(at(n), "info", "hello"))
        assert not recorder.flush(0.05)
        assert time.monotonic() - began < 2
        go_on.set()
        assert recorder.flush(10)
        n_kept = recorder.state().n_recorded
        assert n_kept + recorder.state().n_dropped == 5_000
        until(lambda: ask(recorder.path, "SELECT sum(n_events) FROM gap") == [(5_000 - n_kept,)])


def test_a_recorder_that_stumbles_counts_what_it_lost_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take: Any = EventReducer.take
    faults = ["on purpose"]

    def once(reducer: EventReducer, events: list[object], *rest: Any) -> Any:
        if events and faults:
            raise RuntimeError(faults.pop())
        return take(reducer, events, *rest)

    monkeypatch.setattr(EventReducer, "take", once)
    with caplog.at_level(logging.CRITICAL + 1, "podium.store"), recording(tmp_path) as recorder:
        recorder.observe(Notice(at(1), "info", "lost"))
        until(lambda: recorder.state().n_dropped == 1)
        recorder.observe(Notice(at(2), "info", "kept"))
        assert recorder.flush(5)
        texts = [text for (text,) in ask(recorder.path, "SELECT text FROM event")]
        assert "kept" in texts
        until(lambda: ask(recorder.path, "SELECT n_dropped FROM run") == [(1,)])
        until(lambda: len(ask(recorder.path, "SELECT * FROM gap")) == 1)
        ((from_ns, to_ns, *rest),) = ask(recorder.path, "SELECT from_ns, to_ns, n_events, reason FROM gap")
        assert rest == [1, "the recorder failed to process them"]
        assert 0 <= int(str(from_ns)) <= int(str(to_ns))
