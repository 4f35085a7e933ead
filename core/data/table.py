"""What every DataProto is: three fields, the identity of its rows, equality, and a state that travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.build import check_columns
from core.data.columns import Columns
from core.data.equality import values_equal
from core.data.kinds import check_tensors
from core.data.objects import Array
from core.data.padding import DataProtoConfig
from core.data.wire import reduce_object
from core.errors import BatchError


@dataclass
class DataProtoItem:
    """One row of a DataProto: tensors without the row dimension, one object per array, the batch's meta."""

    batch: TensorDictBase | Any = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Table:
    """The fields of a batch and what its methods are built on."""

    # None when there are no tensors. Typed with Any beside it, so that drivers may write d.batch["x"] without a check.
    batch: TensorDictBase | Any = None
    non_tensor_batch: dict[str, Array] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)
    # Which rows of which earlier batch these are; set by with_row_ids and carried along by every row operation.
    _row_ids: Array | None = field(default=None, init=False, repr=False, compare=False)
    _auto_padding: bool = field(default=False, init=False, repr=False, compare=False)
    # The same object in all parts of one cut in this process, so that concat knows its own parts again.
    _cut: object = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Replace None by empty dicts, and check."""
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()
        if self.batch is not None:
            check_tensors(self.batch)

    def _derive(self, columns: Columns, meta: Mapping[str, Any] | None = None) -> Self:
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

    def _batch_keys(self) -> list[str]:
        return [] if self.batch is None else list(self.batch.keys())

    def _keys(self) -> list[str]:
        return [*(() if self.batch is None else self.batch.keys()), *(self.non_tensor_batch or {})]

    def _column(self, key: str) -> Any:
        if self.batch is not None and key in self._batch_keys():
            return self.batch.get(key)
        return self.non_tensor_batch[key]

    def __len__(self) -> int:
        """Return the number of rows, 0 for an empty batch."""
        return Columns(self.batch, self.non_tensor_batch or {}, None).n_rows

    def __eq__(self, other: object) -> bool:
        """Compare tensors, arrays and meta by value, NaN equal to NaN; row ids and the padding switch do not count."""
        if not isinstance(other, Table):
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

    def with_row_ids(self, ids: Sequence[int] | Array | torch.Tensor | None) -> Self:
        """Return a shallow copy whose rows carry ``ids``, one number per row; None removes them.

        Raises:
            BatchError: Not one id per row.
        """
        array = None if ids is None else np.array(ids, dtype=np.int64)
        if array is not None and array.shape != (len(self),):
            raise BatchError(f"{len(self)} rows need one id each, got ids of shape {array.shape}")
        return self._derive(replace(self._columns().shallow(), row_ids=array))

    def is_padding_enabled(self) -> bool:
        """Return whether this batch may be cut unevenly or padded: its own switch, or that of all batches."""
        return self._auto_padding or DataProtoConfig.auto_padding

    def check_consistency(self) -> None:
        """Make sure that all columns have one number of rows.

        Raises:
            BatchError: They have not; it names key and sizes.
        """
        check_columns(self.batch, {} if self.non_tensor_batch is None else self.non_tensor_batch)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: all but the mark of a split in this process."""
        return {**self.__dict__, "_cut": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the state."""
        self.__dict__.update(state)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle as raw memory, out of band with protocol 5."""
        return reduce_object(self, self.__getstate__())

    def __copy__(self) -> Self:
        """Return a batch with its own dicts over the same memory."""
        return self._derive(self._columns().shallow())
