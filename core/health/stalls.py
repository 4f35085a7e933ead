"""Calls that are in flight for long: reported after a while, and again each time that doubles."""

from __future__ import annotations

from collections.abc import Sequence

from core.health.in_flight import CallInFlight


class Stalls:
    """Remembers what was reported."""

    def __init__(self) -> None:
        """Start without a call."""
        self._next_s: dict[int, float] = {}

    def due(self, calls: Sequence[CallInFlight], after_s: float) -> list[CallInFlight]:
        """Return the calls to report now: a rank is in the method for ``after_s``, or for twice what was reported last.

        A call whose ranks all wait behind an earlier one is not reported: the earlier one is what stalls.
        """
        stalled = []
        for call in calls:
            longest_s = max((out.seconds for out in call.out if not out.behind), default=0.0)
            next_s = self._next_s.get(call.call_id, after_s)
            if longest_s >= next_s:
                while next_s <= longest_s:
                    next_s *= 2
                self._next_s[call.call_id] = next_s
                stalled.append(call)
        alive = {call.call_id for call in calls}
        self._next_s = {call_id: next_s for call_id, next_s in self._next_s.items() if call_id in alive}
        return stalled
