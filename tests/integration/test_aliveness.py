"""The aliveness check ends the driver: drivers in processes of their own, their workers threads of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

DRIVER = """
    import time
    from core import Controller, RayClassWithInitArgs, RayWorkerGroup
    from tests.group_workers import Rows
    with Controller.local():
        group, other = (
            RayWorkerGroup([2], RayClassWithInitArgs(Rows), use_gpu=False, name_prefix=name)
            for name in ("one_", "two_")
        )
        for watched in (group, other, group):
            watched.start_worker_aliveness_check(every_n_seconds=0.05)
        group.close()
        time.sleep(0.3)
        print("went on", flush=True)
        {what}
    print("ended", flush=True)
"""


def run(what: str) -> subprocess.CompletedProcess[str]:
    """Run a driver that does ``what`` at its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER).format(what=what)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_fault_62_a_driver_whose_worker_died_ends_by_sigabrt_and_says_which() -> None:
    done = run("other.workers[1].kill(); time.sleep(20)")
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "went on\n"), done.stderr
    assert "podium: worker two_Rows_0:1 (rank 1 of two, pid" in done.stderr


def test_fault_63_a_watched_driver_that_ends_ends_and_a_closed_group_is_not_taken_for_dead() -> None:
    done = run("pass")
    assert (done.returncode, done.stdout) == (0, "went on\nended\n"), done.stderr
