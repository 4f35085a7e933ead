"""References of the cluster inside this process: values kept as the bytes that they were pickled to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from concurrent.futures import Future, InvalidStateError
from typing import Any

import cloudpickle

from core.cluster.ray_errors import Unread, outcome_of, unpacked
from core.errors import PodiumError, WorkerMethodError

_live_refs: weakref.WeakValueDictionary[int, LocalRef] = weakref.WeakValueDictionary()
numbers = itertools.count(1)


class LocalRef:
    """A value that a worker of this process made or will make, kept as the bytes it was pickled to."""

    def __init__(self) -> None:
        """Create a reference to a value that does not exist yet."""
        self.number = next(numbers)
        self.future: Future[bytes] = Future()
        self.holds: tuple[object, ...] = ()
        _live_refs[self.number] = self

    def value(self) -> Any:
        """Wait for the value and return a fresh copy of it.

        Raises:
            PodiumError: The method failed (``WorkerMethodError``), its worker ended (``WorkerDiedError``), or the value
                could not be pickled there or unpickled here (``WorkerMethodError``).
        """
        outcome = outcome_of(self.future)
        error = outcome.error
        if error is None:
            return outcome.value
        if isinstance(error, Unread):
            raise error.as_method_error()
        if isinstance(error, PodiumError) or not isinstance(error, Exception):
            raise error
        kind = type(error).__name__
        raise WorkerMethodError(f"a result could not be sent: {kind}: {error}", cause_type=kind, cause=error)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a number, which finds the reference in this process as long as it exists."""
        keep_with_message(self)
        return _find_ref, (self.number,)

    def __await__(self) -> Any:
        """Let an ``async def`` worker method await a reference, as it could on Ray."""
        return asyncio.to_thread(self.value).__await__()


_packing = threading.local()


def _find_ref(number: int) -> LocalRef:
    return _live_refs[number]


def keep_with_message(held: object) -> None:
    """Keep ``held`` alive as long as the bytes that this thread is pickling."""
    met = getattr(_packing, "refs", None)
    if met is not None:
        met.append(held)


def packed(value: object) -> tuple[bytes, tuple[object, ...]]:
    """Pickle a value; return the references and handles in it too.

    As with Ray, these must stay alive as long as the bytes.
    """
    met: list[object] = []
    _packing.refs = met
    try:
        return cloudpickle.dumps(value), tuple(met)
    finally:
        _packing.refs = None


def set_value(ref: LocalRef, pickled: bytes, holds: tuple[object, ...]) -> None:
    ref.holds = holds
    with contextlib.suppress(InvalidStateError):  # Its worker was killed meanwhile.
        ref.future.set_result(pickled)


def resolve(value: Any) -> Any:
    return unpacked(value.future.result(), on_worker=True) if isinstance(value, LocalRef) else value
