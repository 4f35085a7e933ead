"""The main job, in its short version: real processes, real gradients, held-out prompts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[2] / "examples" / "arithmetic_rl.py"
LEAST_RISE = 0.1
TIMEOUT_S = 400.0
"""Half a minute on two idle cores, but start-up alone takes minutes on cores that others keep busy."""


@pytest.mark.integration
@pytest.mark.timeout(TIMEOUT_S + 20)
def test_a_short_rl_training_raises_exact_match_on_held_out_prompts() -> None:
    finished = subprocess.run(
        [sys.executable, str(DRIVER), "--short", "--seed", "0"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert finished.returncode == 0, finished.stderr
    found = re.search(r"held-out exact match: ([\d.]+) before RL, ([\d.]+) after", finished.stdout)
    assert found is not None, finished.stdout
    before, after = map(float, found.groups())
    assert after - before >= LEAST_RISE
