"""Run files from strangers: neither what they declare nor what they hold hangs or fills a process that reads them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from app.cli.program import main
from app.errors import QueryTimeoutError, RunFileError
from app.store import opened
from app.store.reader import Reader
from app.store.readpool import ReadPool
from app.store.writer import Writer
from tests.integration.test_store_db import older, recorded
from tests.store_scene import facts

pytestmark = pytest.mark.integration

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
COMMANDS = (["db", "check"], ["db", "upgrade"], ["db", "prune", "--max-gb", "1"])
STRANGERS = {
    "view": (f"DROP TABLE event; CREATE VIEW event AS {ENDLESS}", "the view 'event'"),
    "more view": (f"CREATE VIEW more AS {ENDLESS}", "the view 'more'"),
    "version": (f"DROP TABLE alembic_version; CREATE VIEW alembic_version AS {ENDLESS}", ""),
    "trigger": (
        "CREATE TRIGGER boom AFTER DELETE ON rank_span BEGIN SELECT randomblob(1e9); END",
        "the trigger 'boom'",
    ),
    "our trigger's name": (
        "DROP TRIGGER audit_entry_no_update; CREATE TRIGGER audit_entry_no_update BEFORE UPDATE ON run "
        "BEGIN SELECT randomblob(1e9); END",
        "the trigger 'audit_entry_no_update'",
    ),
    "virtual table": ("CREATE VIRTUAL TABLE more USING fts5(body)", "the table 'more'"),
    "generated column": (
        "ALTER TABLE gap ADD COLUMN more GENERATED ALWAYS AS (hex(zeroblob(n_events)))",
        "the table 'gap'",
    ),
    "check": ("DROP TABLE gap; CREATE TABLE gap (id INTEGER CHECK (length(randomblob(1e9))))", "the table 'gap'"),
    "index": ("CREATE INDEX more ON event (hex(zeroblob(1e6 + id)))", "the index 'more'"),
    "partial index": ("CREATE INDEX more ON event (id) WHERE length(kind) > 1", "the index 'more'"),
    "table": ("CREATE TABLE more (id INTEGER)", "the table 'more'"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a run of 20 calls."""
    return recorded(tmp_path_factory.mktemp("whole") / "run.db", 20)


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of that file, to be changed."""
    return Path(shutil.copy(whole, tmp_path / "run.db"))


def change(path: Path, script: str) -> None:
    """Change the file as somebody else might."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def refused(path: Path) -> str:
    """Return in what words a reader refuses a file."""
    with contextlib.closing(Reader(path)) as reader, pytest.raises(RunFileError) as caught:
        reader.overview()
    return str(caught.value)


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_schema_that_is_not_ours_is_refused_by_name_before_it_runs(
    kind: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, name = STRANGERS[kind]
    change(path, script)
    before = path.read_bytes()
    began = time.monotonic()
    assert name in refused(path)
    for command in COMMANDS:
        assert main([*command, str(path)]) == 2
        said = capsys.readouterr().err
        assert (name in said, said.count("\n")) == (True, 1)
    assert main(["runs", "list", "--runs-dir", str(path.parent)]) == 0
    assert name in capsys.readouterr().err
    assert time.monotonic() - began < 20
    assert path.read_bytes() == before


def test_an_older_file_is_held_to_the_same(tmp_path: Path) -> None:
    path = older(tmp_path)
    with contextlib.closing(Reader(path)) as reader:
        assert reader.run().name == "old"
    change(path, f"CREATE VIEW death AS {ENDLESS}")
    assert "the view 'death'" in refused(path)
    assert main(["db", "upgrade", str(path)]) == 2


def test_a_question_ends_though_each_of_its_statements_is_short(path: Path) -> None:
    with contextlib.closing(ReadPool(path, 1, 0.1)) as pool, pytest.raises(QueryTimeoutError), pool.lend() as lent:
        any(lent.execute("SELECT 0").fetchone()[0] for _ in itertools.count())


def test_nothing_can_be_attached_and_no_answer_grows_without_bound(path: Path) -> None:
    pool = ReadPool(path, 1, 30.0)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000)"
    for query, why in (
        ("ATTACH ':memory:' AS more", "too many attached databases"),
        ("SELECT randomblob(100000000)", "too big"),
        (f"{numbers} SELECT i FROM n", "more than 200,000 rows"),
        (f"{numbers} SELECT hex(zeroblob(30000)) FROM n", "more than 16,000,000 characters"),
        ("SELECT x'00'", "a blob"),
    ):
        with pytest.raises(RunFileError, match=why), pool.lend() as lent:
            lent.execute(query).fetchall()
    pool.close()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("UPDATE run SET last_ns = 9223372036854775807", "lasted 292 years"),
        ("UPDATE run SET started_wall_ns = -9223372036854775807", "years before 1970"),
        ("UPDATE run SET name = zeroblob(30000000)", "name of the run is not a text"),
        ("UPDATE pool SET process_on_nodes = '9999999999'", "is not a pool of 0 to 65,536"),
        ("UPDATE lane SET rank = 'first' WHERE rank = 0", "rank of a RankTotal is 'first'"),
        ("UPDATE run SET n_calls = 1e300", "n_calls of a Run"),
        ("UPDATE event SET at_ns = 9e999", "cannot convert float infinity"),
    ],
)
def test_times_and_counts_of_no_run_are_refused_in_words(script: str, why: str, path: Path) -> None:
    change(path, script)
    with contextlib.closing(Reader(path, deadline_s=5)) as reader, pytest.raises(RunFileError, match=why):
        reader.overview()


