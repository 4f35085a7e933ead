"""What a process that was forked from a driver or a worker takes back of its parent's.

A child that leaves by ``sys.exit`` runs every exit hook of its parent, and one that is sent SIGTERM, as
``multiprocessing`` does, its parent's handler. Of a cluster these would wait for threads that the child has not got,
or end the parent's processes.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_exit_hooks: list[Callable[..., Any]] = []
_abandon: Callable[[], None] | None = None
_term_handlers: list[tuple[Any, Any]] = []
_watching = False
_forked_from = 0


def forked_from() -> int:
    """Return the pid of the process that had the connection to a cluster and was forked, 0 in that process itself."""
    return _forked_from


def watch_forks(*exit_hooks: Callable[..., Any], abandon: Callable[[], None] | None = None) -> None:
    """Have children that this process forks from now on know it, and take back these hooks of ``atexit``.

    ``abandon`` is called in each child; it disposes of the objects that the parent has of a cluster.
    """
    global _watching, _abandon
    _abandon = abandon or _abandon
    _exit_hooks.extend(hook for hook in exit_hooks if hook not in _exit_hooks)
    if not _watching and hasattr(os, "register_at_fork"):
        _watching = True
        os.register_at_fork(before=_remember, after_in_child=_in_child)


def forget_exit_hooks() -> None:
    """Take back what a cluster has registered with ``atexit``: a worker that cleans up still needs its connection."""
    for hook in _exit_hooks:
        atexit.unregister(hook)


@contextmanager
def noting_hooks() -> Iterator[None]:
    """Have children take back what is registered with ``atexit``, or for SIGTERM, in a ``with`` block."""
    register, before = atexit.register, signal.getsignal(signal.SIGTERM)

    def noted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        watch_forks(function)
        return register(function, *args, **kwargs)

    atexit.register = noted  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = register
        watch_forks()
        if (after := signal.getsignal(signal.SIGTERM)) is not before:
            _term_handlers.append((after, before))


_pid = 0


def _remember() -> None:
    global _pid
    _pid = os.getpid()


def _in_child() -> None:
    global _forked_from
    _forked_from = _forked_from or _pid
    forget_exit_hooks()
    if _abandon is not None:
        _abandon()
    for after, before in reversed(_term_handlers):
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is after:
            with suppress(ValueError, TypeError):
                signal.signal(signal.SIGTERM, before)
