"""Rows of nested tensors: of the jagged layout by offsets, of the strided layout part by part.

Columns of a batch that share one offsets tensor have, for torch, the same ragged size: only then can they be added or
compared. Every function here takes a ``RaggedMemo`` that lives as long as one operation on a batch and hands equal
offsets to columns that had equal ones before.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import torch

from core.errors import BatchError


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """New ``offsets`` of shape ``(rows + 1,)`` and the ``positions`` of their elements among the old values."""

    offsets: torch.Tensor
    positions: torch.Tensor


RaggedMemo: TypeAlias = dict[tuple[object, ...], RaggedRows | torch.Tensor]


def is_jagged(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is nested with the jagged layout."""
    return tensor.is_nested and tensor.layout is torch.jagged


def ragged_dim(tensor: torch.Tensor) -> int:
    """Return which dimension of a jagged tensor is the ragged one."""
    return next(dim for dim, size in enumerate(tensor.shape) if not isinstance(size, int))


class _Jagged(Protocol):
    """What a jagged tensor has beyond a tensor, which torch does not type."""

    def offsets(self) -> torch.Tensor: ...
    def lengths(self) -> torch.Tensor | None: ...


def ragged_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a jagged tensor's offsets of shape ``(rows + 1,)``, and its lengths if it has holes."""
    jagged = cast(_Jagged, tensor)
    return jagged.offsets(), jagged.lengths()


def from_parts(values: torch.Tensor, offsets: torch.Tensor, dim: int) -> torch.Tensor:
    """Build a jagged tensor whose dimension ``dim`` is ragged over ``values``."""
    return torch.nested.nested_tensor_from_jagged(values, offsets=offsets, jagged_dim=dim)


def take_jagged(tensor: torch.Tensor, index: torch.Tensor, memo: RaggedMemo) -> torch.Tensor:
    """Return the rows ``index`` (int64, any order, repeats allowed) of a jagged tensor."""
    rows = _gathered(tensor, index, memo)
    dim = ragged_dim(tensor)
    return from_parts(tensor.values().index_select(dim - 1, rows.positions), rows.offsets, dim)


def _gathered(tensor: torch.Tensor, index: torch.Tensor, memo: RaggedMemo) -> RaggedRows:
    offsets, lengths = ragged_parts(tensor)
    key = ("take", id(offsets), id(lengths), id(index))
    known = memo.get(key)
    if isinstance(known, RaggedRows):
        return known
    index = index.to(offsets.device)
    sizes = (offsets.diff() if lengths is None else lengths)[index]
    ends = sizes.cumsum(0)
    new_offsets = torch.cat([ends.new_zeros(1), ends]).to(offsets.dtype)
    starts = offsets[:-1][index]
    shifts = torch.repeat_interleave(starts - new_offsets[:-1], sizes)
    rows = RaggedRows(new_offsets, torch.arange(shifts.shape[0], device=shifts.device) + shifts)
    memo[key] = rows
    return rows


def cut_jagged(tensor: torch.Tensor, start: int, stop: int, memo: RaggedMemo) -> torch.Tensor:
    """Return the rows ``start`` to ``stop`` of a jagged tensor: its values are a view where they lie in one piece."""
    offsets, lengths = ragged_parts(tensor)
    if lengths is not None:
        key = ("range", start, stop)
        index = memo.setdefault(key, torch.arange(start, stop))
        assert isinstance(index, torch.Tensor)
        return take_jagged(tensor, index, memo)
    first, last = int(offsets[start]), int(offsets[stop])
    new_offsets = memo.setdefault(("cut", id(offsets), start, stop), offsets[start : stop + 1] - offsets[start])
    assert isinstance(new_offsets, torch.Tensor)
    dim = ragged_dim(tensor)
    return from_parts(tensor.values().narrow(dim - 1, first, last - first), new_offsets, dim)


def cat_jagged(tensors: Sequence[torch.Tensor], memo: RaggedMemo) -> torch.Tensor:
    """Join jagged tensors along their rows.

    Raises:
        BatchError: They are ragged in different dimensions.
    """
    dims = {ragged_dim(tensor) for tensor in tensors}
    if len(dims) > 1:
        raise BatchError(f"jagged tensors that are ragged in different dimensions {sorted(dims)} cannot be joined")
    dim = dims.pop()
    whole = [tight(tensor, memo) for tensor in tensors]
    values = torch.cat([tensor.values() for tensor in whole], dim=dim - 1)
    key = ("cat", *(id(source) for tensor in tensors for source in ragged_parts(tensor)))
    if key not in memo:
        sizes = torch.cat([ragged_parts(tensor)[0].diff() for tensor in whole])
        memo[key] = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    offsets = memo[key]
    assert isinstance(offsets, torch.Tensor)
    return from_parts(values, offsets, dim)


def tight(tensor: torch.Tensor, memo: RaggedMemo) -> torch.Tensor:
    """Return the same jagged rows without holes or unused values around them; itself when there are none."""
    offsets, lengths = ragged_parts(tensor)
    n_values = tensor.values().shape[ragged_dim(tensor) - 1]
    if lengths is None:
        if int(offsets[0]) == 0 and int(offsets[-1]) == n_values:
            return tensor
        return cut_jagged(tensor, 0, int(tensor.size(0)), memo)
    key = ("range", 0, int(tensor.size(0)))
    index = memo.setdefault(key, torch.arange(int(tensor.size(0))))
    assert isinstance(index, torch.Tensor)
    return take_jagged(tensor, index, memo)


def stack_strided(rows: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Build a nested tensor of the strided layout from rows; ``like`` gives dtype and device."""
    with warnings.catch_warnings():
        # Torch warns once that nested tensors are a prototype: the warning was shown when ``like`` was made.
        warnings.filterwarnings("ignore", message=".*nested tensors is in prototype.*", category=UserWarning)
        return torch.nested.nested_tensor(list(rows), dtype=like.dtype, device=like.device, layout=torch.strided)
