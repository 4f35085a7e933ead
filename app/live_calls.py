"""Calls in flight and stacks of the driver in this process.

``core.health`` is imported when it is first asked: it brings torch with it, which takes seconds and which neither the
command line nor the view of a file needs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from core.runtime import Runtime

if TYPE_CHECKING:
    from core.health.in_flight import CallInFlight


class LiveCalls:
    """Answers about the calls of one driver; every method may be called from any thread."""

    def __init__(self, runtime: Runtime) -> None:
        """Look at ``runtime``."""
        self._runtime = runtime

    def calls_in_flight(self) -> tuple[CallInFlight, ...]:
        """Return the calls in flight, the oldest first."""
        if "core.group" not in sys.modules:
            # A driver that has made no group yet has no call, and a question is no time to import torch.
            return ()
        from core.health.in_flight import calls_in_flight

        return calls_in_flight(self._runtime)

    def stacks(self, call_id: int) -> Mapping[int, str]:
        """Return where the ranks are that a call waits for, as text by rank.

        Raises:
            UnknownNameError: No call of that number is in flight.
        """
        from core.health.stacks import dump

        return dump(self._runtime, call_id)
