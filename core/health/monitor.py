"""The health of one driver's workers: who watches their processes, and who investigates deaths."""

from __future__ import annotations

import threading

from core.health.investigator import Case, Investigator
from core.health.process_watch import ProcessWatch
from core.health.watched_process import WatchedRanks
from core.runtime import Runtime

_making = threading.Lock()


class HealthMonitor:
    """The watch over one driver's workers, and the investigator of their deaths."""

    def __init__(self, runtime: Runtime) -> None:
        """Start with no workers; threads start when they are needed."""
        self._watch = ProcessWatch(runtime)
        self._investigator = Investigator(self._watch)

    def watch(self, ranks: WatchedRanks, every_s: float) -> None:
        """Watch the workers of a group until they are ended; those that must be pinged are pinged every ``every_s``."""
        self._watch.add(ranks, every_s)

    def investigate(self, case: Case) -> None:
        """Have a death investigated; returns at once."""
        self._investigator.investigate(case)

    def ranks_of(self, group: str) -> WatchedRanks | None:
        """Return the living workers of a group that is watched, None when there are none."""
        return self._watch.ranks_of(group)

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._watch.stop()
        self._investigator.close()


def monitor_of(runtime: Runtime) -> HealthMonitor:
    """Return the monitor of a driver's workers, making it on first use."""
    with _making:
        monitor = runtime.health
        if not isinstance(monitor, HealthMonitor):
            monitor = runtime.health = HealthMonitor(runtime)
        return monitor
