"""Memory that a worker keeps for others: who offers it, and how it is found when it must go through the store."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from core.cluster.base import ActorHandle, Ref


class NoDirectTransport(Exception):
    """Says in words why memory cannot be offered, or cannot be taken, directly; never leaves Podium."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Memory on another worker: ``ref`` is it by direct transport; its ``source`` finds it by ``key``."""

    ref: Ref
    source: ActorHandle
    key: str


_kept: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""Memory of this worker that the cluster holds for others, for as long as it does."""


def keep(key: str, memory: Any) -> None:
    """Make a tensor findable in this process; the cluster keeps it, not this."""
    _kept[key] = memory


def copied(actor: object, key: str) -> Any:
    """Run in the worker that keeps it: return a tensor's bytes as an array, None if it was dropped."""
    del actor
    memory = _kept.get(key)
    return None if memory is None else memory.cpu().numpy()
