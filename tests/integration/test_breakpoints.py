"""A breakpoint in a worker method, as ``docs/breakpoints.md`` describes it, with the session that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

_ROOT = Path(__file__).parents[2]
_TEXT = (_ROOT / "docs/breakpoints.md").read_text(encoding="utf-8")


def test_the_session_in_the_document_is_what_happens(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
    (session,) = re.findall(r"```console\n(.*?)```", _TEXT, re.DOTALL)
    script = tmp_path / "scaler.py"
    script.write_text(program, encoding="utf-8")
    typed = re.findall(r"\(Pdb\) (.*)", session)
    done = subprocess.run(
        [sys.executable, str(script)],
        input="".join(f"{line}\n" for line in typed),
        cwd=_ROOT,
        # A Ray that was started in this process has set PYTHONBREAKPOINT to a debugger of its own.
        env={name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What is typed into a pipe is not echoed, and the path is that of the test's own file.
    shown = re.sub(r"\(Pdb\) .*\n", "(Pdb) ", session.split("\n", 1)[1])
    assert done.stdout.replace(f"{tmp_path}/", "") == shown
