"""Rows of any value: counting, taking and joining them, and telling real rows from padding.

Values with rows are DataProto, TensorDict, tensors, arrays, lists, dicts of tensors or arrays of one length, and any
type that has ``chunk``, ``concat`` and a length. Everything else (a number, a dict of metrics, None) has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.proto import DataProto
from core.data.shares import Share
from core.errors import RowIdentityError, ShareError

_Columns = dict[str, np.ndarray[Any, Any]]


def row_count(value: object) -> int | None:
    """Return how many rows ``value`` has, None when it has no rows at all."""
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
    if has_rows_protocol(value):
        return len(value)  # type: ignore[arg-type]
    return None


def has_rows_protocol(value: object) -> bool:
    """Tell whether a value of a user's type can be cut with ``chunk`` and joined with ``concat``."""
    return all(callable(getattr(value, name, None)) for name in ("chunk", "concat", "__len__"))


def can_be_dealt(value: object) -> bool:
    """Tell whether the DP modes may cut ``value`` into shares; lists and dicts could mean anything, they may not."""
    return isinstance(value, (DataProto, TensorDictBase, torch.Tensor)) or has_rows_protocol(value)


def deal(value: Any, shares: Sequence[Share], argument: str) -> list[Any]:
    """Cut ``value`` into ``shares``; padding rows repeat rows of the share and carry the row id -1.

    Whole shares are views of the value's memory where its type allows.

    Raises:
        ShareError: A user's type that only knows ``chunk`` cannot be cut unevenly or padded.
    """
    if isinstance(value, (DataProto, TensorDictBase, torch.Tensor)):
        return [_take(value, share) for share in shares]
    sizes = {share.size for share in shares}
    if len(sizes) > 1 or any(share.n_padding for share in shares):
        raise ShareError(
            f"argument {argument} is a {type(value).__name__} of {len(value)} rows, which has only chunk and concat: "
            f"it cannot be padded or cut into unequal shares for {len(shares)} ranks; pass a multiple of {len(shares)}",
            argument=argument,
        )
    return list(value.chunk(len(shares)))


def _take(value: Any, share: Share) -> Any:
    if share.n_padding == 0:
        return value[share.start : share.stop]
    n_rows = row_count(value) or 0
    indices = padded_indices(share, n_rows)
    if isinstance(value, DataProto):
        return value[indices].with_row_ids(row_ids(share))
    return value[torch.from_numpy(indices)]


def padded_indices(share: Share, n_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the rows of the batch that a padded share holds: its own, then its own again, or the batch's first ones.

    A share with a single real row holds nothing but copies of it: whatever the method makes of them is right for it.
    """
    again = np.arange(share.n_padding, dtype=np.int64)
    padding = share.start + again % share.n_real if share.n_real else again % max(n_rows, 1)
    return np.concatenate([np.arange(share.start, share.stop, dtype=np.int64), padding])


def row_ids(share: Share) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the ids that let a padded share's rows be told apart later: the batch's row numbers, -1 for padding."""
    return np.concatenate(
        [np.arange(share.start, share.stop, dtype=np.int64), np.full(share.n_padding, -1, dtype=np.int64)]
    )


def select_rows(value: Any, keep: Sequence[int]) -> Any:
    """Return the rows ``keep`` of a value that has rows, without the row ids that told them apart."""
    if isinstance(value, DataProto):
        return value[np.asarray(keep, dtype=np.int64)].with_row_ids(None)
    if isinstance(value, (TensorDictBase, torch.Tensor)):
        return value[torch.as_tensor(list(keep), dtype=torch.int64)]
    if isinstance(value, np.ndarray):
        return value[np.asarray(keep, dtype=np.int64)]
    if isinstance(value, dict):
        return {name: select_rows(column, keep) for name, column in value.items()}
    if isinstance(value, list):
        return [value[index] for index in keep]
    kept = list(keep)
    if not kept:
        return value[:0]
    return value[kept[0] : kept[-1] + 1]


def join(parts: Sequence[Any], what: str) -> Any:
    """Join what the ranks returned: rows end to end, in rank order; else a list by rank; None if all are None.

    Raises:
        ShareError: Some ranks returned rows and others something else; ``what`` names the method.
    """
    if all(part is None for part in parts):
        return None
    counts = [row_count(part) for part in parts]
    if any(count is None for count in counts):
        _refuse_mixture(parts, counts, what)
        return list(parts)
    kinds = {_kind(part) for part in parts}
    if len(kinds) > 1:
        raise ShareError(f"{what} returned different types on its ranks, they cannot be joined: {_by_rank(parts)}")
    return _join_rows(parts)


def _join_rows(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, DataProto):
        return type(first).concat(list(parts))
    if isinstance(first, (TensorDictBase, torch.Tensor)):
        return _cat(parts)
    if isinstance(first, np.ndarray):
        return np.concatenate(list(parts))
    if isinstance(first, list):
        return [row for part in parts for row in part]
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            return list(parts)
        return {name: _join_rows([part[name] for part in parts]) for name in first}
    return type(first).concat(list(parts))


def _cat(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], torch.Tensor) and parts[0].is_nested:
        return torch.nested.as_nested_tensor([row for part in parts for row in part.unbind()], layout=parts[0].layout)
    return torch.cat(list(parts), dim=0)


