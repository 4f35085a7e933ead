"""What watches over a driver's workers, and the settings of that.

Every group's workers are watched from the moment they are up (``watch``). A death is looked into and put on file
(``deaths``), then the group's policy acts (``policy``): by default the driver gets a typed error.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from core import runtime as runtimes
from core.errors import UsageError
from core.group.deaths import Desk
from core.group.worker_set import Crew
from core.health.policy import Care, DeathPolicy
from core.health.process_watch import Watch
from core.runtime import OnDeath, Runtime

T = TypeVar("T")
_making = threading.Lock()


class Health:
    """The watch over one driver's workers, and the desk that looks into deaths."""

    def __init__(self, runtime: Runtime) -> None:
        """Begin with nobody to watch; threads start when they are needed."""
        self._watch = Watch(runtime)
        self._desk = Desk(self._watch)

    def look_after(self, crew: Crew, care: Care) -> None:
        """Watch a crew's workers until they are let go; also to change what its group was told."""
        crew.deaths.desk, crew.deaths.policy = self._desk, care.policy
        self._watch.add(crew, care.every_s)

    def crew_of(self, group: str) -> Crew | None:
        """Return the living workers of a group that is looked after, None when there are none."""
        return self._watch.crew_of(group)

    def close(self) -> None:
        """Watch nobody any more; may be called twice."""
        self._watch.stop()
        self._desk.close()


def health_of(runtime: Runtime) -> Health:
    """Return what watches over a driver's workers."""
    with _making:
        health = runtime.health
        if not isinstance(health, Health):
            health = runtime.health = Health(runtime)
        return health


def set_health(
    on_death: str | OnDeath | None = None,
    max_restarts: int | None = None,
    stall_s: float | None = None,
    call_timeout_s: float | None = None,
) -> None:
    """Say what this driver does about dead workers and calls that last; what is not given stays as it is.

    Args:
        on_death: For groups that do not say themselves: "abort" (the default under ``podium run``), "raise" (the
            default otherwise) or "restart".
        max_restarts: How often a group is restarted in its life.
        stall_s: A call that is in flight for so long is told as a stall, and again each time that doubles.
        call_timeout_s: For methods and groups that do not say themselves: how long a call waits for its ranks; 0 for
            as long as it takes.

    Raises:
        UsageError: A setting makes no sense.
    """
    runtime = runtimes.current()
    settings = runtime.health_settings
    policy = DeathPolicy.checked(
        settings.on_death if on_death is None else on_death,
        settings.max_restarts if max_restarts is None else max_restarts,
    )
    if stall_s is not None and not stall_s > 0:
        raise UsageError(f"stall_s must be positive, got {stall_s} s")
    if call_timeout_s is not None and not call_timeout_s >= 0:
        raise UsageError(f"call_timeout_s must not be negative, got {call_timeout_s} s; 0 is for no deadline")
    runtime.health_settings = replace(
        settings,
        on_death=policy.on_death,
        max_restarts=policy.max_restarts,
        stall_s=settings.stall_s if stall_s is None else stall_s,
        call_timeout_s=settings.call_timeout_s if call_timeout_s is None else call_timeout_s or None,
    )


def check_workers_alive(workers: Sequence[T], is_alive: Callable[[T], bool], gap_time: float = 1) -> None:
    """Look at every worker each ``gap_time`` seconds, for ever; end this process by SIGABRT when one is not alive."""
    while True:
        for worker in workers:
            if not is_alive(worker):
                print(f"podium: worker {worker} is not alive; the driver is ended", file=sys.stderr, flush=True)
                signal.raise_signal(signal.SIGABRT)
        time.sleep(gap_time)
