"""A value that came whole and could not be made of its bytes: its class is not there, or its own code raised."""

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

_LAST_PLACE = re.compile(r'.*File "([^"]*)", line (\d+), in (\S+)', re.DOTALL)


class Unread(Exception):
    """Says what could not be unpickled and why; never leaves Podium but as the reason of a worker's error.

    ``trace`` is the traceback; ``on_worker`` says that it was an argument, on the way to a method that has not run.
    """

    def __init__(self, cause: BaseException, trace: str = "", on_worker: bool = False) -> None:
        """Keep the error that unpickling raised; where it stands is found in its traceback."""
        self.cause = cause
        self.trace = trace or traceback_text(cause)
        self.on_worker = on_worker
        super().__init__(cause, self.trace, on_worker)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without the error itself where that cannot."""
        try:
            pickle.loads(cloudpickle.dumps(self.cause))  # noqa: S301 - bytes made in the same line
        except Exception:
            return Unread, (RuntimeError(str(self.cause)), self.trace, self.on_worker)
        return Unread, (self.cause, self.trace, self.on_worker)

    def __str__(self) -> str:
        """Say that it could not be unpickled here, by whose code."""
        return f"what came could not be unpickled: {self.reason}"

    def told(self, call: str = "a call", who: str = "a rank", **place: Any) -> WorkerMethodError:
        """Say it of a call's arguments or result; ``place`` is the error's group, rank and method."""
        if self.on_worker:
            text, there = f"{who} could not unpickle the arguments of {call}, which has not run", "there"
        else:
            text, there = f"{call} ran on {who}, but the driver cannot unpickle its result", "here"
        return WorkerMethodError(
            f"{text}: {self.reason}; what it is made of must be importable {there} too, and must not raise when it is "
            f"unpickled",
            traceback_text=self.trace,
            cause_type=type(self.cause).__name__,
            cause=self.cause,
            **place,
        )

    @property
    def reason(self) -> str:
        """Return the error's type and text, and which code of the user's raised it."""
        found = _LAST_PLACE.match(self.trace)
        said = f"{type(self.cause).__name__}: {self.cause}"
        if found is None or found[1].startswith(PACKAGE_PATH) or f"{os.sep}ray{os.sep}" in found[1]:
            return said
        return f"{said}, in {_owner(self.cause)}{found[3]} ({os.path.basename(found[1])}:{found[2]})"


def unpacked(pickled: bytes, on_worker: bool = False) -> Any:
    """Unpickle what a process of this cluster pickled.

    Raises:
        Unread: It cannot be.
    """
    try:
        return pickle.loads(pickled)  # noqa: S301
    except Exception as error:
        raise Unread(error, on_worker=on_worker) from error


def outcome_of(future: Future[bytes]) -> Outcome:
    """Return what a future of pickled bytes came to."""
    try:
        return Outcome(unpacked(future.result()))
    except BaseException as error:
        return Outcome(error=error)


def unread_in(error: object, on_worker: bool = False) -> Unread | None:
    """Return what a ``RaySystemError`` carries where unpickling raised, None where it is about anything else."""
    cause = getattr(error, "client_exc", None)
    return Unread(cause, str(getattr(error, "traceback_str", "")), on_worker) if isinstance(cause, Exception) else None


def _owner(error: BaseException) -> str:
    """Return the class whose method raised, with a dot: of an error that came from elsewhere it is not known."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else trace.tb_frame.f_code.co_qualname
    return name.rpartition(".")[0].rpartition(".<locals>.")[2] + "." if "." in name else ""
