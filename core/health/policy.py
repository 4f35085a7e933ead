"""What follows a worker's death: the driver is ended, the call raises, or the group is rebuilt."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass

from core.errors import UsageError
from core.runtime import OnDeath

MAX_RESTARTS = 3
LOOK_S = 1.0
"""How often processes are looked at, and asked where they must be asked."""
_ABORT_S = 2.0


@dataclass(frozen=True, slots=True)
class DeathPolicy:
    """What a group does on a death, and how often it may be restarted in its life."""

    on_death: OnDeath
    max_restarts: int = MAX_RESTARTS

    @classmethod
    def checked(cls, on_death: str | OnDeath, max_restarts: int) -> DeathPolicy:
        """Read a policy as a group or ``set_health`` is given it.

        Raises:
            UsageError: There is no such policy, or the budget is negative.
        """
        try:
            kind = OnDeath(on_death)
        except ValueError:
            known = ", ".join(repr(member.value) for member in OnDeath)
            raise UsageError(f"on_death={on_death!r} is not known; choose from {known}") from None
        if max_restarts < 0:
            raise UsageError(f"max_restarts must not be negative, got {max_restarts}")
        return cls(kind, max_restarts)


@dataclass(frozen=True, slots=True)
class Care:
    """What one group was told to do about dead workers and late calls; None leaves it to the driver's settings.

    Workers that must be asked whether they live are asked every ``every_s``.
    """

    policy: DeathPolicy | None = None
    call_timeout_s: float | None = None
    every_s: float = LOOK_S

    @classmethod
    def checked(cls, on_death: str | OnDeath | None, max_restarts: int | None, call_timeout_s: float | None) -> Care:
        """Read what a group's constructor was given.

        Raises:
            UsageError: It makes no sense.
        """
        if call_timeout_s is not None and not call_timeout_s >= 0:
            raise UsageError(f"call_timeout_s must not be negative, got {call_timeout_s} s; 0 is for no deadline")
        if on_death is None:
            if max_restarts is not None:
                raise UsageError(f"max_restarts={max_restarts} needs on_death='restart'")
            return cls(None, call_timeout_s)
        budget = MAX_RESTARTS if max_restarts is None else max_restarts
        return cls(DeathPolicy.checked(on_death, budget), call_timeout_s)


class Restarts:
    """How often a group's restart was tried, the lock under which it is, and which crew saved what until one is done.

    Every try counts, also one whose workers did not come up: a constructor that fails each time must come to an end.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.lock = threading.Lock()
        self.n_tried = 0
        self.saved: tuple[object, object] | None = None


def end_driver() -> None:
    """End this process by SIGABRT.

    No Python handler is installed for the signal: with the main thread in a collective it would never run. One that the
    script installed has a moment; then the process ends all the same.
    """
    signal.raise_signal(signal.SIGABRT)
    time.sleep(_ABORT_S)
    os.abort()
