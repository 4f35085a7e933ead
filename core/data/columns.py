"""What a batch is made of, without its meta: the columns of all kinds and the identity of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.objects import Array
from core.data.tensors import (
    cat_arrays,
    cat_tensordicts,
    check_same_keys,
    cut_tensordict,
    take_tensordict,
)
from core.errors import BatchError


@dataclass(frozen=True, slots=True)
class Columns:
    """Tensors, arrays and row ids of one length; every method returns new ones and changes nothing."""

    batch: TensorDictBase | None
    arrays: dict[str, Array]
    row_ids: Array | None

    @property
    def n_rows(self) -> int:
        """Return the number of rows, 0 without columns."""
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return next((int(array.shape[0]) for array in self.arrays.values()), 0)

    def shallow(self) -> Columns:
        """Return the same columns in dicts of their own."""
        return Columns(None if self.batch is None else self.batch.copy(), dict(self.arrays), self.row_ids)

    def take(self, index: torch.Tensor) -> Columns:
        """Return the rows ``index`` (int64, not negative, repeats allowed) as a copy."""
        numbers = index.numpy()
        return Columns(
            None if self.batch is None else take_tensordict(self.batch, index, {}),
            {key: array[numbers] for key, array in self.arrays.items()},
            None if self.row_ids is None else self.row_ids[numbers],
        )

    def cut(self, start: int, stop: int) -> Columns:
        """Return the rows ``start`` to ``stop``, views of the same memory."""
        return Columns(
            None if self.batch is None else cut_tensordict(self.batch, start, stop, {}),
            {key: array[start:stop] for key, array in self.arrays.items()},
            None if self.row_ids is None else self.row_ids[start:stop],
        )


def cat_columns(parts: Sequence[Columns]) -> Columns:
    """Join parts along their rows; row ids stay only if every part has them.

    Raises:
        BatchError: Some parts have tensors and others none, or shapes differ.
        MergeConflictError: A key is missing in a part.
    """
    batches = [part.batch for part in parts if part.batch is not None]
    if batches and len(batches) < len(parts):
        number = next(number for number, part in enumerate(parts) if part.batch is None)
        keys = ", ".join(sorted(map(str, batches[0].keys())))
        raise BatchError(f"part {number} of {len(parts)} has no tensors, but others have: {keys}")
    check_same_keys([set(part.arrays) for part in parts], "non_tensor_batch")
    ids = [part.row_ids for part in parts if part.row_ids is not None]
    return Columns(
        cat_tensordicts(batches, {}) if batches else None,
        {key: cat_arrays([part.arrays[key] for part in parts], key) for key in parts[0].arrays},
        np.concatenate(ids) if len(ids) == len(parts) else None,
    )
