"""A pool of buffers for joined columns: a training loop joins about as many bytes in each step as in the last one.

New memory costs a third of a join, since the kernel must find and clear every page. So the buffer of a joined column
returns to the pool when the last view of it is dropped, and the next join uses it. The kernel may reclaim the pages of
a pooled buffer when memory runs short (``MADV_FREE``). The pool keeps at most ``MAX_POOLED_BYTES``.
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

MAX_POOLED_BYTES = 1 << 30
MIN_POOLED_BYTES = 4 << 20
"""Smaller buffers come from numpy's allocator, which is fast for them."""
_WASTE = 1.25
"""How much larger than requested a reused buffer may be, as a factor."""

_MADV_FREE = getattr(mmap, "MADV_FREE", None)

_lock = threading.Lock()
_free: deque[mmap.mmap] = deque()
"""Unused buffers, the most recently returned one last. Finalizers append to it without a lock."""


class _PooledMemory:
    """The base object of all arrays over one buffer: when it is collected, the buffer returns to the pool.

    It also references the buffer itself: when Python exits, finalizers are dropped before the last arrays.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_buffer")

    def __init__(self, buffer: mmap.mmap, n_bytes: int) -> None:
        self._buffer = buffer
        memory = np.frombuffer(buffer, dtype=np.uint8, count=n_bytes)
        self.__array_interface__: dict[str, Any] = dict(memory.__array_interface__)


def new_memory(n_bytes: int) -> Bytes:
    """Return ``n_bytes`` of uninitialized memory; its buffer returns to the pool after its last view is dropped."""
    if n_bytes < MIN_POOLED_BYTES or _MADV_FREE is None:
        return np.empty(n_bytes, dtype=np.uint8)
    buffer = _take_free(n_bytes)
    if buffer is None:
        try:
            buffer = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            # The memory that a process may map is limited, and pooled buffers count.
            release_pool()
            return np.empty(n_bytes, dtype=np.uint8)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            buffer.madvise(mmap.MADV_HUGEPAGE)
    memory_owner = _PooledMemory(buffer, n_bytes)
    weakref.finalize(memory_owner, _recycle, buffer).atexit = False
    return np.asarray(memory_owner)


def release_pool() -> int:
    """Free all pooled buffers; return how many bytes they had."""
    with _lock:
        return sum(len(_free.popleft()) for _ in range(len(_free)))


def _take_free(n_bytes: int) -> mmap.mmap | None:
    """Take the smallest buffer that fits; if none does, free the oldest: joined columns have another size now."""
    with _lock:
        buffers = [_free.popleft() for _ in range(len(_free))]
        best = min((buffer for buffer in buffers if n_bytes <= len(buffer) <= n_bytes * _WASTE), key=len, default=None)
        _free.extendleft(buffer for buffer in reversed(buffers[best is None :]) if buffer is not best)
        return best


def _recycle(buffer: mmap.mmap) -> None:
    """Return a buffer to the pool if there is room; the kernel may reclaim its pages until it is used again."""
    if len(buffer) + sum(map(len, list(_free))) <= MAX_POOLED_BYTES:
        with suppress(OSError, ValueError):
            buffer.madvise(_MADV_FREE or 0)
            _free.append(buffer)


def _clear_in_child() -> None:
    """Empty the pool in a forked process: another thread may have held the lock, and the memory is a copy."""
    global _lock
    _lock = threading.Lock()
    _free.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_in_child)
