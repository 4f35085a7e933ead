"""Models, migrations and the files they make."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from app.errors import NotARunFileError, RunFileMissingError, RunLockedError, SchemaVersionError
from app.recorder import start_run
from app.store.check_migrations import main, problems
from app.store.migrate import differences, known_revisions, migrations_dir, run_migrations, upgrade
from app.store.models import SCHEMA_REVISION
from app.store.reader import Reader
from app.store.runfile import RunFile
from tests.store_scene import START_NS, facts

pytestmark = pytest.mark.integration


def made(path: Path) -> Path:
    """Make an empty run's file at ``path``."""
    file = RunFile(path)
    file.create(facts())
    file.close()
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
    assert upgrade(path) == (SCHEMA_REVISION, SCHEMA_REVISION)
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
    (tmp_path / "other.db").write_text("shopping list" * 100)
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
