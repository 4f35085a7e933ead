"""Which arrays and tensors can be columns: those whose rows can be cut, joined and sent bit for bit.

Numpy's and torch's own functions drop what makes some types special (``numpy.concatenate`` the mask of a masked array,
``torch.cat`` the scale of a quantized tensor) and say nothing. Such a column is refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import MemoryMappedTensor, TensorDict, TensorDictBase

from core.data.objects import ListRows
from core.errors import BatchError

_PLAIN_ARRAYS = frozenset({np.ndarray, np.memmap, ListRows})
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, MemoryMappedTensor})


def is_plain_array(array: object) -> bool:
    """Return whether an array is all that its dtype, shape and bytes say."""
    return type(array) in _PLAIN_ARRAYS


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's type adds nothing to dtype, shape, layout and values."""
    return type(tensor) in _PLAIN_TENSORS


def check_array(array: np.ndarray[Any, Any], key: str) -> None:
    """Make sure that an array can be a column.

    Raises:
        BatchError: It is of a subclass of ``numpy.ndarray``; the message names key, type and the way out.
    """
    if type(array) in _PLAIN_ARRAYS:
        return
    if isinstance(array, np.ma.MaskedArray):
        raise BatchError(
            f"{key} is a numpy masked array, and numpy drops the mask when rows are joined; use two plain arrays, "
            f"array.filled(value) and numpy.ma.getmaskarray(array)"
        )
    raise BatchError(
        f"{key} is a {_name(type(array))}, and what this subclass of numpy.ndarray adds is lost when rows are cut and "
        f"joined; use numpy.array(array), or a list with one value per row"
    )


def check_tensor(tensor: torch.Tensor, key: str) -> None:
    """Make sure that a tensor can be a column: dense, nested or sparse COO, and of torch's own type.

    Raises:
        BatchError: It is not; the message names key, type and the way out.
    """
    if tensor.layout is torch.strided and type(tensor) is torch.Tensor and not tensor.is_quantized:
        return
    if tensor.is_nested:
        return
    if tensor.is_quantized:
        raise BatchError(f"{key} is a quantized tensor ({tensor.dtype}); use tensor.dequantize() or tensor.int_repr()")
    if type(tensor) not in _PLAIN_TENSORS:
        raise BatchError(
            f"{key} is a {_name(type(tensor))}, and what this subclass of torch.Tensor adds is lost when rows are cut "
            f"and joined; use tensor.as_subclass(torch.Tensor), for a DTensor tensor.full_tensor()"
        )
    if tensor.layout is not torch.strided and tensor.layout is not torch.sparse_coo:
        raise BatchError(
            f"{key} has layout {tensor.layout}, which has no rows to cut; use tensor.to_dense() or tensor.to_sparse()"
        )


def check_tensors(batch: TensorDictBase, path: str = "") -> None:
    """Make sure that all tensors of a TensorDict can be columns.

    Raises:
        BatchError: One cannot.
    """
    if type(batch) is not TensorDict:
        return  # a lazy stack may have no such column at all; the wire format looks at each of its parts
    for key, column in batch.items():
        if isinstance(column, torch.Tensor):
            check_tensor(column, f"{path}{key}")
        elif isinstance(column, TensorDictBase):
            check_tensors(column, f"{path}{key}.")


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
