"""A driver on a real Ray is killed under load: its record is whole and nothing of it goes on living."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from app.store.check import check
from app.store.reader import STALE_NS, Reader

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="a Ray of its own: make test-slow"),
]

DRIVER = """
import sys
import app, core, core.runtime
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register

class Nothing(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nothing(self):
        return self.rank

core.init(address="local", num_cpus=20, _temp_dir=sys.argv[1], log_to_driver=False)
with app.serve(sys.argv[2]) as server:
    group = RayWorkerGroup(RayResourcePool([2], use_gpu=False), RayClassWithInitArgs(Nothing), use_gpu=False)
    for n in range(10**9):
        group.nothing()
        if n == 100:
            core.runtime.current().bus.flush(30)
            print(server.db_path, flush=True)
"""


def left_of(folder: str) -> dict[int, str]:
    """Return the processes, by id, whose command line names ``folder``: everything a Ray of that folder started."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if folder in words and int(name) != os.getpid():
                found[int(name)] = words
    return found


def test_a_driver_on_ray_that_is_killed_leaves_a_whole_record_and_no_process(tmp_path: Path) -> None:
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="podium-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", DRIVER, folder, str(tmp_path)]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert driver.stdout is not None
        with driver.stdout as printed:
            try:
                path = Path(printed.readline().strip())
                assert len(left_of(folder)) > 3
            finally:
                driver.kill()
                driver.wait(30)
        assert driver.returncode == -signal.SIGKILL
        found = check(path)
        assert (found.faults, found.missing) == ((), ())
        assert found.n_calls > 100
        with contextlib.closing(Reader(path, wall_ns=lambda: time.time_ns() + 2 * STALE_NS)) as reader:
            assert reader.run().state == "died"
            assert [worker.state for worker in reader.workers()] == ["alive"] * 2
        ends_at = time.monotonic() + 60
        while left := left_of(folder):
            assert time.monotonic() < ends_at, f"still there: {left}"
            time.sleep(0.1)
