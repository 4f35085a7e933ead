"""Joining while some are still out: each answer's rows are copied to where the joined column will have them.

The result of a call that deals rows is as long as the rows that were dealt, or a whole multiple of it (eight answers
to each prompt). So the first answer that comes tells how large each joined column will be and where its own rows lie
in it, and they are copied there while other ranks work. The part then holds views of that memory, and joining all
parts finds its work done (``joined_memory``). An answer that does not fit, of another length or dtype, stays as it
came, and the join copies, as it does where nothing landed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from core.data.memory import Bytes, address_of, plain_memory
from core.data.receive import Loans, is_batch
from core.data.slabs import new_memory

WORTH_LANDING_BYTES = 1 << 20
"""Smaller columns are joined in no time."""

_here = threading.local()


class Landing:
    """The joined columns of one call's result, filled part by part.

    ``sizes`` are the rows that each part is made of; it ``is_on`` until a part does not fit. Only what is on loan is
    copied: it would have to be anyway. While a landing is entered, ``joined_memory`` finds its columns on this thread.
    """

    def __init__(self, sizes: Sequence[int], loans: Loans) -> None:
        """Begin with no column: the first part says which there are."""
        self._starts = tuple(accumulate(sizes, initial=0))
        self._loans = loans
        self._times = 0
        self.is_on = len(sizes) > 1
        self._columns: dict[tuple[str, object], Bytes] = {}

    def __enter__(self) -> Landing:
        self._before = getattr(_here, "landing", None)
        _here.landing = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.landing = self._before

    def land(self, place: int, part: Any, n_rows: int | None) -> Any:
        """Copy a part's columns into the joined ones; return the part with views of these in their stead.

        ``part`` is changed: it was unpickled a moment ago and nobody else has it.
        """
        n_dealt = self._starts[place + 1] - self._starts[place]
        if not n_dealt:
            return part
        self._times = self._times or (n_rows or 0) // n_dealt
        if self._times == 0 or n_rows != n_dealt * self._times:
            self.is_on = False
            return part
        if isinstance(part, (torch.Tensor, np.ndarray)):
            return self._landed(("", None), place, part, n_rows)
        for name, columns in _columns_of(part):
            for key, column in list(columns.items()):
                landed = self._landed((name, key), place, column, n_rows)
                if landed is not column:
                    columns[key] = landed
        return part

    def take(self, parts: Sequence[Bytes]) -> Bytes | None:
        """Return the joined column that ``parts`` are, all of it and in order, else None. It is given away once."""
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

    def _landed(self, name: tuple[str, object], place: int, column: Any, n_rows: int) -> Any:
        start, stop = self._starts[place], self._starts[place + 1]
        if _bytes_of(column) * self._starts[-1] < WORTH_LANDING_BYTES * (stop - start):
            return column
        raw = plain_memory(column)
        # A worker may have put an array of another length into its batch: whether that can be joined, the join says.
        if raw is None or column.shape[0] != n_rows or not self._loans.hold(address_of(raw)):
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
    """Return the bytes of ``parts`` end to end: as they landed, if they did, else copied.

    Numpy copies, and asks the kernel for huge pages, which torch does not: that takes a third of the time.
    """
    landing: Landing | None = getattr(_here, "landing", None)
    if landing is None:
        return np.concatenate(parts)
    landed = landing.take(parts)
    return np.concatenate(parts, out=new_memory(sum(part.nbytes for part in parts))) if landed is None else landed


def _bytes_of(column: Any) -> int:
    """Return how large a dense tensor or an array is, quickly, as most columns are small; 0 for anything else."""
    if type(column) is np.ndarray or (type(column) is torch.Tensor and column.layout is torch.strided):
        return int(column.nbytes)
    return 0


def _columns_of(part: Any) -> Iterable[tuple[str, Any]]:
    """Yield what maps keys to columns in a part, with a name each."""
    if is_batch(part):
        if type(part.batch) is TensorDict:
            yield "batch", part.batch
        yield "non_tensor_batch", part.non_tensor_batch or {}
    elif type(part) in (TensorDict, dict):
        yield "", part
