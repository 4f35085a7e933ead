"""What a batch does with its rows: choose, order, repeat, cut up, join, pad."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

import numpy as np
import torch

from core.data import iterator
from core.data.build import check_keys
from core.data.columns import cat_columns
from core.data.index import RowIndex, balanced_sizes, row_number, row_numbers
from core.data.meta import merge_meta
from core.data.objects import Array, opened, row_of
from core.data.padding import padded_numbers
from core.data.table import DataProtoItem, Table
from core.data.tensors import take_tensordict
from core.errors import BatchError, UnevenSplitError

AnyTable = TypeVar("AnyTable", bound=Table)


class RowMethods(Table):
    """The methods of DataProto that are about rows."""

    @overload
    def __getitem__(self, item: int) -> DataProtoItem: ...
    @overload
    def __getitem__(self, item: builtins.slice[Any, Any, Any] | RowIndex) -> Self: ...
    def __getitem__(self, item: int | builtins.slice[Any, Any, Any] | RowIndex) -> DataProtoItem | Self:
        """Return one row as a DataProtoItem, or the rows of a slice, list, array, tensor or boolean mask.

        Raises:
            TypeError: The index is of no such kind.
            IndexError: A row that is not there.
        """
        if isinstance(item, slice):
            return self.slice(item.start, item.stop, item.step)
        if isinstance(item, (bool, np.bool_)):
            raise TypeError("rows are selected by a list, array, tensor, slice or number, not by a bool")
        if isinstance(item, (np.ndarray, torch.Tensor)) and item.ndim == 0:
            item = int(row_numbers(item.reshape(1), len(self))[0])
        if isinstance(item, (int, np.integer)):
            row = row_number(int(item), len(self))
            batch = None if self.batch is None else take_tensordict(self.batch, torch.tensor([row]), {})[0]
            arrays = {key: row_of(array, row) for key, array in (self.non_tensor_batch or {}).items()}
            return DataProtoItem(batch, arrays, dict(self.meta_info))
        return self.select_idxs(item)

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Return the rows of ``[start:end:step]``; with a step of 1 they are views."""
        self.check_consistency()
        first, last, stride = slice(start, end, step).indices(len(self))
        if stride == 1:
            return self._derive(self._columns().cut(first, max(first, last)))
        return self._derive(self._columns().take(torch.tensor(range(first, last, stride), dtype=torch.int64)))

    def select_idxs(self, idxs: RowIndex) -> Self:
        """Return the rows of a list, array or tensor of row numbers, or of a boolean mask, as a copy.

        Raises:
            TypeError: Numbers that are not whole.
            BatchError: A mask of another length.
            IndexError: A row that is not there.
        """
        self.check_consistency()
        return self._derive(self._columns().take(row_numbers(idxs, len(self))))

    def reorder(self, indices: RowIndex) -> None:
        """Put the rows into the order ``indices``, in place.

        Raises:
            BatchError: ``indices`` is not a permutation of the rows.
        """
        self.check_consistency()
        numbers = row_numbers(indices, len(self))
        if not torch.equal(numbers.sort().values, torch.arange(len(self))):
            raise BatchError(f"reorder needs each of the {len(self)} rows once, got {numbers.shape[0]} row numbers")
        self._become(self._columns().take(numbers))

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Return every row ``repeat_times`` times: in a row (0, 0, 1, 1) if ``interleave``, else the whole batch again.

        Raises:
            BatchError: A negative number.
        """
        if repeat_times < 0:
            raise BatchError(f"rows cannot be repeated {repeat_times} times")
        self.check_consistency()
        numbers = torch.arange(len(self))
        numbers = numbers.repeat_interleave(repeat_times) if interleave else numbers.repeat(repeat_times)
        return self._derive(self._columns().take(numbers))

    def sample_level_repeat(self, repeat_times: Sequence[int] | Array | torch.Tensor) -> Self:
        """Return row ``i`` ``repeat_times[i]`` times, in a row.

        Raises:
            BatchError: Not one whole number per row, or a negative one.
        """
        self.check_consistency()
        if isinstance(repeat_times, np.ma.MaskedArray):
            raise BatchError("numbers of repeats cannot be a masked array; use repeat_times.filled(0)")
        times = np.asarray(repeat_times)
        if times.shape != (len(self),) or (times.size and (times.dtype.kind not in "iu" or times.min() < 0)):
            raise BatchError(
                f"{len(self)} rows need one whole number of repeats each, got {times.dtype} of shape {times.shape}"
            )
        counts = torch.from_numpy(times.astype(np.int64))
        return self._derive(self._columns().take(torch.arange(len(self)).repeat_interleave(counts)))

    def unfold_column_chunks(self, n_split: int, split_keys: Sequence[str] | None = None) -> Self:
        """Cut the columns ``split_keys`` along their second axis into ``n_split`` rows each; others repeat their rows.

        A column of shape ``(rows, n_split * m, ...)`` becomes ``(rows * n_split, m, ...)``.

        Raises:
            MissingKeyError: A key that is not there.
            BatchError: A column that does not divide.
        """
        keys = list(split_keys or ())
        check_keys(keys, self._keys(), "the batch")
        if n_split < 1:
            raise BatchError(f"columns are split into at least one chunk, not into {n_split}")
        repeated = self.repeat(n_split, interleave=True)
        for key in keys:
            source = self._column(key)
            source = opened(source) if isinstance(source, np.ndarray) else source
            width = int(source.shape[1]) if source.ndim > 1 and not getattr(source, "is_nested", False) else 0
            if width == 0 or width % n_split:
                raise BatchError(f"{key!r} of shape {tuple(source.shape)} cannot be cut into {n_split} column chunks")
            cut = source.reshape(len(self) * n_split, width // n_split, *source.shape[2:])
            (repeated.batch if isinstance(cut, torch.Tensor) else repeated.non_tensor_batch)[key] = cut
        return repeated

    def split_sizes(self, sizes: Sequence[int]) -> list[Self]:
        """Return consecutive parts of the given sizes; a part of 0 rows keeps all keys.

        Raises:
            BatchError: The sizes do not add up to the rows.
        """
        self.check_consistency()
        if sum(sizes) != len(self) or any(size < 0 for size in sizes):
            raise BatchError(f"sizes {list(sizes)} add up to {sum(sizes)}, the batch has {len(self)} rows")
        cut, columns, start = object(), self._columns(), 0
        parts = []
        for size in sizes:
            part = self._derive(columns.cut(start, start + size))
            part._cut = cut
            parts.append(part)
            start += size
        return parts

    def split_balanced(self, n_parts: int) -> list[Self]:
        """Return ``n_parts`` consecutive parts, sizes differing by one at most, larger first, maybe empty."""
        return self.split_sizes(balanced_sizes(len(self), n_parts))

    def chunk(self, chunks: int) -> list[Self]:
        """Return ``chunks`` parts of equal size; with padding enabled sizes may differ by one.

        Raises:
            UnevenSplitError: The rows do not divide and padding is not enabled.
            BatchError: Fewer than one part.
        """
        sizes = balanced_sizes(len(self), chunks)
        if sizes[0] != sizes[-1] and not self.is_padding_enabled():
            raise UnevenSplitError(
                f"cannot split {len(self)} rows into {chunks} equal parts; pad the batch (auto_padding=True), "
                f"use split_balanced({chunks}), or pass a multiple of {chunks} rows",
                n_rows=len(self),
                n_parts=chunks,
            )
        return self.split_sizes(sizes)

    def split(self, split_size: int) -> list[Self]:
        """Return parts of ``split_size`` rows, the last maybe smaller; an empty batch gives one empty part.

        Raises:
            BatchError: A size below 1.
        """
        if split_size < 1:
            raise BatchError(f"parts have at least one row, not {split_size}")
        full, rest = divmod(len(self), split_size)
        return self.split_sizes([split_size] * full + ([rest] if rest or not full else []))

    @staticmethod
    def concat(data: Sequence[AnyTable]) -> AnyTable:
        """Join batches row after row; meta is merged over *all* parts. A single part is not copied.

        ``metrics`` become a dict of lists in the order of the parts; keys that are equal stay; numbers that differ are
        kept per part, in a list; other values that differ are an error. ``core.data.meta`` has the whole policy.
        Row ids stay if all parts have them.

        Raises:
            BatchError: No part, or parts whose columns differ.
            MergeConflictError: A key that a part lacks, or a setting that differs ("Conflicting values for meta_info
                key ...").
        """
        parts = list(data)
        if not parts:
            raise BatchError("concat needs at least one batch, got an empty list")
        for number, part in enumerate(parts):
            if not isinstance(part, Table):
                raise BatchError(f"part {number} of {len(parts)} is a {type(part).__name__}, not a DataProto")
            part.check_consistency()
        first = parts[0]
        are_of_one_split = first._cut is not None and all(
            part._cut is first._cut and part.meta_info.get("metrics") is first.meta_info.get("metrics")
            for part in parts
        )
        meta = merge_meta([part.meta_info for part in parts], keep_metrics=are_of_one_split)
        joined = first._derive(cat_columns([part._columns() for part in parts]), meta)
        joined._cut = None
        joined._auto_padding = any(part._auto_padding for part in parts)
        return joined

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Iterate over the rows ``epochs`` times, in batches of ``mini_batch_size``.

        Rows are shuffled only with ``dataloader_kwargs={"shuffle": True}``, differently in every epoch. The same
        ``seed`` gives the same order; without one, torch's global generator is used. ``drop_last`` and ``sampler`` work
        as in ``torch.utils.data.DataLoader``; options about its processes have no effect, since the rows are in memory.

        Raises:
            BatchError: The rows do not divide into mini batches, or an unknown option.
        """
        self.check_consistency()
        plan = iterator.plan_batches(len(self), mini_batch_size, epochs, seed, dict(dataloader_kwargs or {}))
        return (self.select_idxs(rows) for rows in plan)

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Add ``padding_size`` copies of the last row, or of the first one (``"first"``), in place.

        Raises:
            BatchError: A negative size, or no row to copy.
        """
        self.check_consistency()
        numbers = padded_numbers(len(self), padding_size, padding_candidate)
        if padding_size:
            self._become(self._columns().take(numbers))
