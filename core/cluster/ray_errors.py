"""Values that arrived and cannot be unpickled: their class cannot be imported, or its code raised."""

from __future__ import annotations

import os
import pickle
import re
from concurrent.futures import Future
from typing import Any

import cloudpickle

from core.cluster.base import Outcome
from core.errors import WorkerMethodError, traceback_text
from core.version import PACKAGE_PATH

_LAST_FRAME = re.compile(r'.*File "([^"]*)", line (\d+), in (\S+)', re.DOTALL)


class Unread(Exception):
    """A value cannot be unpickled. Users see it only as the cause of a ``WorkerMethodError``.

    ``trace`` is the traceback; with ``on_worker`` the value was an argument, of a method that has not run.
    """

    def __init__(self, cause: BaseException, trace: str = "", on_worker: bool = False) -> None:
        """Keep the error that unpickling raised, with its traceback."""
        self.cause = cause
        self.trace = trace or traceback_text(cause)
        self.on_worker = on_worker
        super().__init__(cause, self.trace, on_worker)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the error itself if that cannot be pickled."""
        try:
            pickle.loads(cloudpickle.dumps(self.cause))  # noqa: S301 - bytes made in the same line
        except Exception:
            return Unread, (RuntimeError(str(self.cause)), self.trace, self.on_worker)
        return Unread, (self.cause, self.trace, self.on_worker)

    def __str__(self) -> str:
        """Return the message, with the code that raised."""
        return f"a value could not be unpickled: {self.reason}"

    def as_method_error(self, call: str = "a call", who: str = "a rank", **fields: Any) -> WorkerMethodError:
        """Return the error for a call's arguments or result; ``fields`` are the error's group, rank and method."""
        if self.on_worker:
            text, there = f"{who} could not unpickle the arguments of {call}, which has not run", "there"
        else:
            text, there = f"{call} ran on {who}, but the driver cannot unpickle its result", "here"
        return WorkerMethodError(
            f"{text}: {self.reason}; its classes must be importable {there}, too, and must not raise when they are "
            f"unpickled",
            traceback_text=self.trace,
            cause_type=type(self.cause).__name__,
            cause=self.cause,
            **fields,
        )

    @property
    def reason(self) -> str:
        """Return the error's type and text, and the user's code that raised it."""
        frame = _LAST_FRAME.match(self.trace)
        text = f"{type(self.cause).__name__}: {self.cause}"
        if frame is None or frame[1].startswith(PACKAGE_PATH) or f"{os.sep}ray{os.sep}" in frame[1]:
            return text
        return f"{text}, in {_owner(self.cause)}{frame[3]} ({os.path.basename(frame[1])}:{frame[2]})"


def unpacked(pickled: bytes, on_worker: bool = False) -> Any:
    """Unpickle what a process of this cluster pickled.

    Raises:
        Unread: It cannot be unpickled.
    """
    try:
        return pickle.loads(pickled)  # noqa: S301
    except Exception as error:
        raise Unread(error, on_worker=on_worker) from error


def outcome_of(future: Future[bytes]) -> Outcome:
    """Return the outcome of a future of pickled bytes."""
    try:
        return Outcome(unpacked(future.result()))
    except BaseException as error:
        return Outcome(error=error)


def unread_in(error: object, on_worker: bool = False) -> Unread | None:
    """Return the unpickling error in a ``RaySystemError``, None if it is about anything else."""
    cause = getattr(error, "client_exc", None)
    return Unread(cause, str(getattr(error, "traceback_str", "")), on_worker) if isinstance(cause, Exception) else None


def _owner(error: BaseException) -> str:
    """Return the class whose method raised, with a dot; empty if the error came from another process."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else trace.tb_frame.f_code.co_qualname
    return name.rpartition(".")[0].rpartition(".<locals>.")[2] + "." if "." in name else ""
