"""Functions on whole batches: padding to a divisor, folding rows, collating. None of them changes what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase

from core.data.columns import Columns
from core.data.equality import values_equal
from core.data.meta import merge_meta
from core.data.objects import array_of_rows, one_axis
from core.data.padding import cycled_numbers
from core.data.proto import DataProto, DataProtoItem
from core.data.ragged import from_parts
from core.errors import BatchError, MissingKeyError

Batch = TypeVar("Batch", bound=DataProto)


def pad_dataproto_to_divisor(data: Batch, size_divisor: int) -> tuple[Batch, int]:
    """Return a batch whose rows divide by ``size_divisor``, and how many rows were added.

    Added rows are the batch's own from the first on, again and again if need be; no rows divide already.

    Raises:
        BatchError: A divisor below 1.
    """
    numbers = cycled_numbers(len(data), size_divisor)
    n_added = numbers.shape[0] - len(data)
    return (data.select_idxs(numbers) if n_added else data.slice()), n_added


def unpad_dataproto(data: Batch, pad_size: int) -> Batch:
    """Return the batch without its last ``pad_size`` rows.

    Raises:
        BatchError: A negative size, or more than there are rows.
    """
    if not 0 <= pad_size <= len(data):
        raise BatchError(f"{pad_size} padding rows cannot be taken off a batch of {len(data)} rows")
    return data.slice(0, len(data) - pad_size)


def fold_batch_dim(data: Batch, new_batch_size: int) -> Batch:
    """Return a batch of ``new_batch_size`` rows, each holding consecutive rows: ``(6, ...)`` becomes ``(3, 2, ...)``.

    Row ids are dropped: a new row stands for several.

    Raises:
        BatchError: The rows do not divide, or a column cannot be folded (a nested tensor).
    """
    n_rows = len(data)
    if new_batch_size < 1 or n_rows % new_batch_size:
        raise BatchError(f"{n_rows} rows cannot be folded into {new_batch_size} equal ones")
    size = (new_batch_size, n_rows // new_batch_size)
    return _resized(data, size, 1)


def unfold_batch_dim(data: Batch, batch_dims: int = 2) -> Batch:
    """Undo ``fold_batch_dim``: ``(3, 2, ...)`` becomes ``(6, ...)``; the first ``batch_dims`` axes become the rows.

    Raises:
        BatchError: A column has fewer axes, or they differ between columns.
    """
    if batch_dims < 1:
        raise BatchError(f"at least one axis is unfolded into rows, not {batch_dims}")
    shapes = dict(_leading_shapes({**(data.non_tensor_batch or {}), "batch": data.batch}, batch_dims))
    if not shapes:
        return data.slice()
    first = next(iter(shapes))
    for key, shape in shapes.items():
        if len(shape) < batch_dims or shape != shapes[first]:
            raise BatchError(
                f"{key!r} begins with {shape}, {first!r} with {shapes[first]}: they cannot be unfolded alike"
            )
    n_rows = int(torch.Size(shapes[first]).numel())
    return _resized(data, (n_rows,), batch_dims)


def _resized(data: Batch, size: tuple[int, ...], n_axes: int) -> Batch:
    """Reshape the first ``n_axes`` axes of every column to ``size``."""
    batch = None
    if data.batch is not None:
        batch = _resized_tensors(data.batch, size, n_axes)
    columns = {key: one_axis(array) for key, array in (data.non_tensor_batch or {}).items()}
    arrays = {key: array.reshape(*size, *array.shape[n_axes:]) for key, array in columns.items()}
    return data._derive(Columns(batch, arrays, None))


def _resized_tensors(batch: TensorDictBase, size: tuple[int, ...], n_axes: int) -> TensorDict:
    columns: dict[str, Any] = {}
    for key, column in batch.items():
        if isinstance(column, torch.Tensor) and column.layout is torch.strided and not column.is_nested:
            columns[key] = column.reshape(*size, *column.shape[n_axes:])
        elif type(column) is TensorDict:
            columns[key] = _resized_tensors(column, size, n_axes)
        else:
            raise BatchError(f"{key!r} is a nested, sparse or non-tensor column; its rows cannot be folded or unfolded")
    return TensorDict(columns, batch_size=size[:1], device=batch.device)


def _leading_shapes(columns: Mapping[str, Any], n_axes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for key, column in columns.items():
        if isinstance(column, TensorDictBase):
            yield from _leading_shapes(dict(column.items()), n_axes)
        elif column is not None and not getattr(column, "is_nested", False):
            yield key, tuple(column.shape[:n_axes])


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn ``[{"a": 1}, {"a": 2}]`` into ``{"a": [1, 2]}``; all dicts must have the same keys.

    Raises:
        MissingKeyError: One lacks a key that another has; it names both.
    """
    keys = list(dict.fromkeys(key for entry in list_of_dict for key in entry))
    for number, entry in enumerate(list_of_dict):
        for key in keys:
            if key not in entry:
                raise MissingKeyError(f"entry {number} has no {key!r}, others have", key=key, available=tuple(entry))
    return {key: [entry[key] for entry in list_of_dict] for key in keys}


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """Put single rows, as ``batch[i]`` gives them, together to a batch again.

    Meta that is equal on all rows is kept, other meta is merged as ``concat`` does.

    Raises:
        BatchError: No row, or rows that cannot be joined.
    """
    if not x:
        raise BatchError("collate_fn needs at least one row, got none")
    batches = [item.batch for item in x if item.batch is not None]
    if batches and len(batches) < len(x):
        raise BatchError(f"{len(x) - len(batches)} of {len(x)} rows have no tensors, the others have")
    columns = list_of_dict_to_dict_of_list([item.non_tensor_batch for item in x])
    metas = [item.meta_info for item in x]
    same = all(values_equal(metas[0], meta) for meta in metas)
    batch = _stack_rows(batches) if batches else None
    return DataProto(
        batch,
        {key: array_of_rows(rows) for key, rows in columns.items()},
        dict(metas[0]) if same else merge_meta(metas),
    )


def _stack_rows(rows: Sequence[Any]) -> TensorDict:
    """Stack TensorDicts of single rows; tensors whose sizes differ in one dimension become jagged."""
    columns: dict[str, Any] = {}
    for key, values in list_of_dict_to_dict_of_list([dict(row.items()) for row in rows]).items():
        if all(isinstance(value, torch.Tensor) for value in values):
            columns[key] = _stack_tensors(key, values)
        elif all(type(value) is TensorDict for value in values):
            columns[key] = _stack_rows(values)
        else:
            columns[key] = torch.stack(values, dim=0)
    return TensorDict(columns, batch_size=[len(rows)], device=rows[0].device)


def _stack_tensors(key: str, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    shapes = [tuple(row.shape) for row in rows]
    if len(set(shapes)) == 1:
        return torch.stack(list(rows))
    ragged = [dim for dim, sizes in enumerate(zip(*shapes, strict=False)) if len(set(sizes)) > 1]
    if len({len(shape) for shape in shapes}) > 1 or len(ragged) != 1:
        raise BatchError(f"rows of {key!r} have shapes {shapes[:8]}: they can be neither stacked nor made jagged")
    dim = ragged[0]
    ends = torch.tensor([shape[dim] for shape in shapes], device=rows[0].device).cumsum(0)
    return from_parts(torch.cat(list(rows), dim=dim), torch.cat([ends.new_zeros(1), ends]), dim + 1)
