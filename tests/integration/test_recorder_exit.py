"""What a recorder leaves behind when its script just ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from app.store.reader import Reader
from app.store.runs import run_paths

pytestmark = pytest.mark.integration

# Both scripts run in one interpreter after another: importing torch takes seconds.
SCRIPT = """
import os, sys
from pathlib import Path
from app.recorder import start_run
from core.events import Notice
folder = Path(sys.argv[1])
pid = os.fork()
name = "failing" if pid == 0 else "ending"
recorder = start_run(folder, name=name, script="x.py", started_ns=10**18, podium_version="1", ray_version="")
recorder.observe(Notice(10**18, "info", "hello from " + name))
if pid == 0:
    raise ValueError("on purpose")
os.waitpid(pid, 0)
"""


def test_a_script_that_ends_and_one_that_raises_are_both_closed_and_told_apart(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "ValueError: on purpose" in done.stderr
    found = {}
    for path in run_paths(tmp_path):
        with contextlib.closing(Reader(path)) as reader:
            run = reader.run()
            found[run.name] = (run.state, reader.happenings(1, None)[0].text)
    assert found == {"ending": ("ended", "hello from ending"), "failing": ("failed", "hello from failing")}
