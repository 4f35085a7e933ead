"""How a process ended, judged by what is left of it: a table of clues and verdicts."""

from __future__ import annotations

import contextvars
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.cluster.base import isolate_environ
from core.health.evidence import (
    Clues,
    Findings,
    examine,
    exit_status,
    judge,
    process_state,
    raylet_end_of_killed,
    rss_bytes,
    zombie_status,
)
from core.worker.process_info import ProcessInfo, count_oom_kills, enable_diagnostics, machine

GUESSES = (
    "The actor died unexpectedly before finishing this task.\n\tpid: 77\nThe actor is dead because its worker process "
    "has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error "
    "code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory "
    "usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another "
    "unexpected error."
)
TERMINATED = "Worker exits unexpectedly. Worker exits with an exit code 1. The process receives a SIGTERM."
STOOD, ROSE = (Findings(n_oom_kills=2), 2), (Findings(n_oom_kills=3), 2)


@pytest.mark.parametrize(
    ("clues", "cause", "number", "code", "oom"),
    [
        (Clues(GUESSES, 9, *STOOD), "killed from outside by signal 9 (SIGKILL)", 9, None, False),
        (
            Clues(GUESSES, 9),
            "killed from outside by signal 9 (SIGKILL); whether for memory is not known",
            9,
            None,
            None,
        ),
        (Clues(GUESSES, 9, *ROSE), "out of memory: killed by the kernel with signal 9 (SIGKILL)", 9, None, True),
        (
            Clues(GUESSES, None, *STOOD),
            "killed from outside by signal 9 (SIGKILL), by all signs",
            9,
            None,
            False,
        ),
        (Clues(GUESSES, 11, *ROSE), "crashed by signal 11 (SIGSEGV)", 11, None, False),
        (Clues(GUESSES, 6), "crashed by signal 6 (SIGABRT)", 6, None, False),
        (Clues(GUESSES, 6 | 0x80), "crashed by signal 6 (SIGABRT)", 6, None, False),
        (Clues(GUESSES, 2), "killed by signal 2 (SIGINT)", 2, None, False),
        (Clues(GUESSES, 3 << 8), "ended by itself with exit code 3", 0, 3, False),
        (Clues("Worker exits with an exit code 4.", 0), "ended by itself with exit code 4", 0, 4, False),
        (Clues(TERMINATED, 0), "ended by itself with exit code 1 after signal 15 (SIGTERM)", 15, 1, False),
        (
            Clues(GUESSES, None, Findings(crash_line="Fatal Python error: Segmentation fault")),
            "crashed by signal 11 (SIGSEGV)",
            11,
            None,
            None,
        ),
        (
            Clues(GUESSES, None, Findings(crash_line="Fatal Python error: gc_decref: no")),
            "crashed by signal 6 (SIGABRT)",
            6,
            None,
            None,
        ),
        (
            Clues(GUESSES, 9, Findings(kernel_lines=("Out of memory: Killed process 77 (ray::Actor)",))),
            "out of memory: killed by the kernel with signal 9 (SIGKILL)",
            9,
            None,
            True,
        ),
        (
            Clues("1 worker(s) were killed due to the node running low on memory."),
            "out of memory: killed by the cluster's memory monitor",
            9,
            None,
            True,
        ),
        (
            Clues("The actor is dead because it was killed by `ray.kill`.", 1 << 8),
            "ended by ray.kill, or by the end of its last handle",
            0,
            1,
            False,
        ),
        (Clues("The actor died because its node has died."), "its node died", 0, None, None),
    ],
)
def test_the_verdict(clues: Clues, cause: str, number: int, code: int | None, oom: bool | None) -> None:
    verdict = judge(clues)
    assert (verdict.cause, verdict.signal, verdict.exit_code, verdict.oom) == (cause, number, code, oom)


