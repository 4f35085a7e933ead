"""What a driver leaves in its runs folder, and who else can open it: nobody, whatever the umask."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.errors import RunsFolderError
from app.store.crash import CrashFile
from app.store.lock import FileLock
from app.store.migrate import upgrade
from app.store.private import make_private_dir, open_private
from app.store.runs import new_run_path
from app.store.writer import Writer
from tests.integration.test_store_db import older
from tests.store_scene import facts, one_call, people

pytestmark = pytest.mark.integration

DRIVER = """
import os, sys
os.umask(int(sys.argv[2], 8))
from pathlib import Path
import app
from tests.store_scene import one_call, people
from core import runtime
with app.serve(Path(sys.argv[1]) / "deep" / "runs", control=True) as server:
    for event in (*people(), *one_call(1, 10)):
        runtime.current().bus.emit(event)
    runtime.current().bus.flush(5)
    folder = server.db_path.parent
    for found in sorted(folder.iterdir()):
        print(oct(found.stat().st_mode & 0o777), found.name.partition("-")[2].partition(".")[2])
    print(oct(folder.stat().st_mode & 0o777), "folder", oct(folder.parent.stat().st_mode & 0o777))
"""


@pytest.mark.parametrize("umask", ["0", "0777"])
def test_every_file_of_a_run_is_its_user_s_alone(umask: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), umask], capture_output=True, text=True, timeout=120, check=True
    )
    *files, folder = done.stdout.splitlines()
    assert folder == "0o700 folder 0o700"
    rights = {line.split(" ", 1)[1]: line.split(" ")[0] for line in files}
    assert set(rights) >= {"db", "db-wal", "db-shm", "db.lock", "db.token", "db.control-token", "crash.txt"}
    assert set(rights.values()) == {"0o600"}


def test_an_upgraded_file_is_its_user_s_alone(tmp_path: Path) -> None:
    path = older(tmp_path)
    path.chmod(0o644)
    upgrade(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("suffix", [".db", ".db.lock", ".crash.txt"])
def test_a_link_laid_where_a_file_will_be_made_is_not_followed(suffix: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("", encoding="utf-8")
    (tmp_path / f"run{suffix}").symlink_to(victim)
    crash = CrashFile(tmp_path / "run.db")
    writer = Writer(tmp_path / "run.db", facts())
    if suffix == ".crash.txt":
        crash.open()
        crash.close()
    else:
        with pytest.raises(RunsFolderError, match="Too many levels of symbolic links"):
            writer.start()
    assert victim.read_text(encoding="utf-8") == ""
    assert (tmp_path / f"run{suffix}").is_symlink()


def test_a_second_name_of_another_file_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("dear", encoding="utf-8")
    os.link(tmp_path / "mine", tmp_path / "run.db.lock")
    with pytest.raises(OSError, match="not private to you"):
        FileLock(tmp_path / "run.db").acquire()
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "dear"
    with pytest.raises(IsADirectoryError):
        open_private(tmp_path, os.O_RDWR)


def test_a_folder_that_others_can_write_into_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, "podium.store"):
        new_run_path(tmp_path / "own", "x", "y")
        assert not caplog.messages
        new_run_path(open_folder, "x", "y")
    assert "every user can write to it" in caplog.text
    assert make_private_dir(tmp_path / "own") is False


def test_a_run_is_recorded_into_a_private_file(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run.db", facts())
    writer.start()
    for event in (*people(), *one_call(1, 10)):
        writer.put(event)
    writer.close()
    assert stat.S_IMODE((tmp_path / "run.db").stat().st_mode) == 0o600
