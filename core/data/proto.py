"""The batch: tensors, arrays and meta of one number of rows.

Every method returns a new DataProto and leaves this one as it is, but for those that are in place because the field
knows them so: ``pop``, ``rename``, ``union``, ``reorder``, ``padding`` and ``to``. Dicts are never shared between two
DataProtos; the memory of tensors and arrays may be: a slice is a view, as in torch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from core.data import disk, iterator, summary
from core.data.build import arrays_of, batch_of, check_columns, check_keys, object_array, split_tensordict
from core.data.columns import Columns, cat_columns
from core.data.equality import values_equal
from core.data.index import RowIndex, balanced_sizes, row_number, row_numbers
from core.data.merge import check_union, union_columns
from core.data.meta import merge_meta
from core.data.padding import DataProtoConfig, padded_numbers
from core.data.tensors import Array, take_tensordict
from core.data.wire import reduce_object
from core.errors import BatchError, UnevenSplitError, UsageError

Self = TypeVar("Self", bound="DataProto")


@dataclass
class DataProtoItem:
    """One row of a DataProto: tensors without the row dimension, one object per array, the batch's meta."""

    batch: TensorDictBase | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class DataProto:
    """A batch of rows: ``batch`` (tensors), ``non_tensor_batch`` (numpy arrays) and ``meta_info`` (what is said of all).

    The constructor holds the very objects it is given; ``from_dict`` and its like copy the dicts.

    Raises:
        BatchError: More than one batch dimension, or columns of different numbers of rows.
    """

    batch: TensorDictBase | None = None
    non_tensor_batch: dict[str, Array] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)
    # Which rows of which earlier batch these are; set by with_row_ids and carried along by every row operation.
    _row_ids: Array | None = field(default=None, init=False, repr=False)
    _auto_padding: bool = field(default=False, init=False, repr=False)
    # The same object in all parts of one cut in this process, so that concat knows its own parts again.
    _cut: object = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Put dicts where None was given, and check."""
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    # ---------------------------------------------------------------- making

    @classmethod
    def from_dict(
        cls: type[Self],
        tensors: Mapping[str, Any] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """Make a batch from dicts; lists among ``non_tensors`` become object arrays, the dicts are not changed or kept.

        Raises:
            BatchError: Wrong types, other than one batch dimension, or unequal numbers of rows.
        """
        batch = batch_of(tensors, num_batch_dims) if tensors else None
        made = cls(batch, arrays_of(non_tensors or {}), dict(meta_info or {}))
        made._auto_padding = auto_padding
        return made

    @classmethod
    def from_single_dict(
        cls: type[Self], data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None, auto_padding: bool = False
    ) -> Self:
        """Make a batch from one dict: tensors go to ``batch``, arrays and lists to ``non_tensor_batch``.

        Raises:
            BatchError: A value is none of these, or the numbers of rows differ.
        """
        tensors = {key: value for key, value in data.items() if isinstance(value, (torch.Tensor, TensorDictBase))}
        others = {key: value for key, value in data.items() if key not in tensors}
        return cls.from_dict(tensors=tensors, non_tensors=others, meta_info=meta_info, auto_padding=auto_padding)

    @classmethod
    def from_tensordict(
        cls: type[Self],
        tensor_dict: TensorDictBase | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
    ) -> Self:
        """Make a batch from a TensorDict: stacked non-tensor values become arrays, lone ones meta.

        Raises:
            BatchError: Other than one batch dimension.
        """
        if not isinstance(tensor_dict, TensorDictBase):
            raise BatchError(f"from_tensordict takes a TensorDict, not a {type(tensor_dict).__name__}")
        if num_batch_dims != 1 or tensor_dict.batch_dims < 1:
            raise BatchError(
                f"a DataProto has one batch dimension, not {num_batch_dims}; "
                f"this TensorDict has size {tuple(tensor_dict.batch_size)}"
            )
        tensors, arrays, lone = split_tensordict(tensor_dict)
        batch = None
        if tensors or not arrays:
            batch = TensorDict(tensors, batch_size=tensor_dict.batch_size[:1], device=tensor_dict.device)
        return cls(batch, arrays, {**lone, **(meta_info or {})})

    def _derive(self: Self, columns: Columns, meta: Mapping[str, Any] | None = None) -> Self:
        """Return a batch of this one's type and settings, with other columns and a copy of the meta."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.batch = columns.batch
        made.non_tensor_batch = dict(columns.arrays)
        made.meta_info = dict(self.meta_info if meta is None else meta)
        made._row_ids = columns.row_ids
        return made

    def _columns(self) -> Columns:
        return Columns(self.batch, self.non_tensor_batch or {}, self.row_ids)

    def _become(self, columns: Columns) -> None:
        self.batch, self.non_tensor_batch, self._row_ids = columns.batch, columns.arrays, columns.row_ids

    # ---------------------------------------------------------------- looking

    def __len__(self) -> int:
        """Return the number of rows, 0 for an empty batch."""
        return Columns(self.batch, self.non_tensor_batch or {}, None).n_rows

    def __eq__(self, other: object) -> bool:
        """Compare tensors, arrays and meta by value, NaN equal to NaN; row ids and the padding switch do not count."""
        if not isinstance(other, DataProto):
            return NotImplemented
        return (
            values_equal(self.batch, other.batch)
            and values_equal(self.non_tensor_batch or {}, other.non_tensor_batch or {})
            and values_equal(self.meta_info, other.meta_info)
        )

    @property
    def row_ids(self) -> Array | None:
        """Return the int64 ids that travel with the rows, None if there are none or the rows were replaced by hand."""
        if self._row_ids is not None and self._row_ids.shape[0] != len(self):
            return None
        return self._row_ids

    def with_row_ids(self: Self, ids: Sequence[int] | Array | torch.Tensor | None) -> Self:
        """Return a shallow copy whose rows carry ``ids``, one number per row; None takes them off.

        Raises:
            BatchError: Not one id per row.
        """
        array = None if ids is None else np.array(ids, dtype=np.int64)
        if array is not None and array.shape != (len(self),):
            raise BatchError(f"{len(self)} rows need one id each, got ids of shape {array.shape}")
        columns = self._columns()
        return self._derive(Columns(columns.batch, columns.arrays, array))

    def check_consistency(self) -> None:
        """Make sure that all columns have one number of rows.

        Raises:
            BatchError: They have not; it names key and sizes.
        """
        check_columns(self.batch, {} if self.non_tensor_batch is None else self.non_tensor_batch)

    def get_data_info(self) -> str:
        """Return text with every key's shape, dtype and device, and the nested types of the meta."""
        return summary.describe(self.batch, self.non_tensor_batch or {}, self.meta_info)

    def print_size(self, prefix: str = "") -> None:
        """Print the size of tensors and arrays in GiB, behind ``prefix``."""
        print(summary.size_line(self.batch, self.non_tensor_batch or {}, prefix))

    # ---------------------------------------------------------------- rows

    @overload
    def __getitem__(self, item: int) -> DataProtoItem: ...
    @overload
    def __getitem__(self: Self, item: slice | RowIndex) -> Self: ...
    def __getitem__(self: Self, item: int | slice | RowIndex) -> DataProtoItem | Self:
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
            arrays = {key: array[row] for key, array in (self.non_tensor_batch or {}).items()}
            return DataProtoItem(batch, arrays, dict(self.meta_info))
        return self.select_idxs(item)

    def slice(self: Self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Return the rows of ``[start:end:step]``; with a step of 1 they are views."""
        self.check_consistency()
        first, last, stride = slice(start, end, step).indices(len(self))
        if stride == 1:
            return self._derive(self._columns().cut(first, max(first, last)))
        return self._derive(self._columns().take(torch.tensor(range(first, last, stride), dtype=torch.int64)))

    def select_idxs(self: Self, idxs: RowIndex) -> Self:
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
            BatchError: ``indices`` is no permutation of the rows.
        """
        self.check_consistency()
        numbers = row_numbers(indices, len(self))
        if not torch.equal(numbers.sort().values, torch.arange(len(self))):
            raise BatchError(f"reorder needs each of the {len(self)} rows once, got {numbers.shape[0]} row numbers")
        self._become(self._columns().take(numbers))

    def repeat(self: Self, repeat_times: int = 2, interleave: bool = True) -> Self:
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

    def sample_level_repeat(self: Self, repeat_times: Sequence[int] | Array | torch.Tensor) -> Self:
        """Return row ``i`` ``repeat_times[i]`` times, in a row.

        Raises:
            BatchError: Not one whole number per row, or a negative one.
        """
        self.check_consistency()
        times = np.asarray(repeat_times)
        if times.shape != (len(self),) or (times.size and (times.dtype.kind not in "iu" or times.min() < 0)):
            raise BatchError(
                f"{len(self)} rows need one whole number of repeats each, got {times.dtype} of shape {times.shape}"
            )
        counts = torch.from_numpy(times.astype(np.int64))
        return self._derive(self._columns().take(torch.arange(len(self)).repeat_interleave(counts)))

    def unfold_column_chunks(self: Self, n_split: int, split_keys: Sequence[str] | None = None) -> Self:
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
            width = int(source.shape[1]) if source.ndim > 1 and not getattr(source, "is_nested", False) else 0
            if width == 0 or width % n_split:
                raise BatchError(f"{key!r} of shape {tuple(source.shape)} cannot be cut into {n_split} column chunks")
            cut = source.reshape(len(self) * n_split, width // n_split, *source.shape[2:])
            (repeated.batch if isinstance(cut, torch.Tensor) else repeated.non_tensor_batch)[key] = cut  # type: ignore[index]
        return repeated

    def _keys(self) -> list[str]:
        return [*(() if self.batch is None else self.batch.keys()), *(self.non_tensor_batch or {})]

    def _column(self, key: str) -> Any:
        if self.batch is not None and key in self.batch.keys():
            return self.batch.get(key)
        return self.non_tensor_batch[key]

    # ---------------------------------------------------------------- parts

    def split_sizes(self: Self, sizes: Sequence[int]) -> list[Self]:
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

    def split_balanced(self: Self, n_parts: int) -> list[Self]:
        """Return ``n_parts`` consecutive parts whose sizes differ by one at most, larger ones first, maybe empty ones."""
        return self.split_sizes(balanced_sizes(len(self), n_parts))

    def chunk(self: Self, chunks: int) -> list[Self]:
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

    def split(self: Self, split_size: int) -> list[Self]:
        """Return parts of ``split_size`` rows, the last maybe smaller; an empty batch gives one empty part.

        Raises:
            BatchError: A size below 1.
        """
        if split_size < 1:
            raise BatchError(f"parts have at least one row, not {split_size}")
        full, rest = divmod(len(self), split_size)
        return self.split_sizes([split_size] * full + ([rest] if rest or not full else []))

    @staticmethod
    def concat(data: Sequence[Self]) -> Self:
        """Join batches row after row; tensors are copied, meta is merged over *all* parts.

        ``metrics`` become a dict of lists in the order of the parts; keys that are equal stay; numbers that differ are
        kept per part, in a list; other values that differ are an error. ``core.data.meta`` has the whole policy. Row ids
        stay if all parts have them.

        Raises:
            BatchError: No part, or parts whose columns do not fit.
            MergeConflictError: A key that a part lacks, or a setting that differs ("Conflicting values for meta_info
                key ...").
        """
        parts = list(data)
        if not parts:
            raise BatchError("concat needs at least one batch, got an empty list")
        for number, part in enumerate(parts):
            if not isinstance(part, DataProto):
                raise BatchError(f"part {number} of {len(parts)} is a {type(part).__name__}, not a DataProto")
            part.check_consistency()
        first = parts[0]
        of_one_cut = first._cut is not None and all(
            part._cut is first._cut and part.meta_info.get("metrics") is first.meta_info.get("metrics")
            for part in parts
        )
        meta = merge_meta([part.meta_info for part in parts], keep_metrics=of_one_cut)
        joined = first._derive(cat_columns([part._columns() for part in parts]), meta)
        joined._cut = None
        joined._auto_padding = any(part._auto_padding for part in parts)
        return joined

    def make_iterator(
        self: Self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Iterate over the rows ``epochs`` times, in batches of ``mini_batch_size``.

        Rows are shuffled only with ``dataloader_kwargs={"shuffle": True}``, anew in every epoch; the same ``seed``
        gives the same order, without one torch's own generator decides. ``drop_last`` and ``sampler`` work as in
        ``torch.utils.data.DataLoader``; options about its processes mean nothing here, the rows are in memory.

        Raises:
            BatchError: The rows do not divide into mini batches, or an unknown option.
        """
        self.check_consistency()
        plan = iterator.plan_batches(len(self), mini_batch_size, epochs, seed, dict(dataloader_kwargs or {}))
        return (self.select_idxs(rows) for rows in plan)

    # ---------------------------------------------------------------- keys

    def select(
        self: Self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """Return only these keys, None meaning all of a kind; ``deepcopy`` copies the values too.

        Raises:
            MissingKeyError: A key that is not there.
        """
        chosen = self._pick(
            self._batch_keys() if batch_keys is None else batch_keys,
            list(self.non_tensor_batch or {}) if non_tensor_batch_keys is None else non_tensor_batch_keys,
            list(self.meta_info) if meta_info_keys is None else meta_info_keys,
        )
        return copy.deepcopy(chosen) if deepcopy else chosen

    def _batch_keys(self) -> list[str]:
        return [] if self.batch is None else list(self.batch.keys())

    def _pick(self: Self, batch_keys: Sequence[str], array_keys: Sequence[str], meta_keys: Sequence[str]) -> Self:
        """Return these keys; a batch that keeps no column keeps its number of rows in an empty TensorDict."""
        check_keys(batch_keys, self._batch_keys(), "batch")
        check_keys(array_keys, list(self.non_tensor_batch or {}), "non_tensor_batch")
        check_keys(meta_keys, list(self.meta_info), "meta_info")
        batch = None
        if self.batch is not None:
            picked = {key: self.batch.get(key) for key in batch_keys}
            batch = TensorDict(picked, batch_size=self.batch.batch_size, device=self.batch.device)
        elif not array_keys and len(self):
            batch = TensorDict({}, batch_size=[len(self)])
        arrays = {key: self.non_tensor_batch[key] for key in array_keys}
        return self._derive(Columns(batch, arrays, self.row_ids), {key: self.meta_info[key] for key in meta_keys})

    def pop(
        self: Self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> Self:
        """Remove these keys from this batch and return them as a batch of as many rows; None means none.

        Raises:
            MissingKeyError: A key that is not there; nothing was removed.
        """
        popped = self._pick(batch_keys or (), non_tensor_batch_keys or (), meta_info_keys or ())
        if self.batch is not None and batch_keys:
            kept = {key: column for key, column in self.batch.items() if key not in batch_keys}
            self.batch = TensorDict(kept, batch_size=self.batch.batch_size, device=self.batch.device)
        arrays = self.non_tensor_batch or {}
        self.non_tensor_batch = {
            key: array for key, array in arrays.items() if key not in (non_tensor_batch_keys or ())
        }
        self.meta_info = {key: value for key, value in self.meta_info.items() if key not in (meta_info_keys or ())}
        return popped

    def rename(
        self: Self, old_keys: str | Sequence[str] | None = None, new_keys: str | Sequence[str] | None = None
    ) -> Self:
        """Rename columns in place and return this batch; a swap of two names works.

        Raises:
            TypeError: Names are neither text nor lists of it.
            UsageError: Unequal numbers of names, or a name that another column has (both are ValueErrors).
            MissingKeyError: A column that is not there.
        """
        if old_keys is None and new_keys is None:
            return self
        old, new = _names(old_keys), _names(new_keys)
        if len(old) != len(new):
            raise UsageError(f"{len(old)} names cannot be replaced by {len(new)}: {old} and {new}")
        check_keys(old, self._keys(), "the batch")
        renamed = dict(zip(old, new, strict=True))
        names = [renamed.get(key, key) for key in self._keys()]
        if len(set(names)) != len(names):
            raise UsageError(f"renaming {old} to {new} would give two columns one name; the batch has {self._keys()}")
        if self.batch is not None:
            columns = {renamed.get(key, key): column for key, column in self.batch.items()}
            self.batch = TensorDict(columns, batch_size=self.batch.batch_size, device=self.batch.device)
        self.non_tensor_batch = {renamed.get(key, key): array for key, array in (self.non_tensor_batch or {}).items()}
        return self

    def union(self: Self, other: DataProto) -> Self:
        """Take over the keys of ``other`` in place and return this batch; keys of both must hold equal values.

        Raises:
            BatchError: Different numbers of rows.
            MergeConflictError: A key with another value; nothing was changed.
        """
        check_union(self._columns(), other._columns(), self.meta_info, other.meta_info)
        self._become(union_columns(self._columns(), other._columns()))
        self.meta_info = {**other.meta_info, **self.meta_info}
        return self

    # ---------------------------------------------------------------- padding

    def is_padding_enabled(self) -> bool:
        """Tell whether this batch may be cut unevenly or padded: its own switch, or that of all batches."""
        return self._auto_padding or DataProtoConfig.auto_padding

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Add ``padding_size`` copies of the last row, or of the first one (``"first"``), in place.

        Raises:
            BatchError: A negative size, or no row to copy.
        """
        self.check_consistency()
        numbers = padded_numbers(len(self), padding_size, padding_candidate)
        if padding_size:
            self._become(self._columns().take(numbers))

    # ---------------------------------------------------------------- elsewhere

    def to(self: Self, device: str | int | torch.device) -> Self:
        """Move the tensors to a device, in place, and return this batch."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def to_tensordict(self) -> TensorDict:
        """Return one TensorDict of everything: arrays as stacked, meta as lone non-tensor values.

        Raises:
            BatchError: A name that is both a column and a key of the meta.
        """
        self.check_consistency()
        return summary.as_tensordict(self.batch, self.non_tensor_batch or {}, self.meta_info, len(self))

    def save_to_disk(self, filepath: str) -> None:
        """Write this batch to a file that ``load_from_disk`` reads; the file is complete or not there."""
        disk.save(self, filepath)

    @staticmethod
    def load_from_disk(filepath: str, trusted: bool = False) -> DataProto:
        """Read a batch that ``save_to_disk`` wrote.

        A file can be made to run code when it is read. So only tensors, arrays and plain Python values are read unless
        you say that the file is ``trusted``, which allows objects of any class.

        Raises:
            BatchError: Not such a file, or it holds objects of other classes.
        """
        loaded = disk.load(filepath, DataProto, trusted)
        if not isinstance(loaded, DataProto):
            raise BatchError(f"{filepath} holds a {type(loaded).__name__}, not a DataProto")
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that travels: all but the mark of a cut in this process."""
        return {**self.__dict__, "_cut": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a state."""
        self.__dict__.update(state)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Travel as raw memory, out of band with pickle protocol 5."""
        return reduce_object(self, self.__getstate__())

    def __copy__(self: Self) -> Self:
        """Return a batch with dicts of its own over the same memory."""
        columns = self._columns()
        batch = columns.batch if columns.batch is None else columns.batch.copy()
        return self._derive(Columns(batch, columns.arrays, columns.row_ids))


def _names(keys: str | Sequence[str] | None) -> list[str]:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, (list, tuple)) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"rename takes a name or a list of names, not {type(keys).__name__}")
    return list(keys)


__all__ = ["DataProto", "DataProtoConfig", "DataProtoItem", "object_array"]
