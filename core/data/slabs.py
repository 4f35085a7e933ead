"""Memory for what calls join, used again: a training loop joins as much in each step as in the one before.

New memory costs a third of a join: the kernel finds and clears every page. So the memory of a joined column that nobody
holds any more is kept for the next one. It is the kernel's to take back meanwhile, when memory runs short
(``MADV_FREE``), and at most ``KEPT_BYTES`` are kept.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np

from core.data.memory import Bytes

KEPT_BYTES = 1 << 30
WORTH_KEEPING_BYTES = 4 << 20
"""Smaller ones are had from the allocator at once."""
_WASTE = 1.25
"""How much larger than asked for a slab may be."""

_FREE = getattr(mmap, "MADV_FREE", None)

_lock = threading.Lock()
_kept: deque[mmap.mmap] = deque()
"""Slabs that nobody holds, the one let go of last at the end. Finalizers append to it, and take no lock."""


class _Held:
    """What arrays over a slab are based on: the last one to go gives the slab back.

    It holds the slab itself, too: finalizers are gone before the last arrays are when Python ends.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_slab")

    def __init__(self, slab: mmap.mmap, n_bytes: int) -> None:
        self._slab = slab
        memory = np.frombuffer(slab, dtype=np.uint8, count=n_bytes)
        self.__array_interface__: dict[str, Any] = dict(memory.__array_interface__)


def new_memory(n_bytes: int) -> Bytes:
    """Return ``n_bytes`` of memory with anything in it; its slab is kept when the last view of it is gone."""
    if n_bytes < WORTH_KEEPING_BYTES or _FREE is None:
        return np.empty(n_bytes, dtype=np.uint8)
    slab = _kept_one(n_bytes)
    if slab is None:
        try:
            slab = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            # There is a limit to the memory that a process may map, and what is kept counts.
            give_back()
            return np.empty(n_bytes, dtype=np.uint8)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            slab.madvise(mmap.MADV_HUGEPAGE)
    held = _Held(slab, n_bytes)
    weakref.finalize(held, _let_go, slab).atexit = False
    return np.asarray(held)


def give_back() -> int:
    """Give the system what is kept; return how many bytes that were."""
    with _lock:
        return sum(len(_kept.popleft()) for _ in range(len(_kept)))


def _kept_one(n_bytes: int) -> mmap.mmap | None:
    """Take the smallest slab that fits; if none does, let go of the oldest: what is joined has another size now."""
    with _lock:
        slabs = [_kept.popleft() for _ in range(len(_kept))]
        best = min((slab for slab in slabs if n_bytes <= len(slab) <= n_bytes * _WASTE), key=len, default=None)
        _kept.extendleft(slab for slab in reversed(slabs[best is None :]) if slab is not best)
        return best


def _let_go(slab: mmap.mmap) -> None:
    """Keep a slab if there is room; the kernel may have its pages until it is used again."""
    if len(slab) + sum(map(len, list(_kept))) <= KEPT_BYTES:
        with suppress(OSError, ValueError):
            slab.madvise(_FREE or 0)
            _kept.append(slab)


def _begin_anew() -> None:
    """Keep nothing in a process that was forked: another thread may have held the lock, and the memory is a copy."""
    global _lock
    _lock = threading.Lock()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
