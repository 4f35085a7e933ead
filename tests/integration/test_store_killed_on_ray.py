"""A driver on a real Ray is killed under load, or ends for a death: its record is whole and nothing of it lives on."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from app.store.check import check
from app.store.reader import STALE_NS, Reader

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="a Ray of its own: make test-slow"),
]

DRIVER = """
import os, sys, time
import app, core, core.runtime
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register

class Nothing(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nothing(self):
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def process(self):
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def hang(self):
        time.sleep(600)

if "RAY_ADDRESS" not in os.environ:
    core.init(address="local", num_cpus=4, _temp_dir=sys.argv[1], log_to_driver=False)
with app.serve(sys.argv[2]) as server:
    pool = RayResourcePool([3], use_gpu=False, max_colocate_count=1)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Nothing), use_gpu=False, on_death="abort")
    for n in range(10**9):
        group.nothing()
        if n == 100:
            pids = group.process()
            core.runtime.current().bus.flush(30)
            print(server.db_path, *pids, flush=True)
            if sys.argv[3] == "hang":
                group.hang()
"""


Process = tuple[int, int]
"""A process: its id, and when it started, as an id may come again."""


def stat(pid: int) -> list[str]:
    """Return what the kernel says of a process from its state on (proc(5), field 3); nothing when there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return []


def descendants(pid: int) -> list[Process]:
    """Return every process that comes from one, whatever its command line says."""
    by_parent: dict[int, list[Process]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if fields := stat(int(name)):
            by_parent.setdefault(int(fields[1]), []).append((int(name), int(fields[19])))
    found = list(by_parent.get(pid, []))
    for one, _ in found:
        found += by_parent.get(one, [])
    return found


def left_of(processes: list[Process]) -> dict[int, str]:
    """Return those that live, with their command lines."""
    found = {}
    for pid, started in processes:
        fields = stat(pid)
        if fields and fields[0] != "Z" and int(fields[19]) == started:
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    return found


@dataclass
class Driver:
    """A driver that runs, its run's file, its workers, and all processes that came from it."""

    process: subprocess.Popen[str]
    path: Path
    workers: list[int]
    processes: list[Process]


@contextlib.contextmanager
def driver(folder: str, runs: Path, how: str, address: str = "local") -> Iterator[Driver]:
    """Start a driver that makes calls, or one long one. Kill it in the end."""
    command = [sys.executable, "-c", DRIVER, folder, str(runs), how]
    environ = {**os.environ, "RAY_ADDRESS": address} if address != "local" else None
    with open(runs / "said", "w", encoding="utf-8") as said:
        made = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=Path(__file__).parents[2], env=environ
        )
    assert made.stdout is not None
    with made.stdout as printed:
        try:
            path, *pids = printed.readline().split()
            workers = [int(pid) for pid in pids]
            processes = descendants(made.pid)
            if address != "local":
                processes = [(pid, int(stat(pid)[19])) for pid in workers]
            assert set(workers) <= {pid for pid, _ in processes}
            yield Driver(made, Path(path), workers, processes)
        finally:
            made.kill()
            made.wait(30)


def wait_until_all_ended(processes: list[Process], timeout_s: float) -> None:
    """Wait until nothing is left; the rest is killed when that takes too long."""
    ends_at = time.monotonic() + timeout_s
    while left := left_of(processes):
        if time.monotonic() > ends_at:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"still there: {left}")
        time.sleep(0.1)


@pytest.mark.parametrize("stopped", [False, True], ids=["all run", "one is stopped"])
def test_a_driver_on_ray_that_is_killed_leaves_a_whole_record_and_no_process(tmp_path: Path, stopped: bool) -> None:
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="podium-", ignore_cleanup_errors=True) as folder:
        with driver(folder, tmp_path, "call") as killed:
            assert len(killed.processes) > 3 + len(killed.workers)
            if stopped:  # it can do nothing for its own end
                os.kill(killed.workers[2], signal.SIGSTOP)
        assert killed.process.returncode == -signal.SIGKILL
        wait_until_all_ended(killed.processes, 10)
        found = check(killed.path)
        assert (found.faults, found.missing) == ((), ())
        assert found.n_calls > 100
        with contextlib.closing(Reader(killed.path, wall_ns=lambda: time.time_ns() + 2 * STALE_NS)) as reader:
            assert reader.run().state == "died"
            assert [worker.state for worker in reader.workers()] == ["alive"] * 3


def test_a_stopped_worker_on_a_cluster_that_its_killed_driver_had_joined_ends_too(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="podium-", ignore_cleanup_errors=True) as folder:
        ray.init(address="local", num_cpus=4, _temp_dir=folder, log_to_driver=False)
        try:
            with driver(folder, tmp_path, "call", ray.get_runtime_context().gcs_address) as killed:
                os.kill(killed.workers[2], signal.SIGSTOP)
            wait_until_all_ended(killed.processes, 20)
        finally:
            ray.shutdown()


def test_a_driver_that_is_ended_for_a_death_takes_a_stopped_worker_with_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="podium-", ignore_cleanup_errors=True) as folder:
        with driver(folder, tmp_path, "hang") as ended:
            path, pids = ended.path, ended.workers
            os.kill(pids[2], signal.SIGSTOP)
            os.kill(pids[1], signal.SIGKILL)
            ended.process.wait(30)
            wait_until_all_ended(ended.processes, 5)
        assert ended.process.returncode == -signal.SIGABRT
        found = check(path)
        assert (found.faults, found.missing) == ((), ())
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (death,) = connection.execute("SELECT rank, pid, signal FROM death").fetchall()
            told = [text for (text,) in connection.execute("SELECT text FROM event WHERE text LIKE '%SIGABRT%'")]
        assert death == (1, pids[1], int(signal.SIGKILL))
        assert [text for text in told if text.endswith("abort: the driver is ended by SIGABRT")]
        assert "abort: the driver is ended by SIGABRT" in (tmp_path / "said").read_text(encoding="utf-8")
        assert "most recent call first" in path.with_suffix(".crash.txt").read_text(encoding="utf-8")
