"""What is done when a pool or a group is collected.

The garbage collector may run at any line of any thread, also of one that holds a lock: what it calls must take none.
So it only leaves a note, and a thread of this module's own does what the note says. At the driver's exit what is left
is done on the exiting thread, the newest first.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

_EXIT_S = 5.0
_log = logging.getLogger("podium.endings")


class Finalizer:
    """An action that is done once: when its owner is collected, when it is called, or at the driver's exit."""

    def __init__(self, owner: object, action: Callable[..., object], *args: Any) -> None:
        """Watch ``owner``, which neither ``action`` nor ``args`` may hold."""
        self._action: Callable[[], object] | None = lambda: action(*args)
        self._finalizer = weakref.finalize(owner, _notes.put, self)
        self._finalizer.atexit = False
        _live[id(self)] = self
        _start()

    def detach(self) -> None:
        """Never do it."""
        self._finalizer.detach()
        self._taken()

    def __call__(self) -> None:
        """Do it now, on this thread, if it was not done yet."""
        self._finalizer.detach()
        action = self._taken()
        if action is not None:
            action()

    def _taken(self) -> Callable[[], object] | None:
        # One dict operation decides who does it.
        if _live.pop(id(self), None) is None:
            return None
        action, self._action = self._action, None
        return action


def drain(timeout_s: float = 10.0) -> bool:
    """Wait until everything noted so far is done; return whether it was in time."""
    if not _started:
        return True
    done = threading.Event()
    _notes.put(done.set)
    return done.wait(timeout_s)


_live: dict[int, Finalizer] = {}
_notes: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
_started: list[threading.Thread] = []
_starting = threading.Lock()


def _start() -> None:
    with _starting:
        if not _started:
            thread = threading.Thread(target=_run, name="podium-endings", daemon=True)
            thread.start()
            _started.append(thread)
            atexit.register(_at_exit)


def _begin_anew() -> None:
    """Leave what is due to the parent of a process that was forked, which has a copy of it and no thread for it."""
    global _notes, _starting
    atexit.unregister(_at_exit)
    _live.clear()
    _started.clear()
    _notes, _starting = queue.SimpleQueue(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _run() -> None:
    while (note := _notes.get()) is not None:
        _done(note)


def _at_exit() -> None:
    _notes.put(None)
    _started[0].join(_EXIT_S)
    for ending in reversed(list(_live.values())):
        _done(ending)


def _done(note: Callable[[], object]) -> None:
    try:
        note()
    except Exception:
        _log.exception("what was due when an object was dropped could not be done")
