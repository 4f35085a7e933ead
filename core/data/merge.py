"""The union of two batches of the same rows: first everything is checked, then a new one is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict, TensorDictBase

from core.data.columns import Columns
from core.data.equality import values_equal
from core.data.objects import Array
from core.errors import BatchError, MergeConflictError


def check_union(first: Columns, second: Columns, meta: Mapping[str, Any], second_meta: Mapping[str, Any]) -> None:
    """Make sure that two batches can be united.

    Raises:
        BatchError: Different numbers of rows, or a name that is a tensor here and an array there.
        MergeConflictError: A key with another value.
    """
    if _has_rows(first) and _has_rows(second) and first.n_rows != second.n_rows:
        raise BatchError(f"batches of {first.n_rows} and {second.n_rows} rows cannot be united")
    _check_tensors(first.batch, second.batch, "batch")
    _check_arrays(first.arrays, second.arrays, "non_tensor_batch")
    for key in meta.keys() & second_meta.keys():
        if not values_equal(meta[key], second_meta[key]):
            raise MergeConflictError(f"meta_info key {key!r} has different values in the two batches", key=str(key))


def _has_rows(columns: Columns) -> bool:
    return columns.batch is not None or bool(columns.arrays)


def _check_tensors(first: TensorDictBase | None, second: TensorDictBase | None, where: str) -> None:
    if first is None or second is None:
        return
    for key in sorted(set(first.keys()) & set(second.keys())):
        if not values_equal(first.get(key), second.get(key)):
            raise MergeConflictError(
                f"`{key}` in tensor_dict1 and tensor_dict2 are not the same object. ({where})", key=key
            )


def _check_arrays(first: Mapping[str, Array], second: Mapping[str, Array], where: str) -> None:
    for key in first:
        if key in second and not values_equal(first[key], second[key]):
            raise MergeConflictError(
                f"`{key}` in tensor_dict1 and tensor_dict2 are not the same object. ({where})", key=key
            )


def union_columns(first: Columns, second: Columns) -> Columns:
    """Return the columns of both, those of ``first`` where both have a key; the row ids of ``first`` if it has rows."""
    batch = first.batch
    if batch is None:
        # An empty TensorDict only says how many rows there are; arrays that are here already say so too.
        adds_columns = second.batch is not None and (not first.arrays or len(list(second.batch.keys())) > 0)
        batch = second.batch.copy() if adds_columns and second.batch is not None else None
    elif second.batch is not None:
        known = set(batch.keys())
        new = {key: column for key, column in second.batch.items() if key not in known}
        batch = TensorDict({**dict(batch.items()), **new}, batch_size=batch.batch_size, device=batch.device)
    return Columns(
        batch, {**first.arrays, **_new(second.arrays, first.arrays)}, (first if _has_rows(first) else second).row_ids
    )


def _new(arrays: Mapping[str, Array], known: Mapping[str, Array]) -> dict[str, Array]:
    return {key: array for key, array in arrays.items() if key not in known}


def union_tensor_dict(tensor_dict1: TensorDictBase, tensor_dict2: TensorDictBase) -> TensorDictBase:
    """Add the keys of the second TensorDict to the first, in place, and return the first.

    Raises:
        BatchError: Different batch sizes.
        MergeConflictError: A key of both with another value; nothing was changed.
    """
    if tensor_dict1.batch_size != tensor_dict2.batch_size:
        raise BatchError(
            f"TensorDicts of batch sizes {tuple(tensor_dict1.batch_size)} and {tuple(tensor_dict2.batch_size)} "
            f"cannot be united"
        )
    _check_tensors(tensor_dict1, tensor_dict2, "tensors")
    for key in set(tensor_dict2.keys()) - set(tensor_dict1.keys()):
        tensor_dict1.set(key, tensor_dict2.get(key))
    return tensor_dict1


def union_numpy_dict(tensor_dict1: dict[str, Array], tensor_dict2: Mapping[str, Array]) -> dict[str, Array]:
    """Add the keys of the second dict of arrays to the first, in place, and return the first.

    Raises:
        MergeConflictError: A key of both with another value; nothing was changed.
    """
    _check_arrays(tensor_dict1, tensor_dict2, "arrays")
    tensor_dict1.update(_new(tensor_dict2, tensor_dict1))
    return tensor_dict1
