"""What a worker's method raised, as it travels: where and when, the user's traceback, and the exception if it can."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from contextlib import suppress

import cloudpickle

from core.errors import PodiumError, WorkerError, WorkerMethodError, traceback_text
from core.version import PACKAGE_PATH
from core.worker.call_header import Header
from core.worker.leaving import with_exit_code


def wrapped(error: BaseException, place: tuple[str, int], header: Header, started_ns: int) -> BaseException:
    """Return the error with the rank and method that raised; Podium's errors and exits are returned unchanged.

    A task was cancelled when its caller did that; a ``CancelledError`` that the method raised is an error as any other.
    An error of another group's worker, from a future, is wrapped too: it is about another rank than this one.
    """
    if isinstance(error, SystemExit):
        return with_exit_code(error)
    if _is_cancelled(error) or (isinstance(error, PodiumError) and not isinstance(error, WorkerError)):
        return error
    group, rank = place
    return WorkerMethodError(
        f"{group}.{header.method} raised {type(error).__name__} on rank {rank}: {words_of(error)}",
        group=group,
        rank=rank,
        method=header.method,
        traceback_text=user_traceback(error),
        cause_type=type(error).__name__,
        cause=_picklable(error),
        started_ns=started_ns,
        finished_ns=time.monotonic_ns(),
    )


def _is_cancelled(error: BaseException) -> bool:
    if not isinstance(error, asyncio.CancelledError):
        return False
    with suppress(RuntimeError):  # No loop runs on this thread.
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return False


def words_of(error: BaseException) -> str:
    """Return the text of a user's exception, whatever its ``__str__`` does."""
    try:
        return _sendable(str(error))
    except Exception as broken:
        return f"(its __str__ raised {type(broken).__name__})"


def _sendable(text: str) -> str:
    """Escape what UTF-8 cannot hold, such as bytes of a file's name: Ray would end the worker's process over it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def user_traceback(error: BaseException) -> str:
    """Return the traceback from the user's own code on: the frames of the shell and of Ray before it say nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return _sendable(traceback_text(error.with_traceback(trace)))


def _is_machinery(path: str) -> bool:
    return path.startswith(PACKAGE_PATH) or f"{os.sep}ray{os.sep}" in path


def _picklable(error: BaseException) -> BaseException | None:
    try:
        again: BaseException = pickle.loads(cloudpickle.dumps(error))  # noqa: S301 - bytes made in the same line
    except Exception:
        return None
    return again if type(again) is type(error) else None
