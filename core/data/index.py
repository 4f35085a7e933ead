"""What may stand in ``batch[...]``, turned into row numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from core.errors import BatchError

RowIndex: TypeAlias = (
    Sequence[int]
    | Sequence[bool]
    | Sequence[np.bool_]
    | Sequence[np.integer[Any]]
    | np.ndarray[Any, Any]
    | torch.Tensor
)


def row_numbers(index: RowIndex, n_rows: int) -> torch.Tensor:
    """Return the rows that ``index`` means, as int64 numbers from 0 to ``n_rows - 1``.

    Raises:
        TypeError: It holds neither whole numbers nor booleans.
        BatchError: A mask of another length, or more than one dimension.
        IndexError: A row that is not there.
    """
    array = _as_array(index)
    if array.ndim != 1:
        raise BatchError(f"an index of rows has one dimension, this one has shape {array.shape}")
    if array.size == 0 and array.dtype.kind != "b":
        return torch.zeros(0, dtype=torch.int64)
    if array.dtype.kind == "b":
        if array.shape[0] != n_rows:
            raise BatchError(f"a boolean mask of {array.shape[0]} entries cannot select from {n_rows} rows")
        return torch.from_numpy(np.flatnonzero(array))
    if array.dtype.kind not in "iu":
        raise TypeError(f"rows are selected by whole numbers or booleans, not by {array.dtype}")
    numbers = array.astype(np.int64)
    outside = numbers[(numbers < -n_rows) | (numbers >= n_rows)]
    if outside.size:
        raise IndexError(f"row {int(outside[0])} is not among the {n_rows} rows of this batch")
    return torch.from_numpy(np.where(numbers < 0, numbers + n_rows, numbers))


def _as_array(index: RowIndex) -> np.ndarray[Any, Any]:
    if isinstance(index, torch.Tensor):
        return index.detach().cpu().numpy()
    if isinstance(index, np.ma.MaskedArray):
        raise TypeError("rows are not selected by a masked array; use index.filled(False), or index.compressed()")
    if isinstance(index, np.ndarray):
        return index
    if isinstance(index, (str, bytes)) or not isinstance(index, Sequence):
        raise TypeError(f"rows are selected by a list, array, tensor, slice or number, not by {type(index).__name__}")
    values = [value.item() if isinstance(value, (np.generic, torch.Tensor)) else value for value in index]
    kinds = {type(value) for value in values}
    if not kinds <= {int} and kinds != {bool}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"rows are selected by whole numbers or by booleans, not by a list of {names}")
    return np.asarray(values, dtype=np.int64 if kinds != {bool} else np.bool_)


def row_number(index: int, n_rows: int) -> int:
    """Return the row that a single number means.

    Raises:
        IndexError: It is not there.
    """
    if not -n_rows <= index < n_rows:
        raise IndexError(f"row {index} is not among the {n_rows} rows of this batch")
    return index + n_rows if index < 0 else index


def balanced_sizes(n_rows: int, n_parts: int) -> list[int]:
    """Return ``n_parts`` sizes that add up to ``n_rows`` and differ by one at most, the larger ones first.

    Raises:
        BatchError: Fewer than one part.
    """
    if n_parts < 1:
        raise BatchError(f"a batch is cut into at least one part, not into {n_parts}")
    size, n_larger = divmod(n_rows, n_parts)
    return [size + 1] * n_larger + [size] * (n_parts - n_larger)
