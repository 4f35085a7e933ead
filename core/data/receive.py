"""What becomes of memory that arrives read-only: mapped privately or copied, or lent for as long as it is joined.

Whatever a method or a driver is handed may be written to without harm to anyone. Two kinds of receivers need less:
``borrowing`` is for code that only reads what it fetches, to fill one joined value from it, and a method registered
with ``zero_copy=True`` takes arrays as read-only views.

What was lent and is not joined must be found again to be copied. That is sure for what batches and plain containers
hold; an object of the user's own may keep a batch anywhere (``Loans.all_in``), and is then fetched anew without a loan.
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
from core.data.private import private_view
from core.data.ragged import from_parts, is_jagged, ragged_dim, ragged_parts

Array = np.ndarray[Any, Any]

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_PARTS_OF_A_BATCH = ("batch", "meta_info", "non_tensor_batch", "_row_ids")
"""What of a batch can hold memory; a user's own type of batch has no row ids."""


class Loans:
    """Ranges of read-only memory that were lent to one receiver, in order."""

    def __init__(self) -> None:
        """Start with none."""
        self._ranges: list[tuple[int, int]] = []
        self._owners: dict[int, weakref.ref[Array]] = {}
        self._done: dict[int, object] = {}
        self._offsets: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def lend(self, array: Array) -> None:
        """Take note of an array that was not copied."""
        start = int(array.__array_interface__["data"][0])
        bisect.insort(self._ranges, (start, start + array.nbytes))
        while isinstance(array.base, np.ndarray):
            array = array.base
        self._owners[start] = weakref.ref(array)

    def hold(self, address: int) -> bool:
        """Tell whether ``address`` lies in memory that was lent."""
        place = bisect.bisect_right(self._ranges, address, key=itemgetter(0))
        return place > 0 and address < self._ranges[place - 1][1]

    def all_in(self, value: Any) -> bool:
        """Tell whether ``settled`` would find all that is still on loan in ``value``."""
        out = {start for start, owner in self._owners.items() if owner() is not None}
        found = _memory(value) if out else ()
        for start in found:
            out.discard(start)
            if not out:
                break
        return not out

    def settled(self, value: Any) -> Any:
        """Return ``value`` with copies of what it still has on loan; the value itself if that is nothing."""
        return self._settled(value) if self._ranges else value

    def _settled(self, value: Any) -> Any:
        if type(value) in _ATOMS:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, TensorDictBase):
            return value.apply(self._tensor)
        if isinstance(value, tuple):
            items = [self._settled(item) for item in value]
            return value._make(items) if hasattr(value, "_make") else tuple(items)
        if id(value) in self._done:
            return value
        self._done[id(value)] = value
        # In place: it was made by unpickling or joining just now, and may be of a type of its own.
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, list):
            value[:] = [self._settled(item) for item in value]
        elif isinstance(value, dict):
            for key, item in value.items():
                value[key] = self._settled(item)
        elif is_batch(value):
            for name, part in _parts_of(value).items():
                setattr(value, name, self._settled(part))
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_jagged(tensor):
            return self._jagged(tensor)
        parts = [part for part in _flat(tensor) if part.device.type == "cpu" and part.numel()]
        if not any(self.hold(part.data_ptr()) for part in parts):
            return tensor
        if is_plain_tensor(tensor) or tensor.is_nested:
            return tensor.clone()
        # A clone would be without the attributes of a user's type.
        own = tensor.as_subclass(torch.Tensor).clone().as_subclass(type(tensor))
        own.__dict__.update(tensor.__dict__)
        return own

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


def is_batch(value: object) -> bool:
    """Tell whether a value is a batch, whose module is above this one."""
    return hasattr(value, "non_tensor_batch") and hasattr(value, "meta_info")


def _parts_of(batch: Any) -> dict[str, Any]:
    return {name: part for name in _PARTS_OF_A_BATCH if (part := getattr(batch, name, None)) is not None}


def _memory(value: Any) -> Iterator[int]:
    """Yield where the memory begins of each tensor and array that ``Loans.settled`` would find in ``value``.

    Columns come before what stands in rows: mostly they are all.
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


_here = threading.local()


class borrowing:
    """Lend what this thread unpickles meanwhile, instead of making it its own; what is kept must be ``settled``.

    Without ``lends`` it is made its own all the same: where nothing is joined there is nothing to gain.
    """

    __slots__ = ("_before", "_lends")

    def __init__(self, lends: bool = True) -> None:
        """Say whether there is to be a loan at all."""
        self._lends = lends

    def __enter__(self) -> Loans:
        self._before = getattr(_here, "loans", None)
        loans = Loans()
        _here.loans = loans if self._lends else None
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
