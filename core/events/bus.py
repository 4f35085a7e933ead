"""The one way out of core: an observer can see, never touch, never fail the driver."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from core.events.facts import Event
from core.events.traits import Standing, Subject, traits_of

_log = logging.getLogger("podium.events")


class Observer(Protocol):
    """Sees every event of a driver, on whatever thread it happens; must return within microseconds."""

    def observe(self, event: Event) -> None:
        """Take note of ``event``. An exception is logged and counted, and goes no further."""
        ...


class EventBus:
    """Passes events to observers and remembers what stands.

    An observer that comes late is first told of the pools, groups and workers that exist, in the order they came, so
    that a recorder started after them still knows them.
    """

    def __init__(self) -> None:
        """Start with nobody listening."""
        self._lock = threading.Lock()
        self._observers: tuple[Observer, ...] = ()
        self._flushes: dict[int, Callable[[float], object]] = {}
        self._standing: dict[tuple[Subject, type], Event] = {}
        self.n_observer_errors = 0
        _buses.add(self)

    @property
    def observed(self) -> bool:
        """Whether anybody listens."""
        return bool(self._observers)

    def subscribe(self, observer: Observer, flush: Callable[[float], object] | None = None) -> None:
        """Tell ``observer`` of what stands, then of everything that happens.

        ``flush`` makes sure, within the seconds it is given, that what was observed outlives this process.
        """
        with self._lock:
            standing = tuple(self._standing.values())
            for event in standing:
                self._tell(observer, event)
            self._observers = (*self._observers, observer)
            if flush is not None:
                self._flushes[id(observer)] = flush

    def unsubscribe(self, observer: Observer) -> None:
        """Stop telling ``observer``; no error if it never listened."""
        with self._lock:
            self._observers = tuple(known for known in self._observers if known is not observer)
            self._flushes.pop(id(observer), None)

    def flush(self, timeout_s: float) -> None:
        """Have observers put on file what they were told, each within ``timeout_s``: the process may end next."""
        for flush in list(self._flushes.values()):
            try:
                flush(timeout_s)
            except Exception:
                _log.exception("an observer could not flush")

    def begin_in_child(self) -> None:
        """Tell nobody any more; another thread may have held the lock at the fork."""
        self._observers, self._flushes, self._lock = (), {}, threading.Lock()

    def emit(self, event: Event) -> None:
        """Pass ``event`` to every observer, on the caller's thread."""
        kept = traits_of(type(event)).standing
        if kept is not None:
            with self._lock:
                _keep(self._standing, event, kept)
                observers = self._observers
        else:
            observers = self._observers
        for observer in observers:
            self._tell(observer, event)

    def _tell(self, observer: Observer, event: Event) -> None:
        try:
            observer.observe(event)
        except Exception:
            self.n_observer_errors += 1
            if self.n_observer_errors in {1, 10, 100} or self.n_observer_errors % 1000 == 0:
                _log.exception("an observer raised on %s (%d so far)", type(event).__name__, self.n_observer_errors)


_buses: weakref.WeakSet[EventBus] = weakref.WeakSet()


def _in_child() -> None:
    """Tell nobody in a process that was forked: the record is the parent's."""
    for bus in list(_buses):
        bus.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _keep(standing: dict[tuple[Subject, type], Event], event: Event, kept: Standing) -> None:
    """Update what stands by one event."""
    subject = kept.subject(event)
    if not kept.closes(event):
        standing[subject, type(event)] = event
        return
    for key in [key for key in standing if key[0][: len(subject)] == subject]:
        del standing[key]
