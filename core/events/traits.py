"""What is true of every event of a class: an event's class says it itself, with ``@event_class(...)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Subject = tuple[object, ...]


def _never(event: Any) -> bool:
    del event
    return False


@dataclass(frozen=True, slots=True)
class Standing:
    """Events that stay true until another one: an observer that subscribes later gets them too.

    ``subject`` returns what an event is about, such as ``("group", "actor", 0)`` for a worker of a group. The latest
    event of each class is kept per subject. An event that ``closes`` is not kept: what is kept of its subject, and of
    everything whose subject begins with it, is dropped.
    """

    subject: Callable[[Any], Subject]
    closes: Callable[[Any], bool] = _never


@dataclass(frozen=True, slots=True)
class EventTraits:
    """How the bus and the recorder treat events of a class.

    ``standing`` says how they are kept for late observers, None for not at all. An event that ``ends`` something may
    use the tenth of the recorder's queue that is kept for it: without it a thing would look unfinished forever. One
    that is ``urgent`` is written at once: the driver may not outlive it.
    """

    standing: Standing | None = None
    ends: bool = False
    urgent: bool = False


_PLAIN = EventTraits()
_TRAITS: dict[type, EventTraits] = {}
STANDING: dict[type, Standing] = {}
"""The classes whose events are kept: the bus looks here once for every event."""


def event_class(
    *, standing: Standing | None = None, ends: bool = False, urgent: bool = False
) -> Callable[[type[T]], type[T]]:
    """Mark a class as an event; the arguments are those of ``EventTraits``."""
    traits = EventTraits(standing, ends, urgent)

    def mark(kind: type[T]) -> type[T]:
        _TRAITS[kind] = traits
        if standing is not None:
            STANDING[kind] = standing
        return kind

    return mark


def traits_of(kind: type) -> EventTraits:
    """Return the traits of a class of events; of any other class those of an event that says nothing."""
    return _TRAITS.get(kind, _PLAIN)


def event_classes() -> tuple[type, ...]:
    """Return every class that is an event, in the order of their definitions."""
    return tuple(_TRAITS)


def always(event: Any) -> bool:
    """Return True: every event of the class closes its subject."""
    del event
    return True
