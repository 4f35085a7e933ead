"""A pool's states and the gate its groups' calls pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from enum import Enum

from core.errors import PoolClosedError, StateError


class PoolState(Enum):
    """What a pool is doing."""

    ACTIVE = "active"
    PAUSING = "pausing"
    PAUSED = "paused"
    CHANGING = "changing"
    CLOSED = "closed"
    FAILED = "failed"


LEGAL_MOVES: dict[PoolState, frozenset[PoolState]] = {
    PoolState.ACTIVE: frozenset({PoolState.PAUSING, PoolState.PAUSED, PoolState.CLOSED, PoolState.FAILED}),
    PoolState.PAUSING: frozenset({PoolState.PAUSED, PoolState.ACTIVE, PoolState.CLOSED, PoolState.FAILED}),
    PoolState.PAUSED: frozenset({PoolState.ACTIVE, PoolState.CHANGING, PoolState.CLOSED, PoolState.FAILED}),
    PoolState.CHANGING: frozenset({PoolState.ACTIVE, PoolState.PAUSED, PoolState.CLOSED, PoolState.FAILED}),
    PoolState.FAILED: frozenset({PoolState.CLOSED}),
    PoolState.CLOSED: frozenset(),
}

_OVER = frozenset({PoolState.CLOSED, PoolState.FAILED})


def _always() -> bool:
    return True


class Gate:
    """Lets calls through while the pool is active, makes them wait while it is not, and counts those in flight.

    ``on_move`` is called with every new state, outside the lock.
    """

    def __init__(self, pool: str, on_move: Callable[[PoolState, str], None]) -> None:
        """Start active, with nothing in flight, in the pool's first generation."""
        self.generation = 1
        self._pool = pool
        self._on_move = on_move
        self._changed = threading.Condition()
        self._state = PoolState.ACTIVE
        self._n_in_flight = 0
        self._n_waiting = 0
        self._reason = ""

    @property
    def state(self) -> PoolState:
        """Return what the pool is doing."""
        return self._state

    @property
    def is_open(self) -> bool:
        """Whether a call would pass now."""
        return self._state is PoolState.ACTIVE

    @property
    def reason(self) -> str:
        """Return why the pool is closed or failed, empty without a reason."""
        return self._reason

    @property
    def n_in_flight(self) -> int:
        """Return how many calls are past the gate and not done."""
        return self._n_in_flight

    @property
    def n_waiting(self) -> int:
        """Return how many calls wait at the gate."""
        return self._n_waiting

    def enter(self, wanted: Callable[[], bool] = _always) -> bool:
        """Pass, waiting while the pool is not active; return False without passing once ``wanted`` says no.

        ``wanted`` is asked when the gate is shut, again after each ``wake``, and twice a second: the wait is cut into
        pieces, so that Ctrl-C reaches a driver that waits here on any platform.

        Raises:
            PoolClosedError: The pool is closed or failed, and the caller still wants to pass here.
        """
        with self._changed:
            if self.is_open:
                self._n_in_flight += 1
                return True
            self._n_waiting += 1
            try:
                while self.state is not PoolState.ACTIVE:
                    if not wanted():
                        return False
                    if self._state in _OVER:
                        raise PoolClosedError(
                            f"pool {self._pool} is {self._state.value}{f': {self._reason}' if self._reason else ''}; "
                            f"its groups take no more calls",
                            state=self._state.value,
                        )
                    self._changed.wait(timeout=0.5)
            finally:
                self._n_waiting -= 1
            self._n_in_flight += 1
            return True

    def join(self) -> None:
        """Count one more call in flight, whatever the state: it is a part of one that has passed."""
        with self._changed:
            self._n_in_flight += 1

    def wake(self) -> None:
        """Have the calls that wait here look again whether they still want to pass."""
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        """Say that a call is done on every rank."""
        with self._changed:
            self._n_in_flight -= 1
            drained = self._n_in_flight == 0 and self._state is PoolState.PAUSING
            if drained:
                self._state = PoolState.PAUSED
                self._changed.notify_all()
        if drained:
            self._on_move(PoolState.PAUSED, "")

    def pause(self) -> PoolState:
        """Let nothing new through; return PAUSED, or PAUSING while calls are in flight.

        Raises:
            StateError: The pool is not active.
        """
        with self._changed:
            self._require(PoolState.PAUSING, "paused")
            self._state = PoolState.PAUSING if self._n_in_flight else PoolState.PAUSED
            state = self._state
        self._on_move(state, "")
        return state

    def resume(self) -> None:
        """Let calls through again.

        Raises:
            StateError: The pool is not paused or pausing.
        """
        with self._changed:
            self._require(PoolState.ACTIVE, "resumed")
            self._state = PoolState.ACTIVE
            self._changed.notify_all()
        self._on_move(PoolState.ACTIVE, "")

    def await_change(self, states: Collection[PoolState], timeout_s: float) -> PoolState:
        """Wait while the pool is in one of ``states``, at most ``timeout_s``; return what it is then."""
        with self._changed:
            self._changed.wait_for(lambda: self._state not in states, timeout=min(timeout_s, threading.TIMEOUT_MAX))
            return self._state

    def shut(self) -> PoolState:
        """Let nothing new through before a change; return the state to go back to: ACTIVE, or PAUSED if it was that.

        Raises:
            StateError: The pool is changing, closed or failed.
        """
        with self._changed:
            before = self._state
            if before in {PoolState.PAUSED, PoolState.PAUSING}:
                return PoolState.PAUSED
            self._require(PoolState.PAUSING, "changed")
            self._state = PoolState.PAUSING if self._n_in_flight else PoolState.PAUSED
            state = self._state
        self._on_move(state, "")
        return PoolState.ACTIVE

    def reopen(self, to: PoolState) -> None:
        """Take ``shut`` back: the pool is again what that returned."""
        if to is PoolState.ACTIVE and self._state in {PoolState.PAUSED, PoolState.PAUSING}:
            self.resume()

    def begin_change(self, timeout_s: float) -> bool:
        """Wait until no call is in flight, then be CHANGING; False when one still is after ``timeout_s``.

        The gate must be shut. The wait is cut into pieces for Ctrl-C.
        """
        deadline = time.monotonic() + timeout_s
        while self.await_change({PoolState.PAUSING}, min(0.5, max(0.0, deadline - time.monotonic()))) is (
            PoolState.PAUSING
        ):
            if time.monotonic() >= deadline:
                return False
        with self._changed:
            self._require(PoolState.CHANGING, "changed")
            self._state = PoolState.CHANGING
        self._on_move(PoolState.CHANGING, "")
        return True

    def end_change(self, to: PoolState) -> None:
        """Be ACTIVE or PAUSED after a change; no move when the pool was closed meanwhile."""
        with self._changed:
            if self._state is not PoolState.CHANGING:
                return
            self._state = to
            self._changed.notify_all()
        self._on_move(to, "")

    def end(self, state: PoolState, reason: str = "") -> bool:
        """Close or fail the pool; calls that wait get an error. Returns False when it was over already."""
        with self._changed:
            if state not in LEGAL_MOVES[self._state]:
                return False
            self._state = state
            self._reason = reason
            self._changed.notify_all()
        self._on_move(state, reason)
        return True

    def _require(self, wanted: PoolState, verb: str) -> None:
        if wanted not in LEGAL_MOVES[self._state]:
            raise StateError(
                f"pool {self._pool} is {self._state.value}, it cannot be {verb} now", state=self._state.value
            )
