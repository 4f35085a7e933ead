"""The README's first program, run as the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def test_the_first_program_runs_with_the_dashboard_and_leaves_its_run_behind(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (tmp_path / "first.py").write_text(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0], encoding="utf-8")
    command = [sys.executable, "-m", "app", "run", "first.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "tensor([ 0.,  3.,  6.,  9., 12., 15., 18., 21., 24., 27.])" in done.stdout
    assert re.search(r"dashboard at http://127\.0\.0\.1:\d+/\?token=\S+", done.stderr)
    assert re.search(r"podium view runs/\S+\.db", done.stderr)
    assert len(list((tmp_path / "runs").glob("*.db"))) == 1
