"""Delivery of events to observers. An observer cannot change anything, and its errors never fail the driver."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from core.events.facts import Event
from core.events.traits import STANDING, Standing, Subject

_log = logging.getLogger("podium.events")


class Observer(Protocol):
    """Receives every event of a driver, on the thread that emits it; must return within microseconds."""

    def observe(self, event: Event) -> None:
        """Receive ``event``. An exception is logged and counted, and not raised to the driver."""
        ...


class EventBus:
    """Delivers events to observers and keeps the current pools, groups and workers.

    A new observer first receives the events of the pools, groups and workers that exist, in their order, so that a
    recorder that starts after them knows them too.
    """

    def __init__(self) -> None:
        """Start without observers."""
        self._lock = threading.Lock()
        self._observers: tuple[Observer, ...] = ()
        self._flushes: dict[int, Callable[[float], object]] = {}
        self._standing: dict[tuple[Subject, type], Event] = {}
        self.n_observer_errors = 0
        _buses.add(self)

    @property
    def observed(self) -> bool:
        """Return whether there is an observer."""
        return bool(self._observers)

    def subscribe(self, observer: Observer, flush: Callable[[float], object] | None = None) -> None:
        """Deliver the events of everything that exists to ``observer``, then all further events.

        Args:
            observer: Receives the events.
            flush: Called with a timeout in seconds when the process may end; it must make the observed events durable.
        """
        with self._lock:
            standing = tuple(self._standing.values())
            for event in standing:
                self._deliver(observer, event)
            self._observers = (*self._observers, observer)
            if flush is not None:
                self._flushes[id(observer)] = flush

    def unsubscribe(self, observer: Observer) -> None:
        """Stop the delivery to ``observer``; no error if it was not subscribed."""
        with self._lock:
            self._observers = tuple(known for known in self._observers if known is not observer)
            self._flushes.pop(id(observer), None)

    def flush(self, timeout_s: float) -> None:
        """Make observers write what they received, each within ``timeout_s``: the process may end next."""
        for flush in list(self._flushes.values()):
            try:
                flush(timeout_s)
            except Exception:
                _log.exception("an observer could not flush")

    def begin_in_child(self) -> None:
        """Remove all observers; another thread may have held the lock at the fork."""
        self._observers, self._flushes, self._lock = (), {}, threading.Lock()

    def emit(self, event: Event) -> None:
        """Deliver ``event`` to every observer, on the caller's thread."""
        kept = STANDING.get(type(event))
        if kept is not None:
            with self._lock:
                _keep(self._standing, event, kept)
                observers = self._observers
        else:
            observers = self._observers
        for observer in observers:
            self._deliver(observer, event)

    def _deliver(self, observer: Observer, event: Event) -> None:
        try:
            observer.observe(event)
        except Exception:
            self.n_observer_errors += 1
            if self.n_observer_errors in {1, 10, 100} or self.n_observer_errors % 1000 == 0:
                _log.exception("an observer raised on %s (%d so far)", type(event).__name__, self.n_observer_errors)


_buses: weakref.WeakSet[EventBus] = weakref.WeakSet()


def _in_child() -> None:
    """Deliver nothing in a forked process: the record is the parent's."""
    for bus in list(_buses):
        bus.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _keep(standing: dict[tuple[Subject, type], Event], event: Event, kept: Standing) -> None:
    """Update the events of what exists by one event."""
    subject = kept.subject(event)
    if not kept.closes(event):
        standing[subject, type(event)] = event
        return
    for key in [key for key in standing if key[0][: len(subject)] == subject]:
        del standing[key]
