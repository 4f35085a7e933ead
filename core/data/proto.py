"""The batch: tensors, arrays and meta of one number of rows.

Every method returns a new DataProto and leaves this one as it is, but for those that are in place because the field
knows them so: ``pop``, ``rename``, ``union``, ``reorder``, ``padding`` and ``to``. Dicts are never shared between two
DataProtos; the memory of tensors and arrays may be: a slice is a view, as in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase

from core.data import disk, summary
from core.data.build import arrays_of, batch_of, split_tensordict
from core.data.keywise import KeyMethods
from core.data.padding import DataProtoConfig
from core.data.rowwise import RowMethods
from core.data.table import DataProtoItem
from core.errors import BatchError

__all__ = ["DataProto", "DataProtoConfig", "DataProtoItem"]


class DataProto(RowMethods, KeyMethods):
    """A batch of rows: ``batch`` (tensors), ``non_tensor_batch`` (numpy arrays) and ``meta_info`` (of all rows).

    The constructor keeps the objects that it is given; ``from_dict`` and the other factories copy the dicts.

    Args:
        batch: A TensorDict with one batch dimension, of shape ``(rows,)``, or None.
        non_tensor_batch: Arrays of shape ``(rows, ...)`` by key.
        meta_info: Values for the whole batch by key.

    Raises:
        BatchError: More than one batch dimension, or columns of different numbers of rows.
    """

    @classmethod
    def from_dict(
        cls,
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
        cls, data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None, auto_padding: bool = False
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
        cls,
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

    def get_data_info(self) -> str:
        """Return text with every key's shape, dtype and device, and the nested types of the meta."""
        return summary.describe(self.batch, self.non_tensor_batch or {}, self.meta_info)

    def print_size(self, prefix: str = "") -> None:
        """Print the size of tensors and arrays in GiB, behind ``prefix``."""
        print(summary.size_line(self.batch, self.non_tensor_batch or {}, prefix))

    def to(self, device: str | int | torch.device) -> Self:
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