def test_a_long_name_of_a_method_is_short_in_a_trace_which_has_it_once_per_span(path: Path) -> None:
    change(path, "UPDATE method SET name = hex(zeroblob(500000))")
    with contextlib.closing(Reader(path, deadline_s=5)) as reader:
        found = reader.spans(None, None)
    assert found is not None
    assert max(map(len, found.methods)) == 400


def test_a_rank_that_no_trace_can_number_is_refused(path: Path) -> None:
    change(path, "UPDATE lane SET rank = 4611686018427387904 WHERE rank = 0")
    with contextlib.closing(Reader(path, deadline_s=5)) as reader, pytest.raises(RunFileError, match="rank 46116860"):
        reader.spans(None, None)


def test_steps_numbered_apart_cost_no_more_than_steps_side_by_side(path: Path) -> None:
    change(path, "INSERT INTO step VALUES (1, 1, 0, 1, 2), (9007199254740992, 2, 0, 3, 4)")
    with contextlib.closing(Reader(path, deadline_s=5)) as reader:
        assert [step.index for step in reader.overview().steps] == [2]


def test_a_heat_map_of_twenty_years_is_drawn_in_fewer_buckets(path: Path) -> None:
    twenty_years_ns = 19 * 365 * 86_400 * 10**9
    change(path, f"UPDATE run SET last_ns = {twenty_years_ns}, pruned_before_ns = 1")
    with contextlib.closing(Reader(path, deadline_s=5)) as reader:
        heat = reader.timeline(None, None, 1200).heat
        ranks, lengths = (
            reader.rank_map("actor", None, 1e12, 1200),
            reader.latency_map("actor", "update", None, 1e12, 9),
        )
    assert ranks is not None
    assert lengths is not None
    assert len(heat.busy) * heat.n_buckets <= 600_000
    assert len(ranks.ranks) * ranks.n_buckets <= 600_000
    assert len(lengths.counts) * lengths.n_buckets <= 600_000
    assert sum(map(sum, lengths.counts)) == 20
    assert max(heat.max_ms[1]) == pytest.approx(6.0)


def test_a_look_at_a_file_that_never_ends_is_broken_off(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opened, "_LEAST_PATIENCE_S", 0.0)
    monkeypatch.setattr(opened, "_BYTES_PER_S", 10**12)
    for command in COMMANDS:
        assert main([*command, str(path)]) == 1
        assert "took longer than" in capsys.readouterr().err


