"""Who ends with whom: real processes of this machine, no Ray."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.integration

WAITS = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


@contextlib.contextmanager
def python(code: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run code that prints pids; give its process and pidfds of these. Everything is killed in the end."""
    made = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdin is not None
    with made.stdin, made.stdout as printed:
        pidfds = [os.pidfd_open(int(pid)) for pid in printed.readline().split()]
        try:
            yield made, pidfds
        finally:
            made.kill()
            made.wait(30)
            for pidfd in pidfds:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)


def has_ended(pidfd: int, within_s: float) -> bool:
    """Tell whether a process ends within a time."""
    return bool(select.select([pidfd], [], [], within_s)[0])


AFTER = f"""
    import subprocess, time
    from core.cluster.processes import children, end_after_me
    other, ends = [subprocess.Popen({WAITS!r}) for _ in range(2)]
    waits = end_after_me([ends.pid])
    print(ends.pid, waits.pid, other.pid, flush=True)
    {{}}
"""


@pytest.mark.parametrize("end", ["time.sleep(60)", "raise SystemExit", "import os; os._exit(1)"])
def test_what_is_to_end_after_a_process_ends_however_that_ended(end: str) -> None:
    with python(AFTER.format(end)) as (process, (ends, waits, other)):
        if "sleep" in end:
            assert not has_ended(ends, 0.5)
            process.kill()
        process.wait(30)
        assert has_ended(ends, 10)
        assert has_ended(waits, 10)
        assert not has_ended(other, 0)


def test_a_stopped_one_ends_too_and_a_signal_to_its_group_does_not_reach_the_one_that_waits() -> None:
    with python("\n    import os; os.setpgid(0, 0)" + AFTER.format("time.sleep(60)")) as (process, (ends, waits, _)):
        signal.pidfd_send_signal(ends, signal.SIGSTOP)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        assert has_ended(ends, 10)
        assert has_ended(waits, 10)


def test_nothing_is_killed_when_the_one_that_waits_was_terminated() -> None:
    with python(AFTER.format("input(); waits.kill(); waits.wait(); print(flush=True)")) as (process, (ends, waits, _)):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(30)
        assert has_ended(waits, 0)
        assert not has_ended(ends, 0.5)


KEPT = """
    import subprocess, sys, time
    kept = "import time; from core.cluster.processes import end_with_parent; print(end_with_parent(), flush=1); "
    kept += "time.sleep(60)"
    made = subprocess.Popen([sys.executable, "-c", kept], stdout=subprocess.PIPE, text=True)
    assert made.stdout.readline() == "True\\n"
    print(made.pid, flush=True)
    time.sleep(60)
"""


def test_a_process_that_ends_with_its_parent_does_so_also_when_it_is_stopped() -> None:
    with python(KEPT) as (process, (kept,)):
        signal.pidfd_send_signal(kept, signal.SIGSTOP)
        process.kill()
        process.wait(30)
        assert has_ended(kept, 10)


def test_a_worker_that_shares_the_driver_s_process_does_not_bind_it_to_the_driver_s_parent() -> None:
    code = """
    from core.cluster.base import isolate_environ
    from core.cluster.processes import end_with_parent
    isolate_environ()
    assert not end_with_parent()
    print(flush=True)
    """
    with python(code) as (process, _):
        assert process.wait(30) == 0
