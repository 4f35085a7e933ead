"""The commit of a script's folder, told by the real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from app.revision import commit_of

pytestmark = pytest.mark.integration


def test_a_commit_is_told_with_whether_its_files_were_modified(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout.strip()

    git("init", "-q")
    assert commit_of(tmp_path) == ""
    (tmp_path / "driver.py").write_text("print(1)\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert commit_of(tmp_path) == commit
    (tmp_path / "notes.txt").touch()
    assert commit_of(tmp_path) == commit
    (tmp_path / "driver.py").write_text("print(2)\n", encoding="utf-8")
    assert commit_of(tmp_path) == f"{commit}, modified"
