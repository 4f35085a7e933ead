"""What follows a worker's death: the driver is ended, the call raises, or the group is rebuilt."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from core.errors import UsageError
from core.runtime import OnDeath

MAX_RESTARTS = 3
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


def checked_policy(on_death: str | OnDeath | None, max_restarts: int | None) -> DeathPolicy | None:
    """Read what a group's constructor was given; None when it was given nothing.

    Raises:
        UsageError: It makes no sense.
    """
    if on_death is None:
        if max_restarts is not None:
            raise UsageError(f"max_restarts={max_restarts} needs on_death='restart'")
        return None
    return DeathPolicy.checked(on_death, MAX_RESTARTS if max_restarts is None else max_restarts)


def end_driver() -> None:
    """End this process by SIGABRT.

    No Python handler is installed for the signal: with the main thread in a collective it would never run. One that the
    script installed has a moment; then the process ends all the same.
    """
    signal.raise_signal(signal.SIGABRT)
    time.sleep(_ABORT_S)
    os.abort()
