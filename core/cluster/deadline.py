"""How long this thread waits for values of the cluster inside a ``deadline`` block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from core.cluster.base import Cluster, Ref
from core.cluster.ray_errors import Unread
from core.errors import CallTimeoutError, UsageError

_LONGEST_S = 1e9
"""Thirty years: locks and clusters cannot wait much longer."""

_block: ContextVar[float | None] = ContextVar("podium_deadline", default=None)


@contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """Limit how long each call in a ``with`` block, and each ``get`` of a future, waits for its ranks.

    ::

        with core.deadline(30):
            group.update(batch)  # raises CallTimeoutError after 30 s, with the ranks that did not respond

    It applies to this thread and overrides the deadlines of methods and groups. Each wait has the full time.

    Args:
        timeout_s: Seconds; 0 removes the deadlines of methods and groups.

    Raises:
        UsageError: ``timeout_s`` is negative, or NaN.
    """
    if not timeout_s >= 0:
        raise UsageError(f"a deadline must not be negative, got {timeout_s} s; pass 0 for no deadline")
    token = _block.set(within_reach(timeout_s))
    try:
        yield
    finally:
        _block.reset(token)


def within_reach(timeout_s: float) -> float:
    """Return ``timeout_s``, or 0 (no deadline) if it is longer than a wait can be, such as ``inf``."""
    return 0 if timeout_s > _LONGEST_S else timeout_s


def block_timeout_s() -> float | None:
    """Return the timeout of the ``deadline`` block around the call, 0 if it removes others, None outside of one."""
    return _block.get()


def fetch_in_time(cluster: Cluster, refs: Sequence[Ref]) -> list[Any]:
    """Return the values of references of the driver, within the deadline of the ``deadline`` block, if any.

    Raises:
        CallTimeoutError: They were not ready before the deadline.
        WorkerMethodError: A value, or the arguments of the call that makes it, cannot be unpickled.
    """
    timeout_s = _block.get() or None
    try:
        return cluster.fetch(refs, timeout_s)
    except Unread as unread:
        raise unread.as_method_error() from unread.cause
    except TimeoutError as error:
        if timeout_s is None or isinstance(error, CallTimeoutError):
            raise
        _, pending = cluster.wait(refs, len(refs), 0)
        raise CallTimeoutError(
            f"{len(pending)} of {len(refs)} references had no value after {timeout_s:g} s; their calls continue",
            timeout_s=timeout_s,
        ) from None
