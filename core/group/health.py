"""Noticing that a worker's process is gone, also between calls, and ending the driver for it.

One question is out with every worker at all times. A busy worker leaves it in its queue; a worker that dies answers it
within milliseconds, by the cluster's own notice of the death. Nothing is polled, no dashboard and no address file is
asked: always this driver's own cluster.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from core.cluster import Outcome
from core.errors import WorkerDiedError
from core.events import Notice, WorkerEnded
from core.group.crew import Crew

T = TypeVar("T")
_FLUSH_S = 2.0


class AlivenessWatch:
    """Watches a group's workers on a daemon thread; ``on_death`` is called once per dead rank, on another thread."""

    def __init__(self, crew: Crew, every_n_seconds: float, on_death: Callable[[int, WorkerDiedError], None]) -> None:
        """Prepare; nothing runs before ``start``."""
        self._crew = crew
        self.every_s = every_n_seconds
        self._on_death = on_death
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._out: set[int] = set()
        self._dead: set[int] = set()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._run, name=f"podium-alive-{self._crew.group}", daemon=True).start()

    def stop(self) -> None:
        """Stop; workers may end now without a word. May be called twice."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for rank in range(self._crew.world_size):
                self._ask(rank)
            self._stopped.wait(self.every_s)

    def _ask(self, rank: int) -> None:
        with self._lock:
            if rank in self._out or rank in self._dead:
                return
            self._out.add(rank)
        try:
            ref = self._crew.cluster.ask(self._crew.actors[rank], "_podium_answers", (), {})
        except WorkerDiedError as error:
            self._heard(rank, Outcome(error=error))
            return
        self._crew.cluster.on_ready(ref, partial(self._heard, rank))

    def _heard(self, rank: int, outcome: Outcome) -> None:
        with self._lock:
            self._out.discard(rank)
            if not isinstance(outcome.error, WorkerDiedError) or self._stopped.is_set() or rank in self._dead:
                return
            self._dead.add(rank)
        self._on_death(rank, outcome.error)


def abort_driver(crew: Crew, rank: int, error: WorkerDiedError) -> None:
    """Record a death, see it on file, say it, and end this process by SIGABRT.

    No Python handler is installed for the signal: with the main thread in a collective it would never run.
    """
    name, node = crew.names[rank], crew.nodes[rank]
    text = f"worker {name} (rank {rank} of {crew.group}, pid {error.pid or '?'}, node {node}) died; the driver is ended"
    now_ns = crew.runtime.clock.now_ns()
    if rank not in crew.dead:
        crew.dead.add(rank)
        reason = str(error).splitlines()[0]
        crew.runtime.bus.emit(WorkerEnded(now_ns, crew.group, rank, died=True, reason=reason, pid=error.pid, node=node))
    crew.runtime.bus.emit(Notice(now_ns, "error", text))
    crew.runtime.bus.flush(_FLUSH_S)
    print(f"podium: {text}", file=sys.stderr, flush=True)
    signal.raise_signal(signal.SIGABRT)


def check_workers_alive(workers: Sequence[T], is_alive: Callable[[T], bool], gap_time: float = 1) -> None:
    """Look at every worker each ``gap_time`` seconds, for ever; end this process by SIGABRT when one is not alive."""
    while True:
        for worker in workers:
            if not is_alive(worker):
                print(f"podium: worker {worker} is not alive; the driver is ended", file=sys.stderr, flush=True)
                signal.raise_signal(signal.SIGABRT)
        time.sleep(gap_time)
