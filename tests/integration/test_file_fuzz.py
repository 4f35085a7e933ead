"""Mutated run files, in a process of their own whose memory is counted; ``PODIUM_FUZZ_FILES=3000`` tries that many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7_200)]
N_FILES = int(os.environ.get("PODIUM_FUZZ_FILES", "0"))


@pytest.mark.parametrize("seed", [1] if not N_FILES else [1, 2, 3])
def test_no_run_file_breaks_a_page_a_route_an_export_or_a_command(seed: int, tmp_path: Path) -> None:
    n = N_FILES // 3 or 12
    command = [sys.executable, "-m", "tests.file_fuzz", str(tmp_path), "--seed", str(seed), "--n", str(n)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7_000)
    *found, last = done.stdout.splitlines() or ["{}"]
    assert (found, done.stderr[-2_000:]) == ([], "")
    assert json.loads(last) == {"seed": seed, "n": n, "n_found": 0}
