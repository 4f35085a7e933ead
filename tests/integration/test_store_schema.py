"""Models, migrations and the files they make."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from pathlib import Path

import pytest

from app.errors import NotARunFileError, RunFileMissingError, RunLockedError, SchemaVersionError
from app.recorder import start_run
from app.store.check_migrations import main, problems
from app.store.migrate import Upgraded, differences, known_revisions, migrations_dir, run_migrations, upgrade
from app.store.models import READABLE_REVISIONS, SCHEMA_REVISION
from app.store.reader import Reader
from app.store.readpool import ReadPool
from app.store.runfile import RunFile
from tests.store_scene import START_NS, facts

pytestmark = pytest.mark.integration

DATA = Path(__file__).parents[1] / "data"
OLDER = tuple(revision for revision in READABLE_REVISIONS if revision != SCHEMA_REVISION)


def made(path: Path) -> Path:
    """Make an empty run's file at ``path``."""
    file = RunFile(path)
    file.create(facts())
    file.close()
    return path


def of_schema(revision: str, folder: Path) -> Path:
    """Put a file of schema ``revision`` into ``folder``: its driver was killed in call 241.

    That of 0001 was written by such a Podium, later ones were made of it by the Podium of their time.
    """
    path = folder / f"old-{revision}.db"
    path.write_bytes(gzip.decompress((DATA / f"run-schema-{revision}.db.gz").read_bytes()))
    return path


def test_migrations_make_what_the_models_say() -> None:
    assert problems() == []
    assert main() == 0


def test_a_drift_between_models_and_migrations_is_found() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        run_migrations(connection)
        assert differences(connection) == []
        connection.execute("ALTER TABLE call ADD COLUMN colour TEXT")
        connection.execute("DROP INDEX ix_call_started_ns")
        assert len(differences(connection)) == 2


def test_the_newest_migration_is_the_schema_of_the_models() -> None:
    assert known_revisions()[0] == SCHEMA_REVISION
    assert (migrations_dir() / "env.py").is_file()


def test_upgrading_a_file_of_today_changes_nothing(tmp_path: Path) -> None:
    path = made(tmp_path / "run.db")
    assert upgrade(path) == Upgraded(SCHEMA_REVISION, SCHEMA_REVISION, None)
    with contextlib.closing(Reader(path)) as reader:
        assert reader.run().name == "demo"


def test_a_file_of_a_newer_podium_is_not_touched(tmp_path: Path) -> None:
    path = made(tmp_path / "run.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(SchemaVersionError) as caught:
        upgrade(path)
    assert (caught.value.found, caught.value.expected) == ("9999", SCHEMA_REVISION)


def test_a_run_that_is_being_written_is_not_upgraded(tmp_path: Path) -> None:
    recorder = start_run(
        tmp_path, name="busy", script="train.py", started_ns=START_NS, podium_version="0.1.0", ray_version=""
    )
    try:
        with pytest.raises(RunLockedError):
            upgrade(recorder.path)
    finally:
        recorder.close()


def test_upgrading_nothing_or_something_else_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(RunFileMissingError):
        upgrade(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "other.db").write_text("shopping list" * 100, encoding="utf-8")
    with pytest.raises(NotARunFileError):
        upgrade(tmp_path / "other.db")


def test_a_run_started_in_a_folder_has_a_file_of_its_own(tmp_path: Path) -> None:
    recorder = start_run(
        tmp_path / "runs",
        name="my run",
        script="train.py",
        started_ns=START_NS,
        podium_version="9.9",
        ray_version="2.60",
    )
    with contextlib.closing(Reader(recorder.path)) as reader:
        run = reader.run()
    recorder.close()
    assert (run.name, run.script, run.podium_version, run.ray_version) == ("my run", "train.py", "9.9", "2.60")
    assert run.id in recorder.path.name


@pytest.mark.parametrize("revision", OLDER)
def test_a_file_of_an_older_schema_is_shown_as_it_is(revision: str, tmp_path: Path) -> None:
    path = of_schema(revision, tmp_path)
    before = path.read_bytes()
    with contextlib.closing(Reader(path)) as reader:
        assert (reader.run().name, reader.run().state, reader.run().n_calls) == ("old", "died", 241)
        assert sum(method.n_calls for method in reader.overview().methods) == 240
        detail = reader.call(240)
        assert detail is not None
        assert [span.status for span in detail.spans] == ["ok"] * 3
        assert reader.timeline(None, None, 800).lanes
        assert reader.operations(5, None)[0].state == "succeeded"
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("revision", OLDER)
def test_a_file_of_an_older_schema_is_moved_to_that_of_today_with_what_can_be_known(
    revision: str, tmp_path: Path
) -> None:
    path = of_schema(revision, tmp_path)
    before = path.read_bytes()
    done = upgrade(path)
    assert (done.before, done.after) == (revision, SCHEMA_REVISION)
    assert done.backup is not None
    assert done.backup.read_bytes() == before
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("SELECT count(*), sum(serialise_ns) FROM rank_span").fetchall() == [(720, 0)]
        assert connection.execute("SELECT rank, pid, cause FROM death").fetchall() == [
            (1, 1001, "killed by signal 9 (SIGKILL) from outside")
        ]
        counted = connection.execute("SELECT level, sum(n) FROM latency GROUP BY level").fetchall()
        assert counted == [(level, 240) for level in range(6)]
    with contextlib.closing(Reader(path)) as reader:
        assert reader.run().n_calls == 241


@pytest.mark.parametrize("revision", OLDER)
def test_queries_on_an_older_file_still_use_its_indexes(revision: str, tmp_path: Path) -> None:
    pool = ReadPool(of_schema(revision, tmp_path))
    with contextlib.closing(pool), pool.lend() as connection:
        query = "SELECT id, serialise_ns FROM call WHERE method_id = 1 AND id < 99 ORDER BY id DESC LIMIT 5"
        (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        assert "ix_call_method_id_id" in plan[3]
        query = "SELECT began_ns, serialise_ns FROM rank_span WHERE lane_id = 1 AND began_ns BETWEEN 1 AND 2"
        (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        assert "lane_id=? AND began_ns>" in plan[3]
