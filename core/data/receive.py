"""What becomes of memory that arrives read-only: mapped privately or copied, or lent for as long as it is joined.

Whatever a method or a driver is handed may be written to without harm to anyone. Two kinds of receivers need less:
``borrowing`` is for code that only reads what it fetches, to fill one joined value from it, and a method registered
with ``zero_copy=True`` takes arrays as read-only views.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.private import private_view
from core.data.ragged import from_parts, is_jagged, ragged_dim, ragged_parts

Array = np.ndarray[Any, Any]


class Loans:
    """Ranges of read-only memory that were lent to one receiver, in order."""

    def __init__(self) -> None:
        """Start with none."""
        self._ranges: list[tuple[int, int]] = []
        self._offsets: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def lend(self, array: Array) -> None:
        """Take note of an array that was not copied."""
        start = int(array.__array_interface__["data"][0])
        bisect.insort(self._ranges, (start, start + array.nbytes))

    def hold(self, address: int) -> bool:
        """Tell whether ``address`` lies in memory that was lent."""
        place = bisect.bisect_right(self._ranges, address, key=itemgetter(0))
        return place > 0 and address < self._ranges[place - 1][1]

    def settled(self, value: Any) -> Any:
        """Return ``value`` with copies of what it still has on loan; the value itself if that is nothing."""
        return self._settled(value) if self._ranges else value

    def _settled(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, TensorDictBase):
            return value.apply(self._tensor)
        if type(value) in (list, tuple):
            return type(value)(self._settled(item) for item in value)
        if isinstance(value, dict):
            # In place: it was made by unpickling just now, and may be of a type of its own.
            for key, item in value.items():
                value[key] = self._settled(item)
        elif hasattr(value, "non_tensor_batch") and hasattr(value, "meta_info"):
            for name in ("batch", "non_tensor_batch", "meta_info"):
                setattr(value, name, self._settled(getattr(value, name)))
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_jagged(tensor):
            return self._jagged(tensor)
        flat = tensor.values() if tensor.is_nested or tensor.layout is torch.sparse_coo else tensor
        if flat.device.type != "cpu" or flat.numel() == 0 or not self.hold(flat.data_ptr()):
            return tensor
        return tensor.clone()

    def _jagged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Settle values and offsets apart: columns that share one offsets tensor go on sharing one."""
        values, (offsets, _) = tensor.values(), ragged_parts(tensor)
        settled = self._tensor(values)
        if id(offsets) not in self._offsets:
            self._offsets[id(offsets)] = offsets, self._tensor(offsets)
        own_offsets = self._offsets[id(offsets)][1]
        if settled is values and own_offsets is offsets:
            return tensor
        return from_parts(settled, own_offsets, ragged_dim(tensor))

    def _array(self, array: Array) -> Array:
        if array.dtype == object:
            rows = array.reshape(-1)
            for number, item in enumerate(rows):
                rows[number] = self._settled(item)
            return array
        if array.nbytes == 0 or not self.hold(int(array.__array_interface__["data"][0])):
            return array
        return array.copy(order="K")


_here = threading.local()


class borrowing:
    """Lend what this thread unpickles meanwhile, instead of making it its own; what is kept must be ``settled``."""

    __slots__ = ("_before",)

    def __enter__(self) -> Loans:
        self._before = getattr(_here, "loans", None)
        loans = _here.loans = Loans()
        return loans

    def __exit__(self, *_: object) -> None:
        _here.loans = self._before


@contextlib.contextmanager
def views() -> Iterator[None]:
    """Leave arrays that this thread unpickles meanwhile read-only views; tensors are mapped privately or copied."""
    before = getattr(_here, "views", False)
    _here.views = True
    try:
        yield
    finally:
        _here.views = before


def received_array(array: Array) -> Array:
    """Return an array that has just arrived as its receiver takes it."""
    if array.flags.writeable or getattr(_here, "views", False):
        return array
    loans: Loans | None = getattr(_here, "loans", None)
    if loans is not None:
        loans.lend(array)
        return array
    flat = private_view(array) if array.flags.c_contiguous else None
    return array.copy(order="K") if flat is None else flat.view(array.dtype).reshape(array.shape)


def received_memory(raw: Array) -> Array:
    """Return a tensor's bytes that have just arrived as its receiver takes them: flagged as writable in any case."""
    if raw.flags.writeable:
        return raw
    loans: Loans | None = getattr(_here, "loans", None)
    if loans is not None:
        loans.lend(raw)
        return np.asarray(_Lent(raw))
    private = private_view(raw)
    return raw.copy() if private is None else private


class _Lent:
    """The memory of a read-only array, without the flag: torch cannot wrap memory that is flagged."""

    def __init__(self, array: Array) -> None:
        self._array = array
        facts = dict(array.__array_interface__)
        self.__array_interface__ = {**facts, "data": (facts["data"][0], False)}
