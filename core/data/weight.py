"""How heavy a value is: the bytes of tensors and arrays in it, in microseconds."""

from __future__ import annotations

from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from core.data.table import DataProtoItem, Table

_MAX_DEPTH = 4
_MAX_ITEMS = 1024


def payload_bytes(value: object, depth: int = _MAX_DEPTH) -> int:
    """Estimate the bytes of tensors, arrays, text and bytes in ``value``; 0 for what is not known.

    Containers are opened four levels deep, and so are objects and what functions have closed over; of longer ones than
    1,024 items the first count for all. Object arrays count their pointers only.
    """
    if isinstance(value, torch.Tensor):
        return _tensor_bytes(value)
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, memoryview):
        return value.nbytes
    if depth == 0 or isinstance(value, (NonTensorData, NonTensorStack)):
        return 0
    if isinstance(value, TensorDictBase):
        return sum(payload_bytes(column, depth - 1) for column in value.values())
    if isinstance(value, dict):
        return _estimate(list(value.values()), depth)
    if isinstance(value, (list, tuple)):
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
    return list(getattr(value, "__dict__", {}).values())


def _tensor_bytes(tensor: torch.Tensor) -> int:
    if tensor.is_nested:
        return _tensor_bytes(tensor.values())
    return tensor.numel() * tensor.element_size()


def _estimate(items: list[object] | tuple[object, ...], depth: int) -> int:
    counted = sum(payload_bytes(item, depth - 1) for item in items[:_MAX_ITEMS])
    return counted if len(items) <= _MAX_ITEMS else counted * len(items) // _MAX_ITEMS
