"""A driver that trains while its dashboard is attacked: run as a script, led by lines on stdin, answers on stdout.

``phase NAME`` begins a phase; ``end`` prints what each phase cost as JSON.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np

import app
from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.dispatch import Dispatch


class Trainer(Worker):
    """Multiplies matrices for some 20 ms, with one thread."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self) -> float:
        """Return something that depends on the work."""
        matrix = np.ones((400, 400))
        for _ in range(4):
            matrix = matrix @ matrix / 400
        return float(matrix[0, 0])


def rss_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def schedstat_s(thread: int | None) -> tuple[float, float]:
    """Return for how long a thread ran so far, and for how long it was ready to run while other programs did."""
    ran_ns, waited_ns, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="utf-8").split()
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9


def server_cpu_s() -> float:
    """Return the CPU time of the server's thread so far."""
    (thread,) = [one for one in threading.enumerate() if one.name == "podium-server"]
    return schedstat_s(thread.native_id)[0]


def own_time_s(threads: list[int | None]) -> float:
    """Return the time less that in which threads that take turns waited for a core that another program had.

    Waiting for a lock of this process, such as the interpreter's, counts.
    """
    return time.perf_counter() - sum(schedstat_s(one)[1] for one in threads)


def listen(asked: queue.SimpleQueue[str]) -> None:
    """Put every line of stdin into ``asked``."""
    for line in sys.stdin:
        asked.put(line.strip())
    asked.put("end")


def main(folder: str) -> None:
    """Train until stdin says ``end``."""
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(asked,), daemon=True).start()
    phases: dict[str, dict[str, float]] = {}
    with Controller.local(), app.serve(folder, control=True) as server, RayResourcePool([1]) as pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Trainer))
        group.step()
        threads = [one.native_id for one in threading.enumerate() if one.name.startswith(("Main", "podium-Trainer"))]
        opened = {"address": server.address, "read": server.token, "control": server.control_token}
        print(json.dumps({**opened, "file": str(server.db_path)}), flush=True)
        name, steps_s, most, began = "", [], 0, (0.0, 0.0)
        while True:
            began_s = own_time_s(threads)
            group.step()
            steps_s.append(own_time_s(threads) - began_s)
            most = max(most, rss_bytes())
            if asked.empty():
                continue
            now = (time.perf_counter(), server_cpu_s())
            if name:
                phases[name] = {
                    "step_ms": statistics.median(steps_s) * 1000,
                    "n_steps": len(steps_s),
                    "rss_mb": most / 1e6,
                    "server_cpu": (now[1] - began[1]) / (now[0] - began[0]),
                }
            command, _, name = asked.get().partition(" ")
            if command == "end":
                break
            steps_s, most, began = [], 0, now
            print("begun", flush=True)
    print(json.dumps(phases), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
