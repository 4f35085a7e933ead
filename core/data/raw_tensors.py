"""A dense tensor as dtype, shape and bytes, and a TensorDict of such: what the wire format is made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from core.data.memory import raw_bytes
from core.data.ragged import stack_strided
from core.data.zero_copy import received_memory
from core.errors import BatchError


def serialize_single_tensor(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], np.ndarray[Any, Any]]:
    """Return a dense tensor's dtype (such as "bfloat16"), shape and bytes.

    The bytes are a uint8 array: a view of the tensor's own memory where that is contiguous and on the CPU.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(int(size) for size in tensor.shape)
    if tensor.numel() == 0 or tensor.is_meta:
        return dtype, shape, np.empty(0, dtype=np.uint8)
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().cpu().contiguous()
    return dtype, shape, raw_bytes(plain).numpy()


def deserialize_single_tensor(parts: tuple[str, tuple[int, ...], Any]) -> torch.Tensor:
    """Build the tensor again from what ``serialize_single_tensor`` gave; it never shares read-only memory.

    Raises:
        BatchError: The dtype is none of torch's, or there are no bytes.
    """
    name, shape, raw = parts
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise BatchError(f"{name!r} is not a dtype of torch {torch.__version__}; the sender runs another version")
    array = raw if isinstance(raw, np.ndarray) else np.frombuffer(raw, dtype=np.uint8)
    if array.size == 0:
        if math.prod(shape):
            raise BatchError(f"a tensor of shape {tuple(shape)} has come without its bytes")
        return torch.empty(shape, dtype=dtype)
    array = received_memory(array)
    if array.__array_interface__["data"][0] % dtype.itemsize:
        array = array.copy()
    return torch.from_numpy(array).view(dtype).reshape(shape)


def local_device(name: str) -> torch.device:
    """Return the device of that name, the current one of its kind if there are fewer here, else the CPU."""
    device = torch.device(name)
    module = getattr(torch, device.type, None)
    if device.type == "cpu" or module is None or not module.is_available():
        return torch.device("cpu")
    if device.index is not None and device.index >= module.device_count():
        return torch.device(device.type, module.current_device())
    return device


def serialize_tensordict(batch: TensorDictBase) -> tuple[tuple[int, ...], str | None, dict[str, Any]]:
    """Return a flat TensorDict's batch size, device and items.

    A dense item is what ``serialize_single_tensor`` gives, a nested one ``(layout, [one such triple per part])``.

    Raises:
        BatchError: An item is not a tensor.
    """
    items: dict[str, Any] = {}
    for key, tensor in batch.items():
        if not isinstance(tensor, torch.Tensor):
            raise BatchError(f"{key!r} is a {type(tensor).__name__}; serialize_tensordict takes tensors only")
        if tensor.is_nested:
            parts = [serialize_single_tensor(part) for part in tensor.unbind()]
            items[key] = (str(tensor.layout).removeprefix("torch."), parts)
        else:
            items[key] = serialize_single_tensor(tensor)
    return tuple(batch.batch_size), None if batch.device is None else str(batch.device), items


def deserialize_tensordict(parts: tuple[tuple[int, ...], str | None, dict[str, Any]]) -> TensorDict:
    """Build the TensorDict again from what ``serialize_tensordict`` gave."""
    size, device, items = parts
    columns: dict[str, torch.Tensor] = {}
    for key, item in items.items():
        if len(item) == 2:
            layout, rows = item
            tensors = [deserialize_single_tensor(row) for row in rows]
            if layout == "jagged":
                columns[key] = torch.nested.nested_tensor(tensors, layout=torch.jagged)
            else:
                columns[key] = stack_strided(tensors, tensors[0])
        else:
            columns[key] = deserialize_single_tensor(item)
    return TensorDict(columns, batch_size=list(size), device=None if device is None else local_device(device))