def test_a_journal_that_names_a_further_file_is_not_rolled_back(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("dear", encoding="utf-8")
    path.with_name("run.db-journal").write_bytes(b"\0" * 512 + bytes.fromhex("d9d505f920a163d7"))
    for command in COMMANDS[1:]:
        assert main([*command, str(path)]) == 1
    assert victim.read_text(encoding="utf-8") == "dear"


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_pipe_or_link_in_place_of_a_log_is_refused_by_name_and_not_waited_for(
    suffix: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = path.with_name(path.name + suffix)
    for make, what in ((os.mkfifo, "a pipe"), (lambda link: link.symlink_to("/etc/hostname"), "a link")):
        make(beside)
        for command in COMMANDS:
            assert main([*command, str(path)]) == 1
            said = capsys.readouterr().err
            assert (f"{beside.name} is {what}" in said, said.count("\n")) == (True, 1), said
        assert main(["runs", "list", "--runs-dir", str(path.parent)]) == 0
        assert f"{beside.name} is {what}" in capsys.readouterr().err
        beside.unlink()


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "loop": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "link to nothing": (lambda path: path.symlink_to(path.parent / "none"), "leads to no file"),
    "folder": (os.mkdir, "it is a folder"),
    "pipe": (os.mkfifo, "it is a pipe"),
    "socket": (_socket, "it is a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "empty": (Path.touch, "it is empty"),
    "sparse": (_sparse, "is not a Podium run file"),
    "long": (lambda path: None, "File name too long"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_one_line_and_a_code(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, why = ODD[kind]
    path = tmp_path / ("x" * 300 if kind == "long" else "odd.db")
    make(path)
    # A folder is what `view` lists the runs of.
    for command in (*COMMANDS, *([] if kind == "folder" else [["view"]])):
        assert main([*command, str(path)]) in {1, 2}
        said = capsys.readouterr()
        assert (why in said.err, said.err.count("\n"), said.out) == (True, 1, ""), said.err


def test_a_name_that_is_not_text_or_moves_the_cursor_is_shown_in_one_line(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (b"\xff\xfe.db", "a\n\x1b[2Jb\u202e.db".encode()):
        path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
        shutil.copy(whole, path)
        for arguments in (["db", "check", str(path)], ["runs", "list", "--runs-dir", str(tmp_path)]):
            assert main(arguments) == 0
            lines = capsys.readouterr().out.splitlines()
            assert all(line.isprintable() for line in lines)
            assert main([*arguments, "--json"]) == 0
            assert orjson.loads(capsys.readouterr().out)
        assert main(["db", "check", str(path) + ".none"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        path.unlink()


def test_a_run_name_of_20_megabytes_is_shortened(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(path, "UPDATE run SET name = replace(hex(zeroblob(10000000)), '00', 'x' || char(27))")
    with contextlib.closing(Reader(path, deadline_s=10)) as reader:
        assert len(reader.run().name) < 300
    assert main(["runs", "list", "--runs-dir", str(path.parent)]) == 0
    out = capsys.readouterr().out
    assert len(out) < 2_000
    assert "\x1b" not in out


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd"), os.mkdir])
def test_a_crash_file_or_lock_that_is_no_file_is_not_followed_and_does_not_hang(
    path: Path, make: Callable[[Path], object]
) -> None:
    make(path.with_name("run.crash.txt"))
    make(path.with_name("run.db.lock"))
    with contextlib.closing(Reader(path)) as reader:
        assert reader.crash_text() == ""
        assert reader.run().state == "ended"
    assert main(["db", "check", str(path)]) == 0


def test_a_lock_of_a_process_that_is_gone_is_free(path: Path) -> None:
    path.with_name("run.db.lock").write_text("999999999", encoding="utf-8")
    assert main(["db", "prune", str(path), "--keep-hours", "1"]) == 0
    assert not path.with_name("run.db.lock").exists()


SECOND = (
    "import sys; from pathlib import Path; from app.store.writer import Writer; from tests.store_scene import facts\n"
)
SECOND += "Writer(Path(sys.argv[1]), facts()).start()"


def test_two_drivers_never_write_one_file(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run.db", facts(os.getpid()))
    writer.start()
    second = subprocess.run(
        [sys.executable, "-c", SECOND, str(tmp_path / "run.db")], capture_output=True, text=True, timeout=120
    )
    writer.close()
    assert second.returncode == 1
    assert f"is being written by process {os.getpid()}" in second.stderr
    third = subprocess.run(
        [sys.executable, "-c", SECOND, str(tmp_path / "run.db")], capture_output=True, text=True, timeout=120
    )
    assert "already contains a run" in third.stderr
    with contextlib.closing(Reader(tmp_path / "run.db")) as reader:
        assert reader.run().pid == os.getpid()
