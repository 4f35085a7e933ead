"""The offset of a worker's clock to the driver's clock, estimated from the calls' round trips."""

from __future__ import annotations

import threading


class ClockAlignment:
    """Estimates ``driver clock - worker clock`` from round trips.

    A method starts after it was submitted and is ready after it finished. Each call so gives a lower bound
    ``submitted - started`` and an upper bound ``ready - finished``; the tightest of both hold the offset between them.
    It is taken in the middle, and half the distance is its error: the reasoning of NTP (RFC 5905), fed by calls that
    are made anyway. When drift has made the bounds cross, they start again from the latest call.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._low_ns: int | None = None
        self._high_ns: int | None = None
        self._reported: tuple[int, int] | None = None

    def learn(self, submitted_ns: int, started_ns: int, finished_ns: int, ready_ns: int) -> None:
        """Take a call's times into account: two on the driver clock, two on the worker's."""
        with self._lock:
            self._narrowed(submitted_ns - started_ns, ready_ns - finished_ns)

    def _narrowed(self, low_ns: int, high_ns: int) -> tuple[int, int]:
        """Take one more pair of bounds into account; return those that hold now."""
        if self._low_ns is not None and self._high_ns is not None:
            tighter_low, tighter_high = max(self._low_ns, low_ns), min(self._high_ns, high_ns)
            if tighter_low <= tighter_high:
                low_ns, high_ns = tighter_low, tighter_high
        self._low_ns, self._high_ns = low_ns, high_ns
        return low_ns, high_ns

    def news(self) -> tuple[int, int] | None:
        """Return the offset and its error if they are much better than, or contradict, what was returned last."""
        with self._lock:
            if self._low_ns is None or self._high_ns is None:
                return None
            offset, error = (self._low_ns + self._high_ns) // 2, (self._high_ns - self._low_ns) // 2
            if self._reported is not None:
                reported, reported_error = self._reported
                if 2 * error > reported_error and abs(offset - reported) <= reported_error + error:
                    return None
            self._reported = offset, error
            return self._reported

    def aligned(self, submitted_ns: int, started_ns: int, finished_ns: int, ready_ns: int) -> tuple[int, int, int]:
        """Learn from a call's times; return its start and end on the driver clock, and the error of both, in ns."""
        low, high = submitted_ns - started_ns, ready_ns - finished_ns
        with self._lock:
            low, high = self._narrowed(low, high)
        offset = (low + high) // 2
        return started_ns + offset, finished_ns + offset, (high - low) // 2

    def align(self, worker_ns: int) -> tuple[int, int]:
        """Return a worker's time on the driver clock, and the error of that, both in ns."""
        with self._lock:
            if self._low_ns is None or self._high_ns is None:
                return worker_ns, 0
            return worker_ns + (self._low_ns + self._high_ns) // 2, (self._high_ns - self._low_ns) // 2
