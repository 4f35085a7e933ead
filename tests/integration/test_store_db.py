"""``podium db``: check, upgrade and prune, on real files."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.cli.program import main
from app.errors import DamagedFileError, RunsFolderError
from app.store import migrate
from app.store.facts import RunFacts
from app.store.lock import FileLock
from app.store.migrate import upgrade
from app.store.models import SCHEMA_REVISION
from app.store.reader import Reader
from app.store.schema import revision_of
from app.store.writer import Writer
from core.events import Event, Notice
from tests.store_scene import START_NS, at, facts, one_call, people

pytestmark = pytest.mark.integration


def recorded(path: Path, n_calls: int = 300) -> Path:
    """Record a run of ``n_calls`` calls, one every 100 ms, that ended."""
    writer = Writer(path, facts())
    writer.start()
    events: list[Event] = people()
    for n in range(1, n_calls + 1):
        events += one_call(n, n * 100.0)
    for event in events:
        writer.put(event)
    writer.close()
    return path


def older(folder: Path) -> Path:
    """Put a file of schema 0001 into ``folder``."""
    path = folder / "old.db"
    packed = Path(__file__).parents[1] / "data" / "run-schema-0001.db.gz"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the JSON on stdout."""
    return orjson.loads(capsys.readouterr().out)


