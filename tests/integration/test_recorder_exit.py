"""What a recorder leaves behind when its script just ends."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.recorder import start_run
from app.store.reader import STALE_NS, Reader
from app.store.runs import crash_path, run_paths

pytestmark = pytest.mark.integration

# Both scripts run in one interpreter after another: importing torch takes seconds.
SCRIPT = """
import os, sys, time
from pathlib import Path
from app.recorder import start_run
from core.events import Notice
folder = Path(sys.argv[1])
pid = os.fork()
name = "failing" if pid == 0 else "ending"
recorder = start_run(folder, name=name, script="x.py", started_ns=time.time_ns(), podium_version="1", ray_version="")
recorder.observe(Notice(time.time_ns(), "info", "hello from " + name))
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
            found[run.name] = (run.state, reader.events(1, None)[0].text)
    assert found == {"ending": ("ended", "hello from ending"), "failing": ("failed", "hello from failing")}


ABORTED = """
import os, sys, threading, time
from pathlib import Path
from app.recorder import start_run
from core.events import Notice
folder = Path(sys.argv[1])
recorder = start_run(folder, name="x", script="x.py", started_ns=time.time_ns(), podium_version="1", ray_version="")
recorder.observe(Notice(time.time_ns(), "info", "the last word"))
recorder.flush()
if os.fork() == 0:
    os.abort()
os.wait()
assert not (recorder.path.with_suffix(".crash.txt")).read_text(encoding="utf-8"), "a child's fault is not the driver's"
threading.Thread(target=os.abort).start()
threading.Event().wait(60)
"""


def test_a_driver_that_is_aborted_leaves_its_stacks_beside_the_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ABORTED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT, done.stderr
    (path,) = run_paths(tmp_path)
    with contextlib.closing(Reader(path, wall_ns=lambda: time.time_ns() + 2 * STALE_NS)) as reader:
        assert (reader.run().state, reader.events(1, None)[0].text) == ("died", "the last word")
        text = reader.crash_text()
    assert "Fatal Python error: Aborted" in text
    assert text.count("most recent call first") >= 3


def test_a_run_that_ends_leaves_one_file_and_faulthandler_as_it_was(tmp_path: Path) -> None:
    was_on = faulthandler.is_enabled()
    recorder = start_run(tmp_path, name="x", script="x", started_ns=1, podium_version="1", ray_version="")
    assert crash_path(recorder.path).exists()
    recorder.close()
    recorder.close()
    assert [path.name for path in tmp_path.iterdir()] == [recorder.path.name]
    assert faulthandler.is_enabled() == was_on
