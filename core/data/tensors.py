"""The same cut for every kind of column: rows of tensors, nested tensors, TensorDicts and arrays.

Three verbs: ``take`` rows by a list of numbers (copies), ``cut`` a range of rows (views), ``cat`` rows end to end.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from core.data.equality import values_equal
from core.data.join_buffer import joined_memory
from core.data.kinds import check_array, check_tensor
from core.data.memory import Bytes, plain_memory
from core.data.objects import Array, ListRows, fill_objects, is_list_rows, one_axis
from core.data.ragged import RaggedMemo, cat_jagged, cut_jagged, is_jagged, stack_strided, take_jagged
from core.errors import BatchError, MergeConflictError

_LARGE_BYTES = 1 << 20
_INDEXABLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""A type of each width that torch can index everywhere."""


def take_tensor(tensor: torch.Tensor, index: torch.Tensor, memo: RaggedMemo) -> torch.Tensor:
    """Return the rows ``index`` (int64) of any tensor with rows, as a copy."""
    if is_jagged(tensor):
        return take_jagged(tensor, index, memo)
    if tensor.is_nested:
        rows = tensor.unbind()
        return stack_strided([rows[number] for number in index.tolist()], tensor)
    on_device = index.to(tensor.device)
    try:
        return tensor.index_select(0, on_device)
    except (RuntimeError, NotImplementedError):
        # Torch cannot index some types (unsigned 16 to 64 bits, 4-bit floats and integers): integers as wide it can.
        as_wide = _INDEXABLE.get(tensor.dtype.itemsize)
        if as_wide is None or tensor.is_quantized:
            raise
        return tensor.contiguous().view(as_wide).index_select(0, on_device).view(tensor.dtype)


def cut_tensor(tensor: torch.Tensor, start: int, stop: int, memo: RaggedMemo) -> torch.Tensor:
    """Return the rows ``start`` to ``stop`` of any tensor with rows, as a view where torch has one."""
    if is_jagged(tensor):
        return cut_jagged(tensor, start, stop, memo)
    if tensor.is_nested:
        return stack_strided(tensor.unbind()[start:stop], tensor)
    if tensor.layout is torch.sparse_coo:
        return tensor.index_select(0, torch.arange(start, stop, device=tensor.device))
    return tensor[start:stop]


def cat_tensors(tensors: Sequence[torch.Tensor], key: str, memo: RaggedMemo) -> torch.Tensor:
    """Join tensors along their rows.

    Raises:
        BatchError: Shapes, layouts or devices differ, or a tensor is of a type that cannot be joined.
        MergeConflictError: Their dtypes differ and the common one cannot hold all values.
    """
    for tensor in tensors:
        check_tensor(tensor, key)
    if len(tensors) == 1:
        return tensors[0]
    first = tensors[0]
    if len({tensor.dtype for tensor in tensors}) > 1 and not _survive_promotion(tensors):
        raise _different_dtypes(key, [tensor.dtype for tensor in tensors])
    if any(tensor.is_nested for tensor in tensors):
        if len({(tensor.is_nested, tensor.layout) for tensor in tensors}) > 1:
            raise BatchError(f"key {key!r} is a nested tensor in some parts and not, or of another layout, in others")
        if is_jagged(first):
            return cat_jagged(tensors, memo)
        return stack_strided([row for tensor in tensors for row in tensor.unbind()], first)
    raw = _cat_memory(tensors) if first.layout is torch.strided else None
    if raw is not None:
        n_rows = sum(tensor.shape[0] for tensor in tensors)
        return torch.from_numpy(raw).view(first.dtype).reshape(n_rows, *first.shape[1:])
    try:
        return torch.cat(list(tensors), dim=0)
    except RuntimeError as error:
        shapes = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
        raise BatchError(f"the parts' tensors of key {key!r} cannot be joined: {shapes}") from error


