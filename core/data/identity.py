"""Which rows of a result stem from real rows, and which from padding: a pure decision, or a refusal.

Only one rank of a padded call holds real rows beside padding, and its padding rows are copies of its real ones. It must
not be guessed: a row too many or a lost row would be a wrong result without an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.memory import raw_bytes
from core.data.proto import DataProto
from core.data.rows import row_count
from core.errors import RowIdentityError

_Array = np.ndarray[Any, Any]
_Columns = dict[str, _Array]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A column of the share that a rank was given, and the column of that name in what it returned, as row keys."""

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


def real_rows(
    given: Sequence[object], returned: object, n_real: int, n_padding: int, what: str
) -> tuple[int, ...] | None:
    """Return which rows of ``returned`` stem from real rows of the padded share ``given``; None when it has no rows.

    In order of trust: the row ids that a batch carries through indexing, repeating, reordering and joining; the count,
    for a share of one real row and copies of it; columns that came back unchanged, as rows repeated in place or as a
    whole; rows left out in order; and for new values with as many rows as the share, their position. When values of the
    share came back in another order without ids, two readings are possible, and it is refused.

    Raises:
        RowIdentityError: They cannot be identified; the message has the counts.
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
    if n_real == 1 and n_out % size == 0:
        return tuple(range(n_out // size))
    kept = _by_columns(_shared_columns(given, returned, size, n_out), returned, n_real, size, n_out)
    if kept is None:
        raise RowIdentityError(
            f"{what} got {n_real} rows and {n_padding} padding rows and returned {n_out} rows: which of them are "
            f"padding cannot be determined; return rows of its batch (batch.repeat(n), batch[indices]), keep a column "
            f"that names its rows unchanged, or pass a number of rows that divides",
            n_rows_in=n_real,
            n_padding=n_padding,
            n_rows_out=n_out,
        )
    return kept


def _by_columns(pairs: Sequence[_Pair], returned: object, n_real: int, size: int, n_out: int) -> tuple[int, ...] | None:
    """Match by columns that both sides have, else by position; None if it cannot be determined."""
    n_times, rest = divmod(n_out, size)
    if pairs and rest == 0:
        origins = (np.arange(n_out) // n_times, np.arange(n_out) % size)
        readings = {
            tuple(int(index) for index in np.flatnonzero(origin < n_real))
            for origin in origins
            if _stem_from(pairs, origin, n_real)
        }
        # Equal rows fit both readings: that matters only if there is more to them than what is equal.
        if len(readings) == 1 or (readings and len(_columns(returned)) == len(pairs)):
            return min(readings)
        if readings:
            return None
    kept = _left_out_in_order(pairs, n_real)
    if kept is not None:
        return kept
    moved = any(pair.after != pair.before and set(pair.after) <= set(pair.before) for pair in pairs)
    return tuple(range(n_real)) if n_out == size and not moved else None


def _stem_from(pairs: Sequence[_Pair], origin: _Array, n_real: int) -> bool:
    """Return whether row ``i`` of the result is row ``origin[i]`` of the share, by all columns or a unique one."""
    matching = [
        pair for pair in pairs if all(pair.before[row] == key for row, key in zip(origin, pair.after, strict=True))
    ]
    return len(matching) == len(pairs) or any(len(set(pair.before[:n_real])) == n_real for pair in matching)


def _left_out_in_order(pairs: Sequence[_Pair], n_real: int) -> tuple[int, ...] | None:
    """Match rows that were left out or repeated in place by what stands in them: equal rows alike, none moved."""
    if not pairs:
        return None
    before = list(zip(*(pair.before for pair in pairs), strict=True))
    after = list(zip(*(pair.after for pair in pairs), strict=True))
    n_before, n_after = Counter(before), Counter(after)
    if any(n_after[key] % n_times for key, n_times in n_before.items()):
        return None
    times = [n_after[key] // n_before[key] for key in before]
    if [key for key, n_times in zip(before, times, strict=True) for _ in range(n_times)] != after:
        return None
    return tuple(range(sum(times[:n_real])))


def _shared_columns(given: Sequence[object], returned: object, size: int, n_out: int) -> list[_Pair]:
    after = _columns(returned)
    pairs = []
    for value in given:
        for name, column in _columns(value).items():
            other = after.get(name)
            if other is None or (len(column), len(other)) != (size, n_out):
                continue
            if other.dtype == column.dtype and other.shape[1:] == column.shape[1:]:
                pairs.append(_Pair(_row_keys(column), _row_keys(other)))
    return pairs


def _columns(value: object) -> _Columns:
    """Return the dense columns of a batch by name, as arrays of shape ``(rows, ...)``; a tensor's own is unnamed."""
    columns: Mapping[str, Any]
    if isinstance(value, DataProto):
        columns = {**(value.non_tensor_batch or {}), **(dict(value.batch.items()) if value.batch is not None else {})}
    elif isinstance(value, (TensorDictBase, dict)):
        columns = dict(value.items())
    else:
        columns = {"": value}
    dense: _Columns = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.ndim:
            dense[name] = column
        elif isinstance(column, torch.Tensor) and column.ndim and _is_dense(column):
            dense[name] = _as_array(column)
    return dense


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)


def _as_array(tensor: torch.Tensor) -> _Array:
    """View a tensor's rows as bytes: any dtype, and NaN is equal to itself."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    n_rows = plain.shape[0]
    if not plain.numel():
        return np.zeros((n_rows, 0))
    return raw_bytes(plain).reshape(n_rows, -1).numpy()


def _row_keys(column: _Array) -> tuple[bytes, ...]:
    return tuple(
        row.tobytes() if isinstance(row, np.ndarray) and row.dtype != object else repr(row).encode() for row in column
    )
