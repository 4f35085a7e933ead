"""For tests of drivers: a cluster inside the process, an observer that remembers, a clock that is set by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from core.controller import Controller
from core.events import CallFinished, Event

E = TypeVar("E", bound=Event)


class RecordingObserver:
    """Remembers every event."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._changed = threading.Condition()
        self._events: list[Event] = []

    def observe(self, event: Event) -> None:
        """Remember ``event``."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    @property
    def events(self) -> list[Event]:
        """Return what happened so far."""
        with self._changed:
            return list(self._events)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def await_count(self, kind: type[E], n_events: int, timeout_s: float = 10.0) -> list[E]:
        """Wait until ``n_events`` of one kind have happened and return them.

        Ranks tell of themselves on threads of their own, often a little after the call has returned.

        Raises:
            TimeoutError: Fewer happened in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.of(kind)) >= n_events, timeout_s):
                raise TimeoutError(f"{len(self.of(kind))} of {n_events} {kind.__name__} after {timeout_s} s")
            return self.of(kind)

    def last_call(self, timeout_s: float = 10.0) -> CallFinished:
        """Return the end of the latest call, waiting for one if none has ended yet."""
        return self.await_count(CallFinished, 1, timeout_s)[-1]


class FakeClock:
    """A driver clock that stands until it is moved."""

    def __init__(self, now_ns: int | None = None) -> None:
        """Start at ``now_ns``, or now."""
        self._now_ns = time.time_ns() if now_ns is None else now_ns
        self.anchor_ns = 0

    def now_ns(self) -> int:
        """Return the time."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move on."""
        self._now_ns += int(seconds * 1e9)


@contextmanager
def local_controller(
    resources: Mapping[str, float] | None = None,
) -> Iterator[tuple[Controller, RecordingObserver]]:
    """Run a driver's code on workers that are threads of this process, and watch it.

    ``with local_controller() as (controller, seen): ...``
    """
    with Controller.local(resources) as controller:
        seen = RecordingObserver()
        controller.runtime.bus.subscribe(seen)
        yield controller, seen
