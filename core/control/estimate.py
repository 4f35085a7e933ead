"""How long a driver will be blocked, from what earlier starts and changes of the same run took."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from core.control.snapshot import GroupView

_KEPT = 5
_ASSUMED_SWITCH_S = 0.1


class Experience:
    """How long changes took, without the drain, which depends on the calls in flight."""

    def __init__(self) -> None:
        """Start without any."""
        self._lock = threading.Lock()
        self._switches_s: list[float] = []

    def learn(self, switch_s: float) -> None:
        """Record a change: the seconds from the end of the drain to the end, without starts of workers."""
        with self._lock:
            self._switches_s = [*self._switches_s, switch_s][-_KEPT:]

    def estimate(self, moving: Sequence[GroupView], prepared: bool) -> tuple[float, str]:
        """Return the estimated seconds, and what the estimate is based on."""
        with self._lock:
            known = list(self._switches_s)
        if known:
            switch_s = sum(known) / len(known)
            words = f"state and switch took {switch_s:.2f} s in the last {len(known)} changes of this run"
        else:
            switch_s = _ASSUMED_SWITCH_S
            words = f"no change was made in this run yet: {switch_s:g} s assumed for state and switch"
        if prepared:
            return round(switch_s, 3), words
        starts_s = sum(group.start_s for group in moving)
        took = ", ".join(f"{group.name} {group.start_s:.1f} s" for group in moving)
        return round(switch_s + starts_s, 3), f"last starts of the workers took {took}; {words}"
