"""Rows of any value: count, select, split and join them. ``identity`` separates real rows from padding.

Values with rows are DataProto, TensorDict, tensors, arrays, lists, dicts of tensors or arrays of one length, and any
type that has ``chunk`` and ``concat``; its rows are counted if it has a length. Everything else (a number, a dict of
metrics, None) has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.kinds import check_tensor, check_tensors
from core.data.proto import DataProto
from core.data.shares import Share
from core.data.tensors import (
    cat_arrays,
    cat_tensordicts,
    cat_tensors,
    cut_tensor,
    cut_tensordict,
    take_tensor,
    take_tensordict,
)
from core.errors import ShareError


def row_count(value: object) -> int | None:
    """Return how many rows ``value`` has, None when it has no rows at all or they cannot be counted."""
    if isinstance(value, DataProto):
        return len(value)
    if isinstance(value, TensorDictBase):
        return int(value.batch_size[0]) if value.batch_dims else None
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return int(value.shape[0]) if value.ndim else None
    if isinstance(value, list):
        return len(value)
    if isinstance(value, dict):
        counts = {
            row_count(column) if isinstance(column, (torch.Tensor, np.ndarray)) else None for column in value.values()
        }
        return counts.pop() if len(counts) == 1 else None
    if has_rows_protocol(value) and callable(getattr(value, "__len__", None)):
        return len(value)  # type: ignore[arg-type]
    return None


def has_rows_protocol(value: object) -> bool:
    """Return whether a value of a user's type can be cut with ``chunk`` and joined with ``concat``."""
    return all(callable(getattr(value, name, None)) for name in ("chunk", "concat"))


def is_splittable(value: object) -> bool:
    """Return whether the DP modes may cut ``value`` into shares; not lists and dicts, whose meaning is unknown."""
    if isinstance(value, (DataProto, TensorDictBase, torch.Tensor)):
        return row_count(value) is not None
    return has_rows_protocol(value)


def split_rows_into_shares(value: Any, shares: Sequence[Share], argument: str) -> list[Any]:
    """Split ``value`` into ``shares``; padding rows repeat rows of the share and carry the row id -1.

    Whole shares are views of the value's memory where its type allows.

    Raises:
        ShareError: A user's type that only knows ``chunk`` cannot be cut unevenly or padded.
        BatchError: A tensor of a type that cannot be cut and joined.
    """
    if isinstance(value, torch.Tensor):
        check_tensor(value, f"argument {argument}")
    elif isinstance(batch := value.batch if isinstance(value, DataProto) else value, TensorDictBase):
        check_tensors(batch, f"argument {argument}: ")
    if isinstance(value, (DataProto, TensorDictBase, torch.Tensor)):
        return [_share_of(value, share) for share in shares]
    sizes = {share.size for share in shares}
    if len(sizes) > 1 or any(share.n_padding for share in shares):
        raise ShareError(
            f"argument {argument} is a {type(value).__name__} of {len(value)} rows, which has only chunk and concat: "
            f"it cannot be padded or cut into unequal shares for {len(shares)} ranks; pass a multiple of {len(shares)}",
            argument=argument,
        )
    return chunked(value, len(shares), argument)


def chunked(value: Any, n_parts: int, argument: str) -> list[Any]:
    """Split a value of a user's type by its own ``chunk``.

    Raises:
        ShareError: It returned another number of parts.
    """
    parts = list(value.chunk(n_parts))
    if len(parts) != n_parts:
        raise ShareError(
            f"argument {argument} is a {type(value).__name__}, whose chunk({n_parts}) returned {len(parts)} parts",
            argument=argument,
        )
    return parts


def _share_of(value: Any, share: Share) -> Any:
    if share.n_padding == 0:
        return cut_rows(value, share.start, share.stop)
    indices = padded_indices(share, row_count(value) or 0)
    part = select_rows(value, [int(index) for index in indices])
    return part.with_row_ids(row_ids(share)) if isinstance(part, DataProto) else part


