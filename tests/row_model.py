"""What the rows of a call must come to, without any cluster and any padding: the model that groups are held to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from core import DataProto
from tests.group_workers import behave

BEHAVIOURS = (
    "keep",
    "add column",
    "interleave",
    "tile",
    "drop",
    "reorder",
    "fresh",
    "fresh interleaved",
    "list",
    "metric",
    "columns",
    "none",
)


def rows(n_rows: int, auto_padding: bool = False) -> DataProto:
    """Make a batch whose rows carry ids, as a tensor and as objects."""
    numbers = torch.arange(n_rows, dtype=torch.float32)
    return DataProto.from_dict(
        tensors={"id": numbers.reshape(n_rows, 1)},
        non_tensors={"name": [f"row {row}" for row in range(n_rows)]},
        meta_info={"kept": "as it is"},
        auto_padding=auto_padding,
    )


def real_shares(n_rows: int, n_parts: int, padded: bool) -> list[tuple[int, int]]:
    """Return start and end of the real rows of each rank: filled from the front, or balanced."""
    size, rest = divmod(n_rows, n_parts)
    if padded:
        full = size + (rest > 0)
        return [(min(part * full, n_rows), min((part + 1) * full, n_rows)) for part in range(n_parts)]
    ends = [sum(size + (part < rest) for part in range(upto)) for upto in range(n_parts + 1)]
    return list(pairwise(ends))


def plain(value: Any) -> Any:
    """Return a result as lists, with its columns by name, that can be compared."""
    if isinstance(value, DataProto):
        if value.row_ids is not None:
            raise AssertionError("row ids must not reach the driver")
        tensors = {} if value.batch is None else {key: column.tolist() for key, column in value.batch.items()}
        return {**tensors, **{key: column.tolist() for key, column in value.non_tensor_batch.items()}}
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(column) for key, column in value.items()}
    return value


def joined(parts: list[Any]) -> Any:
    """Join the model's parts as the call joins its ranks' results."""
    if parts[0] is None:
        return None
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    return {key: [row for part in parts for row in part[key]] for key in parts[0]}


def agrees(got: Any, how: str, n_rows: int, shares: list[tuple[int, int]]) -> bool:
    """Compare with what the method makes of the real rows of each rank, without any padding."""
    if how == "metric":
        return isinstance(got, list) and len(got) == len(shares)
    whole = rows(n_rows)
    return bool(plain(got) == joined([plain(behave(whole[start:stop], how)) for start, stop in shares]))