def test_the_evidence_has_a_line_for_all_that_was_looked_at_and_no_guess_of_the_clusters() -> None:
    told = judge(Clues(GUESSES, 9, *ROSE)).evidence
    assert told[0] == "the kernel says: wait status 0x9"
    assert "the control group's count of kills for memory went from 2 to 3" in told
    assert told[-1].startswith("the cluster says: Worker exit type: SYSTEM_ERROR")
    assert "OOM killer" not in " ".join(told)


def test_what_is_inferred_is_said_to_be() -> None:
    (line,) = [line for line in judge(Clues("", None, Findings(unread="it has none"))).evidence if "inferred" in line]
    assert line.startswith("inferred: no crash is in its log (its log was not read: it has none)")


def test_a_worker_killed_with_its_keeper_is_told_from_one_that_was_killed_alone() -> None:
    killed, left = int(signal.SIGKILL), 7 << 8
    with subprocess.Popen(["sleep", "100"]) as raylet:
        assert raylet_end_of_killed(raylet.pid, killed) == ""
        raylet.kill()
        os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
        said = f"raylet (pid {raylet.pid}) of this node was killed by signal 9 (SIGKILL)"
        assert raylet_end_of_killed(raylet.pid, killed) == said
        assert [raylet_end_of_killed(raylet.pid, status) for status in (left, None, 0)] == ["", "", ""]
    assert raylet_end_of_killed(raylet.pid, killed) == f"raylet (pid {raylet.pid}) of this node exited"
    assert raylet_end_of_killed(0, killed) == ""


def test_a_process_that_is_not_ours_tells_its_status_where_the_kernel_does() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            assert exit_status(pidfd) is None
            assert zombie_status(process.pid) is None
            assert process_state(process.pid) in {"S", "R", "D"}
            assert rss_bytes(process.pid) > 0
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert process_state(process.pid) == "Z"
            assert zombie_status(process.pid) == signal.SIGKILL
            process.wait()
            assert zombie_status(process.pid) is None
            assert process_state(process.pid) == ""
            assert rss_bytes(process.pid) == 0
            # None on kernels before 6.15.
            assert exit_status(pidfd) in {signal.SIGKILL, None}
        finally:
            os.close(pidfd)


def test_what_is_left_is_the_end_of_both_logs_and_the_line_of_the_crash(tmp_path: Path) -> None:
    errors, output = tmp_path / "worker.err", tmp_path / "worker.out"
    output.write_text(":job_id:01\n:actor_name:Long\nstep 7\n", encoding="utf-8")
    stack = [f'  File "x.py", line {line} in f' for line in range(60)]
    errors.write_text("\n".join(["Fatal Python error: Bus error", *stack]), encoding="utf-8")
    found = examine(ProcessInfo(log=str(errors), output=str(output)), 1)
    assert found.log_tail[0] == "step 7"
    assert found.log_tail[-1] == stack[-1]
    assert found.crash_line == "Fatal Python error: Bus error"
    assert examine(ProcessInfo(log=str(tmp_path / "gone")), 1).log_tail == ()


def test_kills_for_memory_are_counted_by_either_version_of_control_groups(tmp_path: Path) -> None:
    path = tmp_path / "memory.events"
    path.write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n", encoding="utf-8")
    assert count_oom_kills(str(path)) == 2
    path.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", encoding="utf-8")
    assert count_oom_kills(str(path)) == 1
    path.write_text("oom_kill_disable 0\n", encoding="utf-8")
    assert count_oom_kills(str(path)) == count_oom_kills("") == count_oom_kills(str(tmp_path / "gone")) == -1


def test_two_processes_of_one_machine_know_each_other_and_a_thread_leaves_no_trace() -> None:
    code = "import os; print(open('/proc/sys/kernel/random/boot_id').read().strip(), os.readlink('/proc/self/ns/pid'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert machine() == other.stdout.strip() != ""

    def traces_of_a_thread() -> ProcessInfo:
        isolate_environ()
        return enable_diagnostics()

    assert contextvars.copy_context().run(traces_of_a_thread) == ProcessInfo()
