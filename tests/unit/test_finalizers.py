"""What is due when an object is dropped never runs inside the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from core.events import EventBus, GroupClosed
from core.finalizers import Finalizer, drain


class Owner:
    """Something that can be dropped, alone in a circle."""

    def __init__(self) -> None:
        self.circle = self


def test_a_collection_while_a_lock_is_held_does_not_wait_for_it() -> None:
    """The bus told a group's end from inside the collector, on a thread that held the bus's own lock: for ever."""
    bus = EventBus()
    owner = Owner()
    Finalizer(owner, bus.emit, GroupClosed(0, "group", "pool"))
    with bus._lock:
        del owner
        gc.collect()
    assert drain()
    done_on: list[str] = []
    owner = Owner()
    Finalizer(owner, lambda: done_on.append(threading.current_thread().name))
    del owner
    gc.collect()
    assert drain()
    assert done_on == ["podium-finalizers"]


def test_it_is_done_once() -> None:
    done: list[int] = []
    owner = Owner()
    ending = Finalizer(owner, done.append, 1)
    ending()
    ending()
    del owner
    gc.collect()
    assert drain()
    assert done == [1]


def test_what_was_detached_is_never_done() -> None:
    done: list[int] = []
    owner = Owner()
    Finalizer(owner, done.append, 1).detach()
    del owner
    gc.collect()
    assert drain()
    assert done == []


def test_an_action_that_raises_stops_no_other() -> None:
    done: list[int] = []
    first, second = Owner(), Owner()
    Finalizer(first, lambda: 1 // 0)
    Finalizer(second, done.append, 1)
    del first
    gc.collect()
    del second
    gc.collect()
    assert drain()
    assert done == [1]


def test_at_exit_what_is_left_is_done_the_youngest_first() -> None:
    script = """
import gc
from core.finalizers import Finalizer
class Owner: pass
owners = [Owner() for _ in range(3)]
for number, owner in enumerate(owners):
    Finalizer(owner, print, number)
dropped = Owner()
Finalizer(dropped, print, "dropped")
del dropped
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.split() == ["dropped", "2", "1", "0"]
