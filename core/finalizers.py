"""Finalizers: actions that run when a pool or a group is garbage collected.

The garbage collector may run at any line of any thread, also of one that holds a lock, so it must not call anything
that takes a lock. It only puts the finalizer into a queue, and a thread of this module runs it. When the driver exits,
the remaining finalizers run on the exiting thread, newest first.
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
_log = logging.getLogger("podium.finalizers")


class Finalizer:
    """An action that runs once: when its owner is collected, when it is called, or when the driver exits."""

    def __init__(self, owner: object, action: Callable[..., object], *args: Any) -> None:
        """Watch ``owner``, which neither ``action`` nor ``args`` may reference."""
        self._action: Callable[[], object] | None = lambda: action(*args)
        self._finalizer = weakref.finalize(owner, _queue.put, self)
        self._finalizer.atexit = False
        _live[id(self)] = self
        _start()

    @property
    def is_due(self) -> bool:
        """Whether it was neither done nor called off."""
        return id(self) in _live

    def detach(self) -> None:
        """Cancel the action."""
        self._finalizer.detach()
        self._take()

    def __call__(self) -> None:
        """Run the action now, on this thread, if it has not run yet."""
        self._finalizer.detach()
        action = self._take()
        if action is not None:
            action()

    def _take(self) -> Callable[[], object] | None:
        # One dict operation decides which thread runs it.
        if _live.pop(id(self), None) is None:
            return None
        action, self._action = self._action, None
        return action


def drain(timeout_s: float = 10.0) -> bool:
    """Wait until everything queued so far has run; return False on timeout."""
    if not _started:
        return True
    done = threading.Event()
    _queue.put(done.set)
    return done.wait(timeout_s)


_live: dict[int, Finalizer] = {}
_queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
_started: list[threading.Thread] = []
_starting = threading.Lock()


def _start() -> None:
    with _starting:
        if not _started:
            thread = threading.Thread(target=_run, name="podium-finalizers", daemon=True)
            thread.start()
            _started.append(thread)
            atexit.register(_at_exit)


def _clear_in_child() -> None:
    """Clear the queue in a forked process: its entries belong to the parent, and there is no thread for them here."""
    global _queue, _starting
    atexit.unregister(_at_exit)
    _live.clear()
    _started.clear()
    _queue, _starting = queue.SimpleQueue(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_in_child)


def _run() -> None:
    while (action := _queue.get()) is not None:
        _run_logged(action)


def _at_exit() -> None:
    _queue.put(None)
    _started[0].join(_EXIT_S)
    for finalizer in reversed(list(_live.values())):
        _run_logged(finalizer)


def _run_logged(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:
        _log.exception("a finalizer failed")
