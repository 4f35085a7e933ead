"""How memory that arrives read-only is received: mapped privately, copied, or borrowed until it is joined.

A method or a driver may write to everything that it receives; no other process sees the change. Two kinds of receivers
need less: ``borrowing`` is for code that only reads what it fetches, in order to join it into one value, and a method
registered with ``zero_copy=True`` receives arrays as read-only views.

Borrowed memory that is not joined must be found again to be copied. That works for batches and plain containers. An
object of a user's class may keep a batch anywhere (``BorrowedBuffers.all_within``); it is then fetched a second time,
without borrowing.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from core.data.kinds import is_plain_tensor
from core.data.private_mmap import private_view
from core.data.ragged import from_parts, is_jagged, ragged_dim, ragged_parts

Array = np.ndarray[Any, Any]

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_PARTS_OF_A_BATCH = ("batch", "meta_info", "non_tensor_batch", "_row_ids")
"""The attributes of a batch that can hold memory; a batch of a user's own type has no row ids."""


class BorrowedBuffers:
    """Ranges of read-only memory that one receiver uses without a copy, sorted by address."""

    def __init__(self) -> None:
        """Start without any."""
        self._ranges: list[tuple[int, int]] = []
        self._owners: dict[int, weakref.ref[Array]] = {}
        self._done: dict[int, object] = {}
        self._offsets: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, array: Array) -> None:
        """Add an array that was not copied."""
        start = int(array.__array_interface__["data"][0])
        bisect.insort(self._ranges, (start, start + array.nbytes))
        while isinstance(array.base, np.ndarray):
            array = array.base
        self._owners[start] = weakref.ref(array)

    def contains(self, address: int) -> bool:
        """Return whether ``address`` lies in borrowed memory."""
        position = bisect.bisect_right(self._ranges, address, key=itemgetter(0))
        return position > 0 and address < self._ranges[position - 1][1]

    def all_within(self, value: Any) -> bool:
        """Return whether ``owned`` would find everything that is still borrowed in ``value``."""
        missing = {start for start, owner in self._owners.items() if owner() is not None}
        for start in _memory(value) if missing else ():
            missing.discard(start)
            if not missing:
                break
        return not missing

    def owned(self, value: Any) -> Any:
        """Return ``value`` with copies of the borrowed memory in it; the value itself if nothing was borrowed."""
        return self._owned(value) if self._ranges else value

    def _owned(self, value: Any) -> Any:
        if type(value) in _ATOMS:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, TensorDictBase):
            return value.apply(self._tensor)
        if isinstance(value, tuple):
            items = [self._owned(item) for item in value]
            return value._make(items) if hasattr(value, "_make") else tuple(items)
        if id(value) in self._done:
            return value
        self._done[id(value)] = value
        # In place: it was just made by unpickling or joining, and may be of a user's type.
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, list):
            value[:] = [self._owned(item) for item in value]
        elif isinstance(value, dict):
            for key, item in value.items():
                value[key] = self._owned(item)
        elif is_batch(value):
            for name, part in _parts_of(value).items():
                setattr(value, name, self._owned(part))
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_jagged(tensor):
            return self._jagged(tensor)
        parts = [part for part in _flat(tensor) if part.device.type == "cpu" and part.numel()]
        if not any(self.contains(part.data_ptr()) for part in parts):
            return tensor
        if is_plain_tensor(tensor) or tensor.is_nested:
            return tensor.clone()
        # A clone would lose the attributes of a user's type.
        own = tensor.as_subclass(torch.Tensor).clone().as_subclass(type(tensor))
        own.__dict__.update(tensor.__dict__)
        return own

    def _jagged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy values and offsets separately: columns that share one offsets tensor still share one afterwards."""
        values, (offsets, _) = tensor.values(), ragged_parts(tensor)
        own_values = self._tensor(values)
        if id(offsets) not in self._offsets:
            self._offsets[id(offsets)] = offsets, self._tensor(offsets)
        own_offsets = self._offsets[id(offsets)][1]
        if own_values is values and own_offsets is offsets:
            return tensor
        return from_parts(own_values, own_offsets, ragged_dim(tensor))

    def _array(self, array: Array) -> Array:
        if array.dtype == object:
            rows = array.reshape(-1)
            for number, item in enumerate(rows):
                rows[number] = self._owned(item)
            return array
        if array.nbytes == 0 or not self.contains(int(array.__array_interface__["data"][0])):
            return array
        return array.copy(order="K")


def is_batch(value: object) -> bool:
    """Return whether a value is a batch. Its module is above this one, so it is recognized by its attributes."""
    return hasattr(value, "non_tensor_batch") and hasattr(value, "meta_info")


def _parts_of(batch: Any) -> dict[str, Any]:
    return {name: part for name in _PARTS_OF_A_BATCH if (part := getattr(batch, name, None)) is not None}


def _memory(value: Any) -> Iterator[int]:
    """Yield the start address of each tensor and array that ``BorrowedBuffers.owned`` would find in ``value``.

    Columns come before objects in rows: usually nothing else is borrowed.
    """
    seen: dict[int, object] = {}
    waiting = deque([value])
    while waiting:
        value = waiting.popleft()
        if type(value) in _ATOMS or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield from (part.data_ptr() for part in _flat(value) if part.device.type == "cpu")
        elif isinstance(value, np.ndarray) and value.dtype != object:
            yield int(value.__array_interface__["data"][0])
        elif isinstance(value, np.ndarray):
            waiting.extend(value.reshape(-1))
        elif isinstance(value, LazyStackedTensorDict):
            waiting.extend(value.tensordicts)
        elif isinstance(value, (TensorDictBase, dict)):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif is_batch(value):
            waiting.extend(_parts_of(value).values())


def _flat(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that hold a tensor's memory."""
    if is_jagged(tensor):
        return tensor.values(), *(part for part in ragged_parts(tensor) if part is not None)
    if tensor.layout is torch.sparse_coo:
        return tensor._values(), tensor._indices()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.values(), tensor.crow_indices(), tensor.col_indices()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.values(), tensor.ccol_indices(), tensor.row_indices()
    return (tensor.values(),) if tensor.is_nested else (tensor,)


