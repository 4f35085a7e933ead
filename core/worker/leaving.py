"""How a worker's process leaves: with which exit code, and what is cleaned up before."""

from __future__ import annotations

import asyncio
import atexit
import gc
import inspect
import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from core.cluster.base import shares_a_process
from core.cluster.forks import forget_exit_hooks

LEAVES = "podium: this worker leaves with exit code"
"""Starts the line that a worker writes to its log when a method ends its process; a report of its death reads it."""

_CLEAN_UP_S = 5.0


def is_exit(error: SystemExit) -> bool:
    """Return whether a user's code raised this, as ``sys.exit`` does, and not the cluster, which marks its own."""
    return not vars(error)


def exit_code(error: SystemExit) -> int:
    """Return the exit code that Python gives a process that leaves by ``error``."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def with_exit_code(error: SystemExit) -> SystemExit:
    """Return ``error`` with a number as its code, for the process's exit status; a text is written to the log."""
    if is_exit(error) and not isinstance(error.code, int):
        if error.code is not None:
            print(error.code, file=sys.stderr, flush=True)
        error.code = exit_code(error)
    return error


SHUTDOWN_HOOK = "__ray_shutdown__"
"""A worker's own method for the end of its process; Ray has the name."""


def clean_up(workers: Iterable[object], wait_for: Callable[[Any], Any]) -> None:
    """Do what Python does at the normal end of a process, and call the shutdown hooks of ``workers`` first.

    ``wait_for`` is handed what an ``async def`` hook returns. An error in a hook goes to the worker's log.
    """
    for worker in workers:
        hook = getattr(worker, SHUTDOWN_HOOK, None)
        if not callable(hook):
            continue
        try:
            if inspect.isawaitable(done := hook()):
                wait_for(done)
        except Exception:
            traceback.print_exc()
    if shares_a_process():
        return  # The rest is the driver's.
    forget_exit_hooks()
    atexit._run_exitfuncs()  # noqa: SLF001 - Python has no other way to run them before the end
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for file in [one for one in gc.get_objects() if issubclass(type(one), kinds)]:
        with suppress(Exception):  # It is closed, or its disk is full.
            file.flush()


def leave_child(error: BaseException | None) -> NoReturn:
    """End a child that a method forked and that left the method: behind it is the cluster's code, which is not its own.

    It ends as a Python process does: with the exit code of ``sys.exit``, or 1 and a traceback.
    """
    code = 0
    if isinstance(error, SystemExit):
        code = exit_code(with_exit_code(error))
    elif error is not None:
        code = 1
        traceback.print_exception(error)
    with suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001 - Python has no other way to run them before the end
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


async def leave_process(
    error: SystemExit, place: tuple[str, int], method: str, clean_up_here: Callable[[], None]
) -> NoReturn:
    """End this process as a method that raised ``error`` wants it, from a coroutine.

    Calls that are in flight end with it. ``clean_up_here`` is called before, for a few seconds at most.
    """
    code = exit_code(with_exit_code(error))
    group, rank = place
    print(f"{LEAVES} {code}: SystemExit in {group}.{method} on rank {rank}", file=sys.stderr, flush=True)
    threading.Thread(target=_leave, args=(code, clean_up_here), name="podium-leaving", daemon=True).start()
    await asyncio.Event().wait()
    raise AssertionError("a process that left continues")


def _leave(code: int, clean_up_here: Callable[[], None]) -> None:
    late = threading.Thread(target=_leave_late, args=(code,), name="podium-leaving-late", daemon=True)
    late.start()
    try:
        clean_up_here()
    finally:
        os._exit(code)


def _leave_late(code: int) -> None:
    time.sleep(_CLEAN_UP_S)
    os._exit(code)
