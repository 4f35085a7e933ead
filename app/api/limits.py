"""How often a visitor may ask, and how many questions are put to the run's file at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from app.api.problems import Problem, ProblemError

T = TypeVar("T")


class RateLimiter:
    """Token buckets by name: ``n_burst`` at once, ``per_s`` in the long run."""

    def __init__(self, per_s: float, n_burst: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start with every bucket full."""
        self._per_s = per_s
        self._n_burst = float(n_burst)
        self._clock_s = clock_s
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> bool:
        """Return whether one more is allowed now; names come from a fixed few, so the table stays small."""
        now_s = self._clock_s()
        level, at_s = self._levels.get(name, (self._n_burst, now_s))
        level = min(self._n_burst, level + (now_s - at_s) * self._per_s)
        allowed = level >= 1.0
        self._levels[name] = (level - 1.0 if allowed else level, now_s)
        return allowed


class Seats:
    """A number of places that are taken and given back, such as those for event streams."""

    def __init__(self, n: int) -> None:
        """Start with all ``n`` places free."""
        self._lock = threading.Lock()
        self._n = n
        self.n_taken = 0

    def take(self) -> bool:
        """Take a place; return False when none is free."""
        with self._lock:
            if self.n_taken >= self._n:
                return False
            self.n_taken += 1
            return True

    def give_back(self) -> None:
        """Free a place that was taken."""
        with self._lock:
            self.n_taken -= 1


class Recent(Generic[T]):
    """The answer to a question that needs no token: asked at most once in ``for_s`` seconds, however many ask."""

    def __init__(self, for_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start without an answer."""
        self._for_s = for_s
        self._clock_s = clock_s
        self._lock = anyio.Lock()
        self._answer: tuple[T, float] | None = None

    async def get(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of ``question``, or the one given a moment ago."""
        async with self._lock:
            if self._answer is None or self._clock_s() - self._answer[1] >= self._for_s:
                self._answer = (await question(), self._clock_s())
            return self._answer[0]


class ReadPool:
    """Puts questions to the run's file from a few threads, and turns visitors away when too many wait."""

    def __init__(self, n_threads: int, n_waiting: int) -> None:
        """Make room for ``n_threads`` questions at work and ``n_waiting`` behind them."""
        self._limiter = anyio.CapacityLimiter(n_threads)
        self._n_most = n_threads + n_waiting
        self._n_inside = 0

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer of ``question``, which runs on another thread.

        Raises:
            ProblemError: Too many wait already; 503 with ``Retry-After``.
        """
        if self._n_inside >= self._n_most:
            detail = f"{self._n_inside} queries are already waiting for the run file; retry in a second"
            raise ProblemError(Problem(503, "busy", "Too many queries", detail, headers=(("Retry-After", "1"),)))
        self._n_inside += 1
        try:
            return await anyio.to_thread.run_sync(question, limiter=self._limiter)
        finally:
            self._n_inside -= 1