_local = threading.local()


class borrowing:
    """Unpickle read-only memory on this thread without a copy; what is kept must be made its own by ``owned``.

    With ``enabled=False`` it is mapped or copied as usual: where nothing is joined there is nothing to gain.
    """

    __slots__ = ("_before", "_enabled")

    def __init__(self, enabled: bool = True) -> None:
        """Set whether memory is borrowed at all."""
        self._enabled = enabled

    def __enter__(self) -> BorrowedBuffers:
        self._before = getattr(_local, "borrowed", None)
        borrowed = BorrowedBuffers()
        _local.borrowed = borrowed if self._enabled else None
        return borrowed

    def __exit__(self, *_: object) -> None:
        _local.borrowed = self._before


@contextlib.contextmanager
def views() -> Iterator[None]:
    """Unpickle arrays on this thread as read-only views; tensors are still mapped privately or copied."""
    before = getattr(_local, "views", False)
    _local.views = True
    try:
        yield
    finally:
        _local.views = before


def received_array(array: Array) -> Array:
    """Return an array that has just arrived in the form that its receiver needs."""
    if array.flags.writeable or getattr(_local, "views", False):
        return array
    borrowed: BorrowedBuffers | None = getattr(_local, "borrowed", None)
    if borrowed is not None:
        borrowed.add(array)
        return array
    flat = private_view(array) if array.flags.c_contiguous else None
    return array.copy(order="K") if flat is None else flat.view(array.dtype).reshape(array.shape)


def received_memory(raw: Array) -> Array:
    """Return a tensor's bytes that have just arrived in the form that its receiver needs, always flagged writable."""
    if raw.flags.writeable:
        return raw
    borrowed: BorrowedBuffers | None = getattr(_local, "borrowed", None)
    if borrowed is not None:
        borrowed.add(raw)
        return np.asarray(_Unflagged(raw))
    private = private_view(raw)
    return raw.copy() if private is None else private


class _Unflagged:
    """The memory of a read-only array without the read-only flag: torch cannot wrap memory that has it."""

    def __init__(self, array: Array) -> None:
        self._array = array
        facts = dict(array.__array_interface__)
        self.__array_interface__ = {**facts, "data": (facts["data"][0], False)}
