"""``--no-tracebacks``: nothing of an argument's value is in any file or line of a run, also of one that crashed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
MARKER = "marker-7f3a9c1e"

DRIVER = """
import os, sys
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register, runtime
from core.testing import local_controller


class Echo(Worker):
    def __init__(self, secret):
        super().__init__()
        self.secret = secret

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, text):
        raise ValueError(f"cannot take {text} with {self.secret}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fine(self, text):
        return text


recorded = runtime.current().bus

with local_controller() as (controller, _):
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Echo, sys.argv[1]))
    group.fine(sys.argv[1])
    try:
        group.fail(sys.argv[1])
    except Exception as error:
        assert sys.argv[1] in str(error)
    else:
        sys.exit("the call did not fail")
    recorded.flush(5)
    if sys.argv[2] == "abort":
        os.abort()
"""


@pytest.mark.parametrize(("flag", "end"), [("--no-tracebacks", "abort"), ("", "well")])
def test_no_value_is_left_in_any_file_or_line_where_none_is_wanted(flag: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER, encoding="utf-8")
    options = ["--runs-dir", str(tmp_path / "runs"), *([flag] if flag else [])]
    command = [sys.executable, "-m", "app", "run", *options, str(tmp_path / "driver.py"), MARKER, end]
    done = subprocess.run(command, capture_output=True, timeout=150)
    assert (done.returncode == 0) == (end == "well"), done.stderr
    files = {path.name: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
    assert any(name.endswith(".crash.txt") for name in files) == (end == "abort")
    holding = [name for name, content in files.items() if MARKER.encode() in content]
    assert MARKER.encode() not in done.stdout + done.stderr
    # Without the flag the record has the error's message: the marker would be found if it were there.
    assert bool(holding) == (not flag), holding