def padded_indices(share: Share, n_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the rows of the batch that a padded share holds: its own, then its own again, or the batch's first ones.

    A share with a single real row holds nothing but copies of it: whatever the method makes of them is right for it.
    """
    again = np.arange(share.n_padding, dtype=np.int64)
    padding = share.start + again % share.n_real if share.n_real else again % max(n_rows, 1)
    return np.concatenate([np.arange(share.start, share.stop, dtype=np.int64), padding])


def row_ids(share: Share) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the ids by which a padded share's rows are identified later: row numbers of the batch, -1 for padding."""
    return np.concatenate(
        [np.arange(share.start, share.stop, dtype=np.int64), np.full(share.n_padding, -1, dtype=np.int64)]
    )


def cut_rows(value: Any, start: int, stop: int) -> Any:
    """Return the rows ``start`` to ``stop`` (exclusive) of a value that has rows, as a view where its type allows.

    Raises:
        ShareError: The value is of a user's type that has no slices.
    """
    if isinstance(value, TensorDictBase):
        return cut_tensordict(value, start, stop, {})
    if isinstance(value, torch.Tensor):
        return cut_tensor(value, start, stop, {})
    if isinstance(value, dict):
        return {name: cut_rows(column, start, stop) for name, column in value.items()}
    if not callable(getattr(value, "__getitem__", None)):
        raise ShareError(
            f"a {type(value).__name__} of {len(value)} rows has no slices, rows {start} to {stop} of it cannot be "
            f"taken; give the type a __getitem__ for slices, or pass a number of rows that divides"
        )
    return value[start:stop]


def select_rows(value: Any, keep: Sequence[int]) -> Any:
    """Return the rows ``keep`` of a value that has rows, without their row ids.

    Raises:
        ShareError: The value is of a user's type, and these rows are not consecutive.
    """
    if isinstance(value, DataProto):
        return value[np.asarray(keep, dtype=np.int64)].with_row_ids(None)
    if isinstance(value, TensorDictBase):
        return take_tensordict(value, torch.as_tensor(list(keep), dtype=torch.int64), {})
    if isinstance(value, torch.Tensor):
        return take_tensor(value, torch.as_tensor(list(keep), dtype=torch.int64), {})
    if isinstance(value, np.ndarray):
        return value[np.asarray(keep, dtype=np.int64)]
    if isinstance(value, dict):
        return {name: select_rows(column, keep) for name, column in value.items()}
    if isinstance(value, list):
        return [value[index] for index in keep]
    first = keep[0] if keep else 0
    if list(keep) != list(range(first, first + len(keep))):
        raise ShareError(f"rows {list(keep)} of a {type(value).__name__} cannot be selected: they are not consecutive")
    return cut_rows(value, first, first + len(keep))


_takes_first: set[str] = set()


def take_first_without_rows() -> Callable[[], None]:
    """Have ``join`` return the first of several TensorDicts of batch size ``[]``, as verl does; return what ends that.

    The others are lost: this is for programs that rely on it.
    """
    _takes_first.add("verl")
    return _takes_first.clear


def join(parts: Sequence[Any], what: str) -> Any:
    """Join what the ranks returned: rows end to end, in rank order; else a list by rank; None if all are None.

    A TensorDict of batch size ``[]`` has no rows, as metrics have none; see ``take_first_without_rows``.

    Raises:
        ShareError: Some ranks returned rows and others something else; ``what`` names the method.
    """
    if all(part is None for part in parts):
        return None
    kinds = {_kind(part) for part in parts}
    if any(row_count(part) is None for part in parts) and not (len(kinds) == 1 and has_rows_protocol(parts[0])):
        _refuse_mixture(parts, what)
        if _takes_first and kinds == {TensorDictBase}:
            return parts[0]
        return list(parts)
    if len(kinds) > 1:
        raise ShareError(f"{what} returned different types on its ranks, they cannot be joined: {_by_rank(parts)}")
    return _join_rows(parts, f"the result of {what}")


def _join_rows(parts: Sequence[Any], name: str) -> Any:
    first = parts[0]
    if isinstance(first, DataProto):
        return type(first).concat(list(parts))
    if isinstance(first, TensorDictBase):
        return cat_tensordicts(list(parts), {})
    if isinstance(first, torch.Tensor):
        return cat_tensors(list(parts), name, {})
    if isinstance(first, np.ndarray):
        return cat_arrays(list(parts), name)
    if isinstance(first, list):
        return [row for part in parts for row in part]
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            return list(parts)
        return {key: _join_rows([part[key] for part in parts], f"{name}[{key!r}]") for key in first}
    return type(first).concat(list(parts))


def _refuse_mixture(parts: Sequence[Any], what: str) -> None:
    if any(_is_batch(part) for part in parts):
        raise ShareError(
            f"{what} returned a batch with rows on some ranks only, its results cannot be joined: {_by_rank(parts)}; "
            f"return rows on every rank (a batch may have 0 rows), or register it with Dispatch.DP_COMPUTE_METRIC"
        )


def _is_batch(part: object) -> bool:
    return row_count(part) is not None if isinstance(part, (DataProto, TensorDictBase)) else has_rows_protocol(part)


def _kind(part: object) -> type:
    for kind in (DataProto, TensorDictBase, torch.Tensor, np.ndarray, dict, list):
        if isinstance(part, kind):
            return kind
    return type(part)


def _by_rank(parts: Sequence[Any]) -> str:
    return ", ".join(f"rank {rank}: {_in_words(part)}" for rank, part in enumerate(parts))


def _in_words(part: object) -> str:
    lacks_rows = isinstance(part, TensorDictBase) and row_count(part) is None
    return f"{type(part).__name__}{' without rows' if lacks_rows else ''}"
