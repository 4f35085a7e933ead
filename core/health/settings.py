"""What a driver does about dead workers and calls that last, as its script says."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from core import runtime as runtimes
from core.errors import UsageError
from core.health.policy import DeathPolicy
from core.runtime import OnDeath

T = TypeVar("T")


def set_health(
    on_death: str | OnDeath | None = None,
    max_restarts: int | None = None,
    stall_s: float | None = None,
    call_timeout_s: float | None = None,
    close_timeout_s: float | None = None,
) -> None:
    """Set what this driver does about dead workers, long calls and closing; what is not given stays as it is.

    Args:
        on_death: For groups without a policy of their own: "abort" (the default under ``podium run``), "raise" (the
            default otherwise) or "restart".
        max_restarts: How often a group may be restarted in all.
        stall_s: A call that is in flight for so many seconds is reported as stalled, and again each time that doubles.
        call_timeout_s: How many seconds a call waits for its ranks, for methods and groups without a limit of their
            own; 0 for no limit.
        close_timeout_s: How many seconds workers may take to clean up when their group is closed or replaced, or the
            driver ends (5 by default): for the call they are in, ``__ray_shutdown__``, ``atexit`` and buffered files.
            After that they are killed; at once with 0.

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
    if close_timeout_s is not None and not close_timeout_s >= 0:
        raise UsageError(f"close_timeout_s must not be negative, got {close_timeout_s} s; 0 kills workers at once")
    runtime.health_settings = replace(
        settings,
        on_death=policy.on_death,
        max_restarts=policy.max_restarts,
        stall_s=settings.stall_s if stall_s is None else stall_s,
        call_timeout_s=settings.call_timeout_s if call_timeout_s is None else call_timeout_s or None,
        close_timeout_s=settings.close_timeout_s if close_timeout_s is None else close_timeout_s,
    )


def check_workers_alive(workers: Sequence[T], is_alive: Callable[[T], bool], gap_time: float = 1) -> None:
    """Look at every worker each ``gap_time`` seconds, for ever; end this process by SIGABRT when one is not alive."""
    while True:
        for worker in workers:
            if not is_alive(worker):
                print(f"podium: worker {worker} is not alive; the driver is ended", file=sys.stderr, flush=True)
                signal.raise_signal(signal.SIGABRT)
        time.sleep(gap_time)