def _cat_memory(columns: Sequence[torch.Tensor] | Sequence[Array]) -> Bytes | None:
    """Join large columns as the bytes that they are; None for columns that do not fit or are more than bytes."""
    first = columns[0]
    if sum(column.nbytes for column in columns) < _LARGE_BYTES:
        return None
    if any(column.dtype != first.dtype or column.shape[1:] != first.shape[1:] for column in columns):
        return None
    parts = [part for column in columns if (part := plain_memory(column)) is not None]
    return joined_memory(parts) if len(parts) == len(columns) else None


def _survive_promotion(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether every value stays what it is in the dtype that torch would give the joined tensor."""
    flat = [tensor.values() if tensor.is_nested else tensor for tensor in tensors]
    try:
        common = functools.reduce(torch.promote_types, [tensor.dtype for tensor in flat])
        return all(torch.equal(part.to(common).to(part.dtype).nan_to_num(), part.nan_to_num()) for part in flat)
    except (RuntimeError, NotImplementedError):
        return False


def _different_dtypes(key: str, dtypes: Sequence[object]) -> MergeConflictError:
    names = ", ".join(str(dtype) for dtype in dtypes)
    return MergeConflictError(f"key {key!r} has different dtypes in the parts: {names}; convert them first", key=key)


def take_tensordict(batch: Any, index: torch.Tensor, memo: RaggedMemo) -> Any:
    """Return the rows ``index`` of a TensorDict, nested ones and non-tensor values too."""
    if type(batch) is not TensorDict:
        return batch[index]
    columns = {
        key: take_tensor(column, index, memo)
        if isinstance(column, torch.Tensor)
        else take_tensordict(column, index, memo)
        for key, column in batch.items()
    }
    return like(batch, columns, index.shape[0])


def cut_tensordict(batch: Any, start: int, stop: int, memo: RaggedMemo) -> Any:
    """Return the rows ``start`` to ``stop`` of a TensorDict; its tensors are views."""
    if type(batch) is not TensorDict:
        return batch[start:stop]
    columns = {
        key: cut_tensor(column, start, stop, memo)
        if isinstance(column, torch.Tensor)
        else cut_tensordict(column, start, stop, memo)
        for key, column in batch.items()
    }
    return like(batch, columns, stop - start)


def like(batch: Any, columns: dict[str, Any], n_rows: int) -> TensorDict:
    """Build a TensorDict of ``n_rows`` rows with the device and inner batch dimensions of ``batch``."""
    return TensorDict(columns, batch_size=[n_rows, *batch.batch_size[1:]], device=batch.device)


def cat_tensordicts(batches: Sequence[Any], memo: RaggedMemo, path: str = "") -> Any:
    """Join TensorDicts of equal keys along their rows.

    Raises:
        MergeConflictError: A key is missing in a part, or is of another kind there.
        BatchError: Shapes differ.
    """
    first = batches[0]
    if len(batches) == 1:
        return first.copy()
    if all(isinstance(batch, (NonTensorData, NonTensorStack)) for batch in batches):
        return _cat_non_tensors(batches)
    if any(type(batch) is not TensorDict for batch in batches):
        return torch.cat(list(batches), dim=0)
    check_same_keys([set(batch.keys()) for batch in batches], "batch", path)
    columns: dict[str, Any] = {}
    for key in list(first.keys()):
        parts = [batch.get(key) for batch in batches]
        n_tensors = sum(isinstance(part, torch.Tensor) for part in parts)
        if n_tensors not in (0, len(parts)):
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise MergeConflictError(f"key {path + key!r} is of different kinds in the parts: {kinds}", key=path + key)
        join = cat_tensors(parts, path + key, memo) if n_tensors else cat_tensordicts(parts, memo, f"{path}{key}.")
        columns[key] = join
    return like(first, columns, sum(batch.batch_size[0] for batch in batches))


def _cat_non_tensors(batches: Sequence[Any]) -> Any:
    """Join non-tensor values: one value that stands for all rows of every part stays one, if the parts agree on it."""
    n_rows = sum(batch.batch_size[0] for batch in batches)
    filled = [batch for batch in batches if batch.batch_size[0]] or batches[:1]
    lone = [batch.data for batch in filled if isinstance(batch, NonTensorData)]
    if len(lone) == len(filled) and all(values_equal(value, lone[0]) for value in lone[1:]):
        return NonTensorData(lone[0], batch_size=[n_rows, *batches[0].batch_size[1:]])
    rows = [row for batch in filled for row in (batch[number] for number in range(batch.batch_size[0]))]
    return NonTensorStack(*rows) if rows else filled[0]


def check_same_keys(keys: Sequence[set[str]], what: str, path: str = "") -> None:
    """Make sure that every part has the same keys.

    Raises:
        MergeConflictError: It names the first key that a part lacks, and that part.
    """
    union = set().union(*keys)
    for number, present in enumerate(keys):
        missing = sorted(union - present)
        if missing:
            raise MergeConflictError(
                f"part {number} of {len(keys)} has no key {path + missing[0]!r} in its {what}, other parts have; "
                f"give every part the same keys",
                key=path + missing[0],
            )


def cat_arrays(arrays: Sequence[Array], key: str) -> Array:
    """Join arrays along their rows, in the very dtype that all have.

    Lists of one length in each part stay ``ListRows`` if all parts' are equally long, else they become an array of one
    axis, as do the rows of object arrays of different widths.

    Raises:
        BatchError: Shapes differ, or an array is of a type that cannot be joined.
        MergeConflictError: Their dtypes differ and the common one cannot hold all values.
    """
    for array in arrays:
        check_array(array, key)
    if len(arrays) == 1:
        return arrays[0]
    if any(map(is_list_rows, arrays)):
        if all(map(is_list_rows, arrays)) and len({array.shape[1:] for array in arrays}) == 1:
            return _end_to_end(arrays).view(ListRows)
        arrays = [one_axis(array) for array in arrays]
    is_mixed = len({array.dtype for array in arrays}) > 1
    has_objects = any(array.dtype == object for array in arrays)
    if is_mixed and not has_objects and not _arrays_survive_promotion(arrays):
        raise _different_dtypes(key, [array.dtype for array in arrays])
    raw = _cat_memory(arrays)
    if raw is not None:
        n_rows = sum(array.shape[0] for array in arrays)
        return raw.view(arrays[0].dtype).reshape(n_rows, *arrays[0].shape[1:])
    filled = [array for array in arrays if array.shape[0]]
    if has_objects and (is_mixed or len({array.shape[1:] for array in filled}) > 1):
        return np.concatenate([_as_rows(array) for array in filled]) if filled else arrays[0]
    if len({array.shape[1:] for array in arrays}) == 1:
        return _end_to_end(arrays)
    if len({array.shape[1:] for array in filled}) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise BatchError(f"the parts' arrays of key {key!r} cannot be joined: shapes {shapes}")
    return _end_to_end(filled) if filled else arrays[0]


def _end_to_end(arrays: Sequence[Array]) -> Array:
    """Join arrays of one width; numpy by itself would make byte order and field offsets the machine's own."""
    dtype = arrays[0].dtype
    if any(array.dtype != dtype for array in arrays):
        return np.concatenate(list(arrays))
    n_rows = sum(array.shape[0] for array in arrays)
    return np.concatenate(list(arrays), out=np.empty((n_rows, *arrays[0].shape[1:]), dtype))


def _arrays_survive_promotion(arrays: Sequence[Array]) -> bool:
    kinds = {array.dtype.kind for array in arrays}
    if not (kinds <= set("biufc") or (len(kinds) == 1 and kinds <= set("USmM"))):
        return False
    common = np.result_type(*arrays)
    if common.kind in "US":
        return True
    # Dates of a finer unit end earlier: the year 3000 in nanoseconds is some other year.
    return common.kind in "biufcmM" and all(
        np.array_equal(array.astype(common).astype(array.dtype), array, equal_nan=True) for array in arrays
    )


def _as_rows(array: Array) -> Array:
    """Return rows as objects: numpy's own conversion makes a date of nanoseconds a plain number."""
    if array.ndim == 1:
        return array if array.dtype == object else fill_objects(list(array))
    return fill_objects([row.tolist() if array.dtype == object else row for row in array])
