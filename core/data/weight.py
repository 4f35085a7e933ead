"""How many bytes a value is sent as: what its tensors, arrays, texts and numbers take, estimated quickly.

The pickle itself comes too late (the size decides whether a value is stored once, and whether the store has room for
it) and would say less: a text that stands in every row is in it once, but costs every rank that has a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDictBase

from core.data.table import DataProtoItem, Table

_MAX_DEPTH = 8
# Multiples of the golden ratio: spread evenly, and never in step with rows that repeat every so many.
_MANY = tuple(number * 0.6180339887498949 % 1.0 for number in range(512))
_FEW = _MANY[:32]
_NUMBERS = frozenset({bool, int, float, complex, type(None)})
_NUMBER_BYTES = {bool: 1, type(None): 1, float: 9, complex: 30}
_COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def payload_bytes(value: object, depth: int = _MAX_DEPTH) -> int:
    """Estimate the bytes that ``value`` is sent as; 0 for a lone number and for what is not known.

    Containers, object arrays, objects and what functions have closed over are opened eight levels deep. Of more than
    512 items 512 are weighed, spread evenly, and stand for all; of numbers 32. Texts, bytes and arrays are counted one
    by one, however many they are. Keys of dicts and the few bytes around each value are not counted.
    """
    kind = type(value)
    if kind is str:
        return _text_bytes(value)  # type: ignore[arg-type]
    if kind is list or kind is tuple:
        return _estimate(value, depth) if depth else 0  # type: ignore[arg-type]
    if kind is dict:
        return _estimate(value.values(), depth) if depth else 0  # type: ignore[attr-defined]
    if isinstance(value, torch.Tensor):
        return _tensor_bytes(value)
    if isinstance(value, np.ndarray):
        return _array_bytes(value, depth)
    if isinstance(value, str):
        return _text_bytes(value)
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, memoryview):
        return value.nbytes
    if depth == 0:
        return 0
    if isinstance(value, NonTensorData):
        return _estimate([value.data], depth)
    if isinstance(value, LazyStackedTensorDict):
        return _estimate(value.tensordicts, depth)
    if isinstance(value, TensorDictBase):
        return sum(payload_bytes(column, depth - 1) for column in value.values())
    if isinstance(value, dict):
        return _estimate(value.values(), depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _estimate(value, depth)
    if isinstance(value, (Table, DataProtoItem)):
        return sum(payload_bytes(part, depth) for part in (value.batch, value.non_tensor_batch, value.meta_info))
    if value is None or isinstance(value, (bool, int, float, type, ModuleType)):
        return 0
    if isinstance(value, torch.nn.Module):
        return sum(_tensor_bytes(tensor) for tensor in (*value.parameters(), *value.buffers()))
    return _estimate(_held(value), depth)


def _held(value: object) -> list[object]:
    """Return what is pickled with an object: its attributes, or what a function has closed over or bound."""
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ()) if isinstance(name, str)]
    return [*getattr(value, "__dict__", {}).values(), *slots]


def _tensor_bytes(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.strided and not tensor.is_nested:
        return 0 if tensor.is_meta else tensor.numel() * tensor.element_size()
    if tensor.is_nested:
        return _tensor_bytes(tensor.values())
    if tensor.layout is torch.sparse_coo:
        return _tensor_bytes(tensor._values()) + _tensor_bytes(tensor._indices())
    if tensor.layout in _COMPRESSED_ROWS:
        return sum(map(_tensor_bytes, (tensor.values(), tensor.crow_indices(), tensor.col_indices())))
    if tensor.layout in _COMPRESSED_COLUMNS:
        return sum(map(_tensor_bytes, (tensor.values(), tensor.ccol_indices(), tensor.row_indices())))
    return tensor.numel() * tensor.element_size()


def _array_bytes(array: np.ndarray[Any, Any], depth: int) -> int:
    if not array.dtype.hasobject:
        return int(array.nbytes)
    if array.dtype.names is not None or array.dtype != object:
        # Records with objects in them, and numpy's own strings: the pointers, and what they point to.
        return int(array.nbytes) + (_estimate(array.reshape(-1).tolist(), depth) if depth else 0)
    return _estimate(array.reshape(-1).tolist(), depth) if depth else 0


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _estimate(items: Collection[Any], depth: int) -> int:
    """Weigh the items of a container, all or a sample of them."""
    some = _spread(items, _FEW)
    kinds = set(map(type, some))
    if kinds <= _NUMBERS and (
        len(some) == len(items) or len(items) > len(_MANY) or _NUMBERS.issuperset(map(type, items))
    ):
        return sum(map(_number_bytes, some)) * len(items) // max(len(some), 1)
    if len(kinds) == 1 and len(items) > 1:
        count = _COUNTS.get(kinds.pop())
        if count is not None and (counted := count(items)) is not None:
            return counted
    some = _spread(items, _MANY)
    counted = sum(_number_bytes(item) if type(item) in _NUMBERS else payload_bytes(item, depth - 1) for item in some)
    return counted * len(items) // max(len(some), 1)


def _count_texts(items: Collection[Any]) -> int | None:
    """Count texts one by one; None if not all are texts."""
    try:
        return sum(map(len if all(map(str.isascii, items)) else _text_bytes, items))
    except (TypeError, AttributeError):
        return None


def _count_bytes(items: Collection[Any]) -> int | None:
    return sum(map(len, items)) if {bytes}.issuperset(map(type, items)) else None


def _count_arrays(items: Collection[Any]) -> int | None:
    """Count arrays of plain values one by one; None if there are others."""
    plain = all(type(item) is np.ndarray and not item.dtype.hasobject for item in items)
    return sum(item.nbytes for item in items) if plain else None


_COUNTS: dict[type, Callable[[Collection[Any]], int | None]] = {
    str: _count_texts,
    bytes: _count_bytes,
    np.ndarray: _count_arrays,
}


def _spread(items: Collection[Any], fractions: tuple[float, ...]) -> Sequence[Any]:
    """Return the items at these fractions of the length, or all if there are no more than that."""
    listed = items if isinstance(items, (list, tuple)) else list(items)
    n_items = len(listed)
    return listed if n_items <= len(fractions) else [listed[int(fraction * n_items)] for fraction in fractions]


def _number_bytes(number: Any) -> int:
    """Return what a number in a container is pickled as."""
    if type(number) is int:
        return 2 if 0 <= number < 256 else 3 if 0 <= number < 65_536 else 5 + number.bit_length() // 32 * 4
    return _NUMBER_BYTES[type(number)]
