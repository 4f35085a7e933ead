"""For tests of drivers: a local controller, an observer that records events, and a fake clock."""

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
    """Records every event."""

    def __init__(self) -> None:
        """Start without events."""
        self._changed = threading.Condition()
        self._events: list[Event] = []

    def observe(self, event: Event) -> None:
        """Record ``event``."""
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

        Events of ranks are emitted on other threads, often shortly after the call has returned.

        Args:
            kind: The class of the events.
            n_events: How many to wait for.
            timeout_s: The timeout in seconds.

        Returns:
            All events of this kind so far, at least ``n_events``.

        Raises:
            TimeoutError: There were fewer before the timeout.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.of(kind)) >= n_events, timeout_s):
                raise TimeoutError(f"{len(self.of(kind))} of {n_events} {kind.__name__} after {timeout_s} s")
            return self.of(kind)

    def last_call(self, timeout_s: float = 10.0) -> CallFinished:
        """Return the ``CallFinished`` of the last call, waiting for one if there is none yet."""
        return self.await_count(CallFinished, 1, timeout_s)[-1]


class FakeClock:
    """A driver clock that changes only by ``advance``."""

    def __init__(self, now_ns: int | None = None) -> None:
        """Start at ``now_ns``, or now."""
        self._now_ns = time.time_ns() if now_ns is None else now_ns
        self.anchor_ns = 0

    def now_ns(self) -> int:
        """Return the time."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now_ns += int(seconds * 1e9)


@contextmanager
def local_controller(
    resources: Mapping[str, float] | None = None,
) -> Iterator[tuple[Controller, RecordingObserver]]:
    """Run a driver's code with workers that are threads of this process, and record its events.

    Args:
        resources: The resources of the local cluster by name, such as ``{"CPU": 8}``; unlimited if None.

    Yields:
        The controller and the observer.

    ``with local_controller() as (controller, seen): ...``
    """
    with Controller.local(resources) as controller:
        seen = RecordingObserver()
        controller.runtime.bus.subscribe(seen)
        yield controller, seen
