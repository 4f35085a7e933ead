"""Preallocated memory for joined columns: the rows of each result are copied there while other ranks still work.

The result of a call that splits rows is as long as the rows that were split, or a whole multiple of it (eight responses
to each prompt). So the first result that arrives determines how large each joined column will be and which rows of it
are its own, and they are copied there at once. The part then holds views of that memory, and the join of all parts only
returns it (``joined_memory``). A result of another length or dtype stays as it arrived, and the join copies all parts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from core.data.buffer_pool import new_memory
from core.data.memory import Bytes, address_of, plain_memory
from core.data.zero_copy import BorrowedBuffers, is_batch

MIN_COLUMN_BYTES = 1 << 20
"""Smaller joined columns are not preallocated: copying them takes no noticeable time."""

_local = threading.local()


class JoinBuffer:
    """The joined columns of one call's result, filled part by part.

    ``sizes`` are the numbers of rows that the parts were made from; it ``is_on`` until a part has another number. Only
    borrowed memory is copied, which the join would have to copy anyway. Inside ``with buffer:``, ``joined_memory``
    returns the columns of this buffer on this thread.
    """

    def __init__(self, sizes: Sequence[int], borrowed: BorrowedBuffers) -> None:
        """Start without columns: the first part determines them."""
        self._starts = tuple(accumulate(sizes, initial=0))
        self._borrowed = borrowed
        self._multiple = 0
        self.is_on = len(sizes) > 1
        self._columns: dict[tuple[str, object], Bytes] = {}

    def __enter__(self) -> JoinBuffer:
        self._before = getattr(_local, "buffer", None)
        _local.buffer = self
        return self

    def __exit__(self, *_: object) -> None:
        _local.buffer = self._before

    def add_part(self, index: int, part: Any, n_rows: int | None) -> Any:
        """Copy the columns of part ``index`` into the joined ones; return the part with views of these in their place.

        ``part`` is changed in place: it was just unpickled, and there is no other reference to it.
        """
        n_sent = self._starts[index + 1] - self._starts[index]
        if not n_sent:
            return part
        self._multiple = self._multiple or (n_rows or 0) // n_sent
        if self._multiple == 0 or n_rows != n_sent * self._multiple:
            self.is_on = False
            return part
        if isinstance(part, (torch.Tensor, np.ndarray)):
            return self._copied(("", None), index, part, n_rows)
        for name, columns in _columns_of(part):
            for key, column in list(columns.items()):
                copied = self._copied((name, key), index, column, n_rows)
                if copied is not column:
                    columns[key] = copied
        return part

    def take(self, parts: Sequence[Bytes]) -> Bytes | None:
        """Return and remove the joined column that ``parts`` make up in full and in order; None if there is none."""
        parts = [part for part in parts if part.nbytes]
        for name, column in self._columns.items():
            at = address_of(column)
            if not parts or address_of(parts[0]) != at:
                continue
            for part in parts:
                if address_of(part) != at:
                    return None
                at += part.nbytes
            return self._columns.pop(name) if at == address_of(column) + column.nbytes else None
        return None

    def _copied(self, name: tuple[str, object], index: int, column: Any, n_rows: int) -> Any:
        start, stop = self._starts[index], self._starts[index + 1]
        if _bytes_of(column) * self._starts[-1] < MIN_COLUMN_BYTES * (stop - start):
            return column
        raw = plain_memory(column)
        # A worker may have put an array of another length into its batch; the join checks whether that can be joined.
        if raw is None or column.shape[0] != n_rows or not self._borrowed.contains(address_of(raw)):
            return column
        width = raw.nbytes // (stop - start)
        n_bytes = width * self._starts[-1]
        joined = self._columns.get(name)
        if joined is None:
            joined = self._columns[name] = new_memory(n_bytes)
        if joined.nbytes != n_bytes:
            return column
        own = joined[start * width : stop * width]
        np.copyto(own, raw)
        if isinstance(column, torch.Tensor):
            return torch.from_numpy(own).view(column.dtype).reshape(column.shape)
        return own.view(column.dtype).reshape(column.shape)


def joined_memory(parts: Sequence[Bytes]) -> Bytes:
    """Return the bytes of ``parts`` end to end: the preallocated memory if they lie there in order, else a copy.

    Numpy makes the copy because it asks the kernel for huge pages, which torch does not: a third of the time.
    """
    buffer: JoinBuffer | None = getattr(_local, "buffer", None)
    if buffer is None:
        return np.concatenate(parts)
    joined = buffer.take(parts)
    return np.concatenate(parts, out=new_memory(sum(part.nbytes for part in parts))) if joined is None else joined


def _bytes_of(column: Any) -> int:
    """Return the bytes of a dense tensor or array, 0 for anything else; fast, since most columns are small."""
    if type(column) is np.ndarray or (type(column) is torch.Tensor and column.layout is torch.strided):
        return int(column.nbytes)
    return 0


def _columns_of(part: Any) -> Iterable[tuple[str, Any]]:
    """Yield the mappings of keys to columns in a part, each with its name."""
    if is_batch(part):
        if type(part.batch) is TensorDict:
            yield "batch", part.batch
        yield "non_tensor_batch", part.non_tensor_batch or {}
    elif type(part) in (TensorDict, dict):
        yield "", part
