"""Kill workers in a loop, busy and idle, and time how soon that is noticed, explained and on file.

``python -m benchmarks.deaths --kills 20`` kills 20 workers in each of six ways, stops one 20 times, and prints a table;
5 workers are up at a time. A stopped worker must not be taken for dead: it is told as a stall. Ends with 1 when
something was not noticed within 2 s (p95), wrongly explained, or not on file.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import core
from app.recorder import start_run
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.errors import WorkerDiedError
from core.events import CallStalled, WorkerEnded
from core.runtime import current
from core.testing import RecordingObserver

_RANKS = 5
_LIMIT_S = 2.0
_GONE_S = 60.0
_WORDS = {signal.SIGKILL: "killed from outside", signal.SIGABRT: "crashed", signal.SIGTERM: "SIGTERM"}


class Victim(Worker):
    """A worker that waits until a file is there."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait(self, until: str) -> int:
        """Wait."""
        while not os.path.exists(until):
            time.sleep(0.01)
        return os.getpid()


@dataclass
class Tally:
    """What one way of killing came to: seconds from the process's end to the event, and what went wrong."""

    noticed_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def line(self, name: str) -> str:
        """Return a line of the table."""
        times = sorted(self.noticed_s)
        p95 = times[min(len(times) - 1, int(len(times) * 0.95))] if times else float("nan")
        p50 = times[len(times) // 2] if times else float("nan")
        worst = times[-1] if times else float("nan")
        return f"{name:<16} {len(times):>4} {p50 * 1e3:>8.1f} {p95 * 1e3:>8.1f} {worst * 1e3:>8.1f}  {len(self.wrong)}"

    @property
    def is_good(self) -> bool:
        """Whether all went as it should."""
        times = sorted(self.noticed_s)
        return not self.wrong and bool(times) and times[min(len(times) - 1, int(len(times) * 0.95))] <= _LIMIT_S


@dataclass
class Scene:
    """What the kills happen in."""

    seen: RecordingObserver
    folder: Path
    db: Path
    n_groups: int = 0

    def group(self) -> tuple[RayWorkerGroup, list[int]]:
        """Start a group and return it with its pids."""
        ready = self.folder / "ready"
        ready.touch()
        self.n_groups += 1
        pool = RayResourcePool([_RANKS], use_gpu=False, max_colocate_count=1)
        made = RayWorkerGroup(
            pool, RayClassWithInitArgs(Victim), name_prefix=f"victims{self.n_groups}", on_death="raise"
        )
        return made, made.wait(str(ready))


def _until(true: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _kill(scene: Scene, group: RayWorkerGroup, rank: int, pid: int, number: signal.Signals, tally: Tally) -> None:
    """Kill one worker and take note of how that was told."""
    os.kill(pid, number)
    if not _until(lambda: not os.path.exists(f"/proc/{pid}"), _GONE_S):
        tally.wrong.append(f"process {pid} did not end")
        return
    gone_s = time.monotonic()
    heard: list[WorkerEnded] = []

    def told() -> bool:
        heard[:] = [event for event in scene.seen.of(WorkerEnded) if (event.group, event.rank) == (group.name, rank)]
        return bool(heard)

    if not _until(told, _LIMIT_S * 5):
        tally.wrong.append(f"{group.name} rank {rank} was not noticed")
        return
    tally.noticed_s.append(time.monotonic() - gone_s)
    event = heard[0]
    if len(heard) != 1 or event.pid != pid or _WORDS[number] not in event.reason:
        tally.wrong.append(f"{group.name} rank {rank}, {number.name}: {len(heard)} x {event.reason}")
    if not _until(lambda: _on_file(scene.db, group.name, rank) == 1, 1.0):
        tally.wrong.append(f"{group.name} rank {rank} is not on file once")


def _on_file(db: Path, group: str, rank: int) -> int:
    query = "SELECT count(*) FROM death JOIN worker_group g ON g.id = group_id WHERE g.name = ? AND rank = ?"
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return int(connection.execute(query, (group, rank)).fetchone()[0])


def _round(scene: Scene, number: signal.Signals, busy: bool, n_kills: int, tally: Tally) -> None:
    """Kill ``n_kills`` workers of one group, all while they are in a call or all while they idle."""
    group, pids = scene.group()
    until = scene.folder / f"enough{scene.n_groups}"
    try:
        if busy:
            caught: list[WorkerDiedError] = []
            caller = threading.Thread(target=_call, args=(group, str(until), caught))
            caller.start()
            time.sleep(0.3)
        for rank, pid in list(enumerate(pids))[:n_kills]:
            _kill(scene, group, rank, pid, number, tally)
        if busy:
            caller.join(10)
            if [(error.rank, error.pid) for error in caught] != [(0, pids[0])]:
                tally.wrong.append(f"the call in {group.name} got {caught}")
    finally:
        until.touch()
        group.resource_pool.close()


def _call(group: RayWorkerGroup, until: str, caught: list[WorkerDiedError]) -> None:
    try:
        group.wait(until)
    except WorkerDiedError as error:
        caught.append(error)


def _stop(scene: Scene, n_stops: int, tally: Tally) -> None:
    """Stop workers in a call: each is told as a stall, none as a death, and each goes on."""
    group, pids = scene.group()
    try:
        for turn in range(n_stops):
            pid = pids[turn % _RANKS]
            os.kill(pid, signal.SIGSTOP)
            n_before = len(scene.seen.of(CallStalled))
            threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
            began_s = time.monotonic()
            group.wait(str(scene.folder / "ready"))
            stalls = scene.seen.of(CallStalled)[n_before:]
            if not stalls or stalls[0].ranks != (turn % _RANKS,):
                tally.wrong.append(f"turn {turn}: stalls {stalls}")
            tally.noticed_s.append(max(0.0, time.monotonic() - began_s - 1.5))
        if any(event.died for event in scene.seen.of(WorkerEnded) if event.group == group.name):
            tally.wrong.append("a stopped worker was taken for dead")
    finally:
        group.resource_pool.close()


def main() -> int:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many of each kind")
    wanted = parser.parse_args().kills
    with tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        core.init(num_cpus=2 * _RANKS, _temp_dir=name, log_to_driver=False)
        core.set_health(stall_s=0.5)
        runtime, seen = current(), RecordingObserver()
        recorder = start_run(
            folder, name="deaths", script="", started_ns=runtime.clock.now_ns(), podium_version="", ray_version=""
        )
        runtime.bus.subscribe(recorder, recorder.flush)
        runtime.bus.subscribe(seen)
        scene, tallies = Scene(seen, folder, recorder.path), {}
        for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGTERM):
            for busy in (True, False):
                tally = tallies[f"{number.name} {'busy' if busy else 'idle'}"] = Tally()
                for done in range(0, wanted, _RANKS):
                    _round(scene, number, busy, min(_RANKS, wanted - done), tally)
        _stop(scene, wanted, tallies.setdefault("SIGSTOP busy", Tally()))
        runtime.close()
        recorder.close()
        with closing(sqlite3.connect(recorder.path)) as connection:
            (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
    print(f"{'how':<16} {'n':>4} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}  wrong; from the process's end to the event")
    for kind, tally in tallies.items():
        print(tally.line(kind))
        for wrong in tally.wrong:
            print(f"  {wrong}")
    print(f"integrity_check: {sound}")
    return 0 if sound == "ok" and all(tally.is_good for tally in tallies.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
