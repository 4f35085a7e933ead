"""How long this thread waits for values of the cluster, where a ``deadline`` block says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from core.cluster.base import Cluster, Ref
from core.cluster.ray_errors import Unread
from core.errors import CallTimeoutError, UsageError

_LONGEST_S = 1e9
"""Thirty years. Locks and clusters can wait little longer than that."""

_block: ContextVar[float | None] = ContextVar("podium_deadline", default=None)


@contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """Let every call in a ``with`` block, and every ``get`` of a future, wait at most ``timeout_s`` for its ranks.

    ::

        with core.deadline(30):
            group.update(batch)  # raises CallTimeoutError after 30 s, with the ranks that did not answer

    It holds on this thread, for each wait anew, and before what methods and groups say; 0 lifts their deadlines.

    Raises:
        UsageError: ``timeout_s`` is negative, or NaN.
    """
    if not timeout_s >= 0:
        raise UsageError(f"a deadline must not be negative, got {timeout_s} s; 0 is for none")
    token = _block.set(within_reach(timeout_s))
    try:
        yield
    finally:
        _block.reset(token)


def within_reach(timeout_s: float) -> float:
    """Return a wait as it is, or 0, which is for none, when it is longer than anything can wait, such as ``inf``."""
    return 0 if timeout_s > _LONGEST_S else timeout_s


def block_timeout_s() -> float | None:
    """Return the deadline of the block around this line, 0 when it lifts others, None outside of any."""
    return _block.get()


def fetch_in_time(cluster: Cluster, refs: Sequence[Ref]) -> list[Any]:
    """Return the values of references that the driver holds, within the block's deadline if there is one.

    Raises:
        CallTimeoutError: They were not there in time.
        WorkerMethodError: A value, or the arguments of the call that was to make it, cannot be unpickled.
    """
    timeout_s = _block.get() or None
    try:
        return cluster.fetch(refs, timeout_s)
    except Unread as unread:
        raise unread.told() from unread.cause
    except TimeoutError as error:
        if timeout_s is None or isinstance(error, CallTimeoutError):
            raise
        _, pending = cluster.wait(refs, len(refs), 0)
        raise CallTimeoutError(
            f"{len(pending)} of {len(refs)} references had no value after {timeout_s:g} s; their calls continue",
            timeout_s=timeout_s,
        ) from None
