"""What follows a worker's death: the driver is ended, the call raises, or the group is rebuilt."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from core.errors import UsageError
from core.runtime import OnDeath

MAX_RESTARTS = 3
LOOK_S = 1.0
"""How often processes are looked at, and pinged where they must be."""
_ABORT_S = 2.0


@dataclass(frozen=True, slots=True)
class DeathPolicy:
    """What a group does on a death, and how often it may be restarted in all."""

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
class HealthOptions:
    """What one group does about dead workers and late calls; None leaves it to the driver's settings.

    Workers that must be pinged are pinged every ``ping_every_s``.
    """

    policy: DeathPolicy | None = None
    call_timeout_s: float | None = None
    ping_every_s: float = LOOK_S

    @classmethod
    def checked(
        cls, on_death: str | OnDeath | None, max_restarts: int | None, call_timeout_s: float | None
    ) -> HealthOptions:
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


def end_driver() -> None:
    """End this process by SIGABRT.

    No Python handler is installed for the signal: with the main thread in a collective it would never run. One that the
    script installed has a moment; then the process ends all the same.
    """
    signal.raise_signal(signal.SIGABRT)
    time.sleep(_ABORT_S)
    os.abort()
