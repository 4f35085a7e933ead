"""A POST that is sent twice under one key is done once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.api.problems import Problem, ProblemError

_KEEP_S = 24 * 3600.0
_MAX_KEYS = 1000


@dataclass(slots=True)
class _Known:
    """A key's request in one string, since when it is known, and its operation; empty while that is being made."""

    fingerprint: str
    since_s: float
    operation_id: str = ""


class IdempotencyKeys:
    """Which key led to which operation, for 24 h and the newest thousand keys."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start knowing nothing."""
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def run_once(self, key: str, fingerprint: str, submit: Callable[[], str]) -> str:
        """Return the id of the operation that ``submit`` made, now or before; an empty ``key`` always submits.

        ``fingerprint`` is the request in one string. A submission that raises is forgotten and can be retried.

        Raises:
            ProblemError: The key was used with another request, or its first request is still in progress.
        """
        if not key:
            return submit()
        known = self._begin(key, fingerprint)
        if known.operation_id:
            return known.operation_id
        try:
            known.operation_id = submit()
        except BaseException:
            with self._lock:
                self._known.pop(key, None)
            raise
        return known.operation_id

    def _begin(self, key: str, fingerprint: str) -> _Known:
        """Return what is known of ``key``: one that is done, or a new one for the caller to do."""
        with self._lock:
            self._forget_old()
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = _Known(fingerprint, self._clock_s())
                return known
            if known.fingerprint != fingerprint:
                raise ProblemError(_REUSED)
            if not known.operation_id:
                raise ProblemError(_IN_FLIGHT)
            return known

    def _forget_old(self) -> None:
        oldest_s = self._clock_s() - _KEEP_S
        while self._known:
            first = next(iter(self._known))
            if len(self._known) < _MAX_KEYS and self._known[first].since_s >= oldest_s:
                return
            del self._known[first]


_REUSED = Problem(
    422, "key-reused", "Idempotency key reused", "this Idempotency-Key was used for a different request; use a new key"
)
_IN_FLIGHT = Problem(
    409,
    "key-in-flight",
    "Request in progress",
    "the first request with this Idempotency-Key is still in progress; retry later",
    headers=(("Retry-After", "1"),),
)
