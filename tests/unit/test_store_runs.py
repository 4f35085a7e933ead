"""Names of runs' files, and what is said of a folder that cannot be used."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from app.errors import RunLockedError, RunsFolderError
from app.store.codes import level_code, pack_sizes, status_code, unpack_sizes
from app.store.runs import new_run_path, run_paths


def test_a_runs_file_is_named_by_time_name_and_id(tmp_path: Path) -> None:
    path = new_run_path(tmp_path / "runs", "PPO, 7 B/v2!", "abc12345")
    assert path.parent == tmp_path / "runs"
    assert re.fullmatch(r"\d{8}-\d{6}-PPO-7-B-v2-abc12345\.db", path.name)


@pytest.mark.parametrize("name", ["", "///", "...", "../../etc"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    path = new_run_path(tmp_path, name, "abc12345")
    assert path.resolve().parent == tmp_path.resolve()


def test_a_folder_that_is_a_file_is_named_with_the_reason_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("", encoding="utf-8")
    with pytest.raises(RunsFolderError) as caught:
        new_run_path(tmp_path / "runs", "x", "y")
    assert str(tmp_path / "runs") in str(caught.value)
    assert "File exists" in caught.value.reason
    assert "\n" not in str(caught.value)


def test_a_folder_without_files_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunsFolderError):
        new_run_path(Path("/proc/self"), "x", "y")


def test_runs_are_listed_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    for name in ("20260101-a.db", "20260202-b.db", "20260202-b.db-wal", "20260202-b.db.lock", "notes.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    assert [path.name for path in run_paths(tmp_path)] == ["20260202-b.db", "20260101-a.db"]


def test_a_missing_folder_has_no_runs(tmp_path: Path) -> None:
    assert run_paths(tmp_path / "none") == ()


def test_errors_keep_their_fields_across_a_pickle() -> None:
    again = pickle.loads(pickle.dumps(RunLockedError("held", "run.db", 42)))
    assert (type(again), again.path, again.pid, str(again)) == (RunLockedError, "run.db", 42, "held")


def test_sizes_survive_packing() -> None:
    assert unpack_sizes(pack_sizes((4, 4, 3))) == (4, 4, 3)
    assert unpack_sizes(pack_sizes(())) == ()


def test_words_nobody_knows_are_taken_for_the_worse() -> None:
    assert status_code("exploded") == status_code("error")
    assert level_code("loud") == level_code("warning")