def change(path: Path, statement: str) -> None:
    """Run one statement on a file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


def test_a_whole_file_is_said_to_be_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "run.db")
    assert main(["db", "check", str(path), "--json"]) == 0
    found = said(capsys)
    assert (found["is_whole"], found["n_calls"], found["n_spans"]) == (True, 300, 600)
    assert (found["revision"], found["missing"], found["faults"]) == (SCHEMA_REVISION, [], [])
    assert main(["db", "check", str(path)]) == 0
    assert re.search(r"^state +ok$", capsys.readouterr().out, re.MULTILINE)
    assert [name.name for name in tmp_path.iterdir()] == ["run.db"]


def test_a_writer_puts_its_log_away_from_a_reader_that_rests(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    writer, reader = Writer(path, facts()), Reader(path)
    writer.start()
    assert reader.run().state == "running"
    reader.rest()
    writer.close()
    assert [name.name for name in tmp_path.iterdir()] == ["run.db"]
    assert reader.run().state == "ended"
    reader.close()


@pytest.mark.parametrize("table", ["rank_span", "run"])
def test_a_broken_file_is_a_line_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    path = recorded(tmp_path / "run.db")
    spoil(path, table)
    assert main(["db", "check", str(path)]) == 1
    assert main(["db", "prune", str(path), "--keep-hours", "0.0001"]) == 1
    assert f"cannot prune {path}: database disk image is malformed" in capsys.readouterr().err
    old = older(tmp_path)
    spoil(old, "call")
    before = old.read_bytes()
    assert main(["db", "upgrade", str(old)]) == 1
    assert f"{old} is damaged (" in capsys.readouterr().err
    assert old.read_bytes() == before
    assert [name.name for name in tmp_path.glob("*.upgrading")] == []
    with pytest.raises(DamagedFileError) as caught:
        upgrade(old)
    assert caught.value.path == str(old)
    assert caught.value.fault


def spoil(path: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (n_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * n_bytes)
        file.write(b"\xa5" * n_bytes)


def test_a_link_is_as_good_as_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    old, link = older(tmp_path / "elsewhere"), tmp_path / "link.db"
    link.symlink_to(old)
    lock = FileLock(old)
    lock.acquire()
    for verb in (["check"], ["upgrade"], ["prune", "--max-gb", "1"]):
        assert main(["db", *verb, str(link)]) == 3
    lock.release()
    assert main(["db", "upgrade", str(link)]) == 0
    assert link.readlink() == old
    with contextlib.closing(sqlite3.connect(old)) as connection:
        assert revision_of(connection, old) == SCHEMA_REVISION
    assert main(["db", "check", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_rows_that_are_not_there_are_named_by_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "run.db")
    change(path, "DELETE FROM call WHERE id IN (1, 7, 8, 9, 100)")
    assert main(["db", "check", str(path), "--json"]) == 1
    missing = [(gap["table"], gap["first"], gap["last"]) for gap in said(capsys)["missing"]]
    assert missing == [("call", 1, 1), ("call", 7, 9), ("call", 100, 100)]
    assert main(["db", "check", str(path)]) == 1
    assert "missing: call 7 to 9" in capsys.readouterr().err


def test_a_broken_file_is_said_to_be_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "run.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ix_call_started_ns'").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096 + 100)
        file.write(b"\xff" * 2000)
    assert main(["db", "check", str(path), "--json"]) == 1
    found = said(capsys)
    assert (found["is_whole"], bool(found["faults"]), found["missing"]) == (False, True, [])


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE call SET started_ns = 'noon' WHERE id < 3", "call.started_ns is not 'integer' in 2 rows"),
        ("UPDATE worker SET node = x'00ff'", "worker.node is not 'text' in 2 rows"),
        ("UPDATE run SET pruned_before_ns = 0.5", "run.pruned_before_ns is not 'integer' or 'null' in 1 rows"),
        ("UPDATE run SET n_dropped = 'some', pruned_before_ns = 'x'", "run.n_dropped is not 'integer' in 1 rows"),
        ("UPDATE lane SET group_id = 77 WHERE rank = 0", "row 1 of lane refers to a row of worker_group"),
        ("UPDATE call SET method_id = 77", "call.method_id has '77', and method has no such row"),
        ("UPDATE rank_span SET lane_id = 77 WHERE call_id = 1 AND lane_id = 1", "rank_span.lane_id has '77'"),
    ],
)
def test_types_and_references_are_checked_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str, fault: str
) -> None:
    path = recorded(tmp_path / "run.db", 5)
    change(path, statement)
    assert main(["db", "check", str(path), "--json"]) == 1
    faults = said(capsys)["faults"]
    assert main(["db", "check", str(path)]) == 1
    assert fault in capsys.readouterr().err
    assert any(fault in line for line in faults), faults


@pytest.mark.parametrize("command", [["check"], ["upgrade"], ["prune", "--max-gb", "1"]])
def test_what_is_no_runs_file_is_a_wrong_use(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "list.db").write_text("shopping list" * 100, encoding="utf-8")
    for name in ("list.db", "none.db"):
        assert main(["db", command[0], str(tmp_path / name), *command[1:]]) == 2
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("command", [["check"], ["upgrade"], ["prune", "--max-gb", "1"]])
def test_a_file_that_a_driver_writes_is_refused_with_its_process(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(tmp_path / "run.db", facts(os.getpid()))
    writer.start()
    try:
        assert main(["db", command[0], str(tmp_path / "run.db"), *command[1:]]) == 3
        assert f"is being written by process {os.getpid()}" in capsys.readouterr().err
        writer.put(Notice(at(1), "info", "still recording"))
        assert writer.flush(5)
    finally:
        writer.close()


def test_an_older_file_is_checked_as_it_is_and_upgraded_with_a_copy_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = older(tmp_path)
    before = path.read_bytes()
    assert main(["db", "check", str(path), "--json"]) == 0
    assert said(capsys)["is_current"] is False
    assert main(["db", "upgrade", str(path), "--json"]) == 0
    done = said(capsys)
    assert (done["before"], done["after"]) == ("0001", SCHEMA_REVISION)
    assert Path(done["backup"]).read_bytes() == before
    assert main(["db", "check", str(path), "--json"]) == 0
    assert said(capsys)["is_current"] is True
    assert main(["db", "upgrade", str(path), "--json"]) == 0
    assert said(capsys)["backup"] is None


def test_a_second_copy_never_takes_the_place_of_the_first(tmp_path: Path) -> None:
    backups = [migrate.upgrade(older(tmp_path)).backup for _ in range(2)]
    assert [backup.name for backup in backups if backup] == ["old.db.schema-0001.bak", "old.db.schema-0001.2.bak"]


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = older(tmp_path)
    before = path.read_bytes()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(RunsFolderError, match="only 1,000 are free; the file was not changed"):
        migrate.upgrade(path)
    monkeypatch.undo()

    def stumble(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE event")
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(migrate, "run_migrations", stumble)
    with pytest.raises(RunsFolderError, match="disk I/O error"):
        migrate.upgrade(path)
    assert path.read_bytes() == before
    assert [name.name for name in tmp_path.iterdir()] == ["old.db"]


def test_the_oldest_spans_go_by_age_and_the_rest_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "run.db")
    hours = 10 / 3600
    assert main(["db", "prune", str(path), "--keep-hours", str(hours), "--json"]) == 0
    done = said(capsys)
    assert 380 < done["n_spans"] < 420
    with contextlib.closing(Reader(path)) as reader:
        pruned_ms = reader.recorder().pruned_before_ms
        assert pruned_ms is not None
        assert 19_000 < pruned_ms < 21_000
        assert reader.overview().methods[0].n_calls == 300
        assert reader.latencies(None, None)[0].n_calls == 300
        assert sum(reader.timeline(0, 10_000, 800).heat.busy[1]) > 0
    assert main(["db", "check", str(path)]) == 0


def test_the_oldest_spans_go_by_size_and_the_room_is_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path / "run.db", 3_000)
    size = path.stat().st_size
    assert main(["db", "prune", str(path), "--max-gb", str(0.8 * size / 1e9), "--json"]) == 0
    done = said(capsys)
    assert done["bytes_before"] == size
    assert done["bytes_after"] == path.stat().st_size <= 0.8 * size
    assert 0 < done["n_spans"] < 6_000
    assert main(["db", "prune", str(path), "--max-gb", "0.000001"]) == 0
    assert "still larger" in capsys.readouterr().err
    assert main(["db", "check", str(path), "--json"]) == 0
    assert said(capsys)["n_spans"] == 0


def test_pruning_without_a_measure_is_a_wrong_use(tmp_path: Path) -> None:
    assert main(["db", "prune", str(recorded(tmp_path / "run.db", 1))]) == 2


def test_a_driver_that_was_killed_leaves_a_file_that_can_be_pruned(tmp_path: Path) -> None:
    facts_ = RunFacts("x", "x", "x", "box", 1, "1", "3", "", START_NS, START_NS)
    writer = Writer(tmp_path / "live.db", facts_)
    writer.start()
    for event in (*people(), *one_call(1, 10), *one_call(2, 60_000)):
        writer.put(event)
    assert writer.flush(5)
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"live.db{suffix}", tmp_path / f"dead.db{suffix}")
    writer.close()
    assert main(["db", "prune", str(tmp_path / "dead.db"), "--keep-hours", str(1 / 3600)]) == 0
    with contextlib.closing(Reader(tmp_path / "dead.db")) as reader:
        assert reader.run().n_calls == 2
    assert not (tmp_path / "dead.db-wal").exists()
