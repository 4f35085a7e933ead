"""A POST that is sent twice under one key is done once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from app.api.problems import Problem, ProblemError

_KEEP_S = 24 * 3600.0
_MAX_KEYS = 1000


class Remembered:
    """Which key led to which operation, for 24 h and the newest thousand keys."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start knowing nothing."""
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[float, str, str]] = OrderedDict()

    def once(self, key: str, fingerprint: str, deed: Callable[[], str]) -> str:
        """Return the id of the operation that ``deed`` made, now or before; with an empty ``key`` it is always done.

        ``fingerprint`` is the request in one string. A deed that raises is forgotten, so that it can be tried again.

        Raises:
            ProblemError: The key came before with another request.
        """
        if not key:
            return deed()
        with self._lock:
            self._forget_old()
            if key in self._known:
                _, known_fingerprint, operation_id = self._known[key]
                if known_fingerprint != fingerprint:
                    detail = "this Idempotency-Key was used for another request; take a new key"
                    raise ProblemError(Problem(422, "key-reused", "Key used before", detail))
                return operation_id
            operation_id = deed()
            self._known[key] = (self._clock_s(), fingerprint, operation_id)
            return operation_id

    def _forget_old(self) -> None:
        oldest_s = self._clock_s() - _KEEP_S
        while self._known:
            first = next(iter(self._known))
            if len(self._known) < _MAX_KEYS and self._known[first][0] >= oldest_s:
                return
            del self._known[first]
