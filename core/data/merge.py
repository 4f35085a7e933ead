"""The union of two batches of the same rows: first everything is checked, then a new one is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict, TensorDictBase

from core.data.columns import Columns
from core.data.equality import values_equal
from core.data.objects import Array
from core.errors import BatchError, MergeConflictError


def check_union(one: Columns, other: Columns, meta: Mapping[str, Any], other_meta: Mapping[str, Any]) -> None:
    """Make sure that two batches can be united.

    Raises:
        BatchError: Different numbers of rows, or a name that is a tensor here and an array there.
        MergeConflictError: A key with another value.
    """
    if _has_rows(one) and _has_rows(other) and one.n_rows != other.n_rows:
        raise BatchError(f"batches of {one.n_rows} and {other.n_rows} rows cannot be united")
    _check_tensors(one.batch, other.batch, "batch")
    _check_arrays(one.arrays, other.arrays, "non_tensor_batch")
    for key in meta.keys() & other_meta.keys():
        if not values_equal(meta[key], other_meta[key]):
            raise MergeConflictError(f"meta_info key {key!r} has different values in the two batches", key=str(key))


def _has_rows(columns: Columns) -> bool:
    return columns.batch is not None or bool(columns.arrays)


def _check_tensors(one: TensorDictBase | None, other: TensorDictBase | None, where: str) -> None:
    if one is None or other is None:
        return
    for key in sorted(set(one.keys()) & set(other.keys())):
        if not values_equal(one.get(key), other.get(key)):
            raise MergeConflictError(
                f"`{key}` in tensor_dict1 and tensor_dict2 are not the same object. ({where})", key=key
            )


def _check_arrays(one: Mapping[str, Array], other: Mapping[str, Array], where: str) -> None:
    for key in one:
        if key in other and not values_equal(one[key], other[key]):
            raise MergeConflictError(
                f"`{key}` in tensor_dict1 and tensor_dict2 are not the same object. ({where})", key=key
            )


def union_columns(one: Columns, other: Columns) -> Columns:
    """Return the columns of both, those of ``one`` where both have a key; the row ids of ``one`` if it has rows."""
    batch = one.batch
    if batch is None:
        # An empty TensorDict only says how many rows there are; arrays that are here already say so too.
        says_more = other.batch is not None and (not one.arrays or len(list(other.batch.keys())) > 0)
        batch = other.batch.copy() if says_more and other.batch is not None else None
    elif other.batch is not None:
        known = set(batch.keys())
        new = {key: column for key, column in other.batch.items() if key not in known}
        batch = TensorDict({**dict(batch.items()), **new}, batch_size=batch.batch_size, device=batch.device)
    return Columns(batch, {**one.arrays, **_new(other.arrays, one.arrays)}, (one if _has_rows(one) else other).row_ids)


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