def _refuse_mixture(parts: Sequence[Any], counts: Sequence[int | None], what: str) -> None:
    batches = [isinstance(part, (DataProto, TensorDictBase)) or has_rows_protocol(part) for part in parts]
    if any(batches):
        raise ShareError(f"{what} returned a batch on some ranks only, nothing can be joined: {_by_rank(parts)}")
    del counts


def _kind(part: object) -> type:
    for kind in (DataProto, TensorDictBase, torch.Tensor, np.ndarray, dict, list):
        if isinstance(part, kind):
            return kind
    return type(part)


def _by_rank(parts: Sequence[Any]) -> str:
    return ", ".join(f"rank {rank}: {type(part).__name__}" for rank, part in enumerate(parts))


def real_rows(
    given: Sequence[object], returned: object, n_real: int, n_padding: int, what: str
) -> tuple[int, ...] | None:
    """Tell which rows of ``returned`` stem from real rows of the padded share ``given``; None when it has no rows.

    In order of trust: the row ids the batch carries through indexing, repeating, reordering and joining; columns that
    came back unchanged; for a new batch with as many rows as the share, their place; and for a share of one real row
    and copies of it, the count. Everything else is refused.

    Raises:
        RowIdentityError: It cannot be told; the message has the counts.
    """
    n_out = row_count(returned)
    if n_out is None:
        return None
    ids = returned.row_ids if isinstance(returned, DataProto) else None
    if ids is not None:
        return tuple(int(index) for index in np.flatnonzero(ids >= 0))
    if n_out == 0 or n_real == 0:
        return ()
    size = n_real + n_padding
    kept = _by_columns(given, returned, n_real, size, n_out)
    if kept is not None:
        return kept
    if n_out == size:
        return tuple(range(n_real))
    if n_real == 1 and n_out % size == 0:
        return tuple(range(n_out // size))
    raise RowIdentityError(
        f"{what} got {n_real} rows and {n_padding} padding rows and returned {n_out} new rows: which of them are "
        f"padding cannot be told; return rows of the batch it got (batch.repeat(n), batch[indices]), keep one of its "
        f"columns unchanged, or pass a number of rows that divides",
        n_rows_in=n_real,
        n_padding=n_padding,
        n_rows_out=n_out,
    )


def _by_columns(
    given: Sequence[object], returned: object, n_real: int, size: int, n_out: int
) -> tuple[int, ...] | None:
    """Match by columns that both sides have: as rows repeated in place or as a whole, then row by row."""
    pairs = _shared_columns(given, returned)
    if not pairs:
        return None
    n_times, rest = divmod(n_out, size)
    if rest == 0:
        in_place = np.arange(n_out) // n_times
        tiled = np.arange(n_out) % size
        for origin in (in_place, tiled):
            if all(_same(before[origin], after) for before, after in pairs):
                return tuple(int(index) for index in np.flatnonzero(origin < n_real))
    return _by_content(pairs, n_real, size, n_out)


def _by_content(
    pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]], n_real: int, size: int, n_out: int
) -> tuple[int, ...] | None:
    """Match rows by what stands in them; equal ones, real or padding, are taken to have been treated alike."""
    before = [b"\0".join(_row_key(column[row]) for column, _ in pairs) for row in range(size)]
    after = [b"\0".join(_row_key(column[row]) for _, column in pairs) for row in range(n_out)]
    if any(key not in set(before) for key in after):
        return None
    kept: list[int] = []
    for key in set(after):
        n_real_of_key = sum(other == key for other in before[:n_real])
        n_of_key = sum(other == key for other in before)
        places = [row for row, other in enumerate(after) if other == key]
        share, rest = divmod(len(places) * n_real_of_key, n_of_key)
        if rest:
            return None
        kept += places[:share]
    return tuple(sorted(kept))


def _shared_columns(
    given: Sequence[object], returned: object
) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    after = _columns(returned)
    pairs = []
    for value in given:
        for name, column in _columns(value).items():
            other = after.get(name)
            if other is not None and other.dtype == column.dtype and other.shape[1:] == column.shape[1:]:
                pairs.append((column, other))
    return pairs


def _columns(value: object) -> _Columns:
    """Return the dense columns of a batch by name, as arrays of shape ``(rows, ...)``."""
    columns: Mapping[str, Any]
    if isinstance(value, DataProto):
        columns = {**(value.non_tensor_batch or {}), **(dict(value.batch.items()) if value.batch is not None else {})}
    elif isinstance(value, (TensorDictBase, dict)):
        columns = dict(value.items())
    else:
        return {}
    found: _Columns = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            found[name] = column
        elif isinstance(column, torch.Tensor) and not column.is_nested and column.layout is torch.strided:
            found[name] = _as_array(column)
    return found


def _as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """View a tensor's rows as bytes: any dtype, and NaN is equal to itself."""
    plain = tensor.detach().cpu().contiguous()
    n_rows = plain.shape[0]
    return (
        plain.reshape(n_rows, -1).view(torch.uint8).reshape(n_rows, -1).numpy()
        if plain.numel()
        else np.zeros((n_rows, 0))
    )


def _same(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> bool:
    if before.dtype == object:
        return all(_row_key(one) == _row_key(other) for one, other in zip(before, after, strict=True))
    return before.tobytes() == after.tobytes()


def _row_key(row: Any) -> bytes:
    return row.tobytes() if isinstance(row, np.ndarray) and row.dtype != object else repr(row).encode()
