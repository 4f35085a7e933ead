"""A batch as something else: as text for people, and as one TensorDict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from core.data.objects import Array, rows_of
from core.data.weight import payload_bytes
from core.errors import BatchError


def size_line(batch: TensorDictBase | None, arrays: Mapping[str, Array], prefix: str) -> str:
    """Return one line with the size of tensors and arrays in GiB."""
    tensor_gib, array_gib = payload_bytes(batch) / 2**30, payload_bytes(dict(arrays)) / 2**30
    text = f"Size of tensordict: {tensor_gib} GB, size of non_tensor_batch: {array_gib} GB"
    return f"{prefix}, {text}" if prefix else text


def describe(batch: TensorDictBase | None, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> str:
    """Return a text that lists every column with shape, dtype and device, and the types in the meta."""
    lines = ["batch"]
    lines += _tensor_lines(batch, "  ") if batch is not None else []
    lines += ["non_tensor_batch"]
    lines += [f"  {key}: ndarray shape={array.shape} dtype={array.dtype}" for key, array in arrays.items()]
    lines += ["meta_info"]
    lines += [f"  {key}: {_type_name(value)}" for key, value in meta.items()]
    return "\n".join(lines)


def _tensor_lines(batch: Any, indent: str) -> Iterator[str]:
    for key, column in batch.items():
        if isinstance(column, torch.Tensor):
            rows = f" ({column.size(0)} rows, nested)" if column.is_nested else ""
            shape = f"{column.size(0)} x ragged" if column.is_nested else str(tuple(column.shape))
            yield f"{indent}{key}: Tensor shape={shape} dtype={column.dtype} device={column.device}{rows}"
        elif isinstance(column, (NonTensorData, NonTensorStack)):
            yield f"{indent}{key}: {type(column).__name__}"
        else:
            yield f"{indent}{key}: {type(column).__name__}"
            yield from _tensor_lines(column, indent + "  ")


def _type_name(value: object, depth: int = 4) -> str:
    name = type(value).__name__
    if depth == 0:
        return name
    if isinstance(value, dict):
        inner = ", ".join(f"{key}: {_type_name(item, depth - 1)}" for key, item in value.items())
        return f"{name}{{{inner}}}"
    if isinstance(value, (list, tuple, set, frozenset)):
        kinds = sorted({_type_name(item, depth - 1) for item in value})
        return f"{name}[{' | '.join(kinds)}]"
    if isinstance(value, torch.Tensor):
        return f"{name} dtype={value.dtype} dims={value.dim()}"
    return name


def as_tensordict(
    batch: TensorDictBase | None, arrays: Mapping[str, Array], meta: Mapping[str, Any], n_rows: int
) -> TensorDict:
    """Return tensors, arrays (one stacked object per row) and meta (lone objects) as one TensorDict.

    Raises:
        BatchError: A name that stands for two things.
    """
    columns: dict[str, Any] = {} if batch is None else dict(batch.items())
    for key, array in arrays.items():
        _check_free(key, columns)
        columns[key] = NonTensorStack(*(NonTensorData(row) for row in rows_of(array)))
    for key, value in meta.items():
        _check_free(key, columns)
        columns[key] = NonTensorData(value, batch_size=[n_rows])
    return TensorDict(columns, batch_size=[n_rows], device=None if batch is None else batch.device)


def _check_free(key: str, columns: Mapping[str, Any]) -> None:
    if key in columns:
        raise BatchError(f"{key!r} names two things in this batch; rename one before to_tensordict")
