"""Making columns from what callers have: dicts of tensors, arrays and lists. Nothing given is ever changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from core.data.kinds import check_array, check_tensor
from core.data.objects import Array, array_of_rows, object_array
from core.errors import BatchError, MissingKeyError


def batch_of(tensors: Mapping[str, Any], num_batch_dims: int = 1) -> TensorDict:
    """Put tensors (and nested TensorDicts or dicts) of one number of rows into a TensorDict.

    Raises:
        BatchError: A value is not a tensor, or the first dimensions differ; it names the keys.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for key, value in tensors.items():
        if isinstance(value, Mapping) and not isinstance(value, TensorDictBase):
            value = batch_of(value)
        if not isinstance(value, (torch.Tensor, TensorDictBase)):
            raise BatchError(f"tensors[{key!r}] is a {type(value).__name__}, not a tensor; arrays go into non_tensors")
        if isinstance(value, torch.Tensor):
            check_tensor(value, f"tensors[{key!r}]")
        sizes[key] = _leading_sizes(key, value, num_batch_dims)
    wanted = next(iter(sizes.values()))
    for key, size in sizes.items():
        if size != wanted:
            first = next(iter(sizes))
            raise BatchError(f"tensors disagree about the rows: {first!r} has {wanted}, {key!r} has {size}")
    if num_batch_dims != 1:
        raise BatchError(f"a DataProto has one batch dimension, not {num_batch_dims}; fold_batch_dim makes more")
    # The copy gives inner TensorDicts dicts of their own, too.
    return TensorDict(dict(tensors), batch_size=list(wanted)).copy()


def _leading_sizes(key: str, value: Any, n_dims: int) -> tuple[int, ...]:
    n_present = value.batch_dims if isinstance(value, TensorDictBase) else value.dim()
    if n_dims < 1 or n_present < n_dims:
        raise BatchError(f"tensors[{key!r}] has {n_present} dimensions, {max(n_dims, 1)} of them should be rows")
    if isinstance(value, TensorDictBase):
        return tuple(int(size) for size in value.batch_size[:n_dims])
    return tuple(int(value.size(dim)) for dim in range(n_dims))


def arrays_of(non_tensors: Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays as they are, and lists as object arrays.

    Raises:
        BatchError: A value is neither, or an array of a type that cannot be a column, such as a masked one.
    """
    arrays: dict[str, Array] = {}
    for key, value in non_tensors.items():
        if isinstance(value, np.ndarray) and value.ndim:
            check_array(value, f"non_tensors[{key!r}]")
            # Of an array in a file only the values travel; what is on the driver is then of that type too.
            arrays[key] = value.view(np.ndarray) if type(value) is np.memmap else value
        elif isinstance(value, (list, tuple, range)):
            arrays[key] = object_array(list(value))
        else:
            raise BatchError(f"non_tensors[{key!r}] is a {type(value).__name__}; it must be an array or a list of rows")
    return arrays


def check_columns(batch: Any, arrays: Any) -> None:
    """Make sure that tensors and arrays are of one number of rows.

    Raises:
        BatchError: They are not, or are of wrong types; it names key and sizes.
    """
    if batch is not None:
        if not isinstance(batch, TensorDictBase):
            raise BatchError(f"batch is a {type(batch).__name__}, not a TensorDict; DataProto.from_dict takes a dict")
        if batch.batch_dims != 1:
            raise BatchError(f"a DataProto has one batch dimension, this TensorDict has size {tuple(batch.batch_size)}")
    if not isinstance(arrays, dict):
        raise BatchError(f"non_tensor_batch is a {type(arrays).__name__}, not a dict of arrays")
    first: tuple[str, int] | None = None if batch is None else ("batch", int(batch.batch_size[0]))
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            raise BatchError(f"non_tensor_batch[{key!r}] is a {type(array).__name__}, not an array with rows")
        check_array(array, f"non_tensor_batch[{key!r}]")
        first = first or (key, int(array.shape[0]))
        if array.shape[0] != first[1]:
            raise BatchError(
                f"columns disagree about the rows: {first[0]!r} has {first[1]}, non_tensor_batch[{key!r}] has "
                f"{array.shape[0]}"
            )


def check_keys(wanted: Sequence[str], present: Sequence[str], where: str) -> None:
    """Make sure that all ``wanted`` keys are there.

    Raises:
        MissingKeyError: The first that is not.
    """
    for key in wanted:
        if key not in present:
            names = ", ".join(map(str, present)) or "none"
            raise MissingKeyError(
                f"{where} has no key {key!r}; it has: {names}", key=str(key), available=tuple(present)
            )


def split_tensordict(tensordict: TensorDictBase) -> tuple[dict[str, Any], dict[str, Array], dict[str, Any]]:
    """Sort a TensorDict's values: tensors, rows of other objects as arrays, and lone values as meta."""
    tensors: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    meta: dict[str, Any] = {}
    value: Any
    for key, value in tensordict.items():
        if isinstance(value, NonTensorStack):
            arrays[key] = array_of_rows(
                [item.data if isinstance(item, NonTensorData) else item.tolist() for item in value.tensordicts]
            )
        elif isinstance(value, NonTensorData):
            meta[key] = value.data
        else:
            tensors[key] = value
    return tensors, arrays, meta
