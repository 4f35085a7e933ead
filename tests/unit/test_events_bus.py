"""The bus: observers see everything that happens, late ones what stands, and none can fail the driver."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import get_args

import pytest

from core.events import (
    Event,
    EventBus,
    GroupClosed,
    GroupCreated,
    Notice,
    PoolCreated,
    PoolStateChanged,
    Standing,
    WorkerEnded,
    WorkerStarted,
    event_class,
    event_classes,
    traits_of,
)
from core.events.traits import _TRAITS, STANDING
from core.testing import RecordingObserver

POOL = PoolCreated(1, "pool", (2,), (), 1, "active", True, 10)
PAUSED = PoolStateChanged(2, "pool", "paused", 1)
GROUP = GroupCreated(3, "actor", "pool", "m.Actor", 2, ())
OTHER = GroupCreated(4, "act", "pool", "m.Actor", 1, ())
WORKERS = tuple(WorkerStarted(5, "actor", "pool", rank, rank, f"w{rank}", 7, "n", "id", "0") for rank in range(2))


def late(*events: Event) -> list[Event]:
    """Return what an observer is told that comes after ``events``."""
    bus = EventBus()
    for event in events:
        bus.emit(event)
    seen = RecordingObserver()
    bus.subscribe(seen)
    return seen.events


def test_an_observer_sees_every_event_in_order() -> None:
    bus, seen = EventBus(), RecordingObserver()
    assert not bus.observed
    bus.subscribe(seen)
    assert bus.observed
    events: list[Event] = [POOL, Notice(1, "info", "a"), GROUP, Notice(2, "info", "b")]
    for event in events:
        bus.emit(event)
    assert seen.events == events


def test_a_late_observer_is_told_of_what_stands_in_the_order_it_came() -> None:
    assert late(POOL, GROUP, *WORKERS, Notice(1, "info", "gone by")) == [POOL, GROUP, *WORKERS]


def test_a_late_observer_is_told_the_latest_state_of_a_pool_only() -> None:
    resumed = PoolStateChanged(9, "pool", "active", 1)
    assert late(POOL, PAUSED, resumed) == [POOL, resumed]


def test_what_was_closed_is_told_to_nobody_any_more() -> None:
    assert late(POOL, GROUP, *WORKERS, OTHER, GroupClosed(6, "actor", "pool")) == [POOL, OTHER]
    assert late(POOL, PAUSED, PoolStateChanged(7, "pool", "closed", 1)) == []


def test_a_dead_worker_does_not_stand() -> None:
    assert late(GROUP, *WORKERS, WorkerEnded(6, "actor", 0, died=True)) == [GROUP, WORKERS[1]]


def test_an_observer_that_raises_is_logged_counted_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def observe(self, event: Event) -> None:
            raise RuntimeError("disk full")

    bus, seen = EventBus(), RecordingObserver()
    bus.subscribe(Broken())
    bus.subscribe(seen)
    with caplog.at_level(logging.ERROR, "podium.events"):
        bus.emit(Notice(1, "info", "a"))
        bus.emit(Notice(2, "info", "b"))
    assert bus.n_observer_errors == 2
    assert len(seen.events) == 2
    assert "disk full" in caplog.text


def test_who_unsubscribes_hears_no_more_and_may_do_it_twice() -> None:
    bus, seen = EventBus(), RecordingObserver()
    bus.subscribe(seen)
    bus.unsubscribe(seen)
    bus.unsubscribe(seen)
    bus.emit(POOL)
    assert seen.events == []


@pytest.mark.parametrize("n_chars", [0, 3_999, 4_000, 4_001, 1_000_000])
def test_the_text_of_a_notice_is_bounded_where_it_is_made(n_chars: int) -> None:
    text = Notice(1, "warning", "x" * n_chars).text
    assert len(text) <= 4_000
    if n_chars <= 4_000:
        assert text == "x" * n_chars
    else:
        n_kept = text.count("x")
        assert text.endswith(f"x… ({n_chars - n_kept:,} more characters were cut)")


def test_events_cannot_be_changed_by_who_sees_them() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        POOL.pool = "other"  # type: ignore[misc]


def test_every_event_is_marked_and_in_the_union() -> None:
    assert set(get_args(Event)) == set(event_classes())


def test_an_event_class_says_itself_how_it_is_kept() -> None:
    @event_class(standing=Standing(lambda seen: ("disk", seen.node)), urgent=True)
    @dataclass(frozen=True)
    class DiskFull:
        node: str

    full = DiskFull("n1")
    try:
        assert late(full, DiskFull("n1"), DiskFull("n2")) == [full, DiskFull("n2")]  # type: ignore[arg-type]
        assert traits_of(DiskFull).urgent
        assert not traits_of(DiskFull).ends
    finally:
        _TRAITS.pop(DiskFull)
        STANDING.pop(DiskFull)


def test_what_ends_something_and_what_is_urgent_is_said_by_the_events() -> None:
    assert sorted(kind.__name__ for kind in event_classes() if traits_of(kind).ends) == [
        "CallAwaited",
        "CallFinished",
        "GroupClosed",
        "OperationChanged",
        "PoolStateChanged",
        "StepFinished",
        "WorkerEnded",
    ]
    assert [kind.__name__ for kind in event_classes() if traits_of(kind).urgent] == ["WorkerEnded", "OperationChanged"]
    assert not traits_of(int).ends
