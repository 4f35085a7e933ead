"""Values that the DP modes cut into shares and join again: DataProto, TensorDict, or a type that can do both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensordict
import torch
from tensordict import TensorDictBase

from core.data.index import balanced_sizes
from core.data.tensors import cat_tensordicts, cut_tensordict
from core.data.weight import payload_bytes
from core.errors import BatchError, UnevenSplitError

__all__ = ["BatchData", "is_chunkable", "is_concatable", "payload_bytes"]


def _has_rows(value: object) -> bool:
    return isinstance(value, TensorDictBase) and value.batch_dims > 0


def _is_type_with(value: object, *methods: str) -> bool:
    if isinstance(value, (type, torch.Tensor)) or tensordict.is_tensor_collection(value):
        return False
    return all(callable(getattr(type(value), method, None)) for method in methods)


def is_chunkable(value: object) -> bool:
    """Return whether a value can be cut into shares: DataProto, TensorDict with rows, or one with chunk and concat."""
    return _has_rows(value) or _is_type_with(value, "chunk", "concat")


def is_concatable(value: object) -> bool:
    """Return whether values like this one can be joined: a DataProto, a TensorDict with rows, or a type with concat."""
    return _has_rows(value) or _is_type_with(value, "concat")


class BatchData:
    """Cutting and joining without knowing which type of batch it is."""

    is_chunkable = staticmethod(is_chunkable)
    is_concatable = staticmethod(is_concatable)

    @staticmethod
    def chunk(value: Any, chunks: int) -> list[Any]:
        """Return ``chunks`` equal parts of ``value``.

        Raises:
            BatchError: The value cannot be cut.
            UnevenSplitError: The rows do not divide.
        """
        if not is_chunkable(value):
            raise BatchError(f"a {type(value).__name__} cannot be cut into {chunks} parts: it lacks chunk and concat")
        if not isinstance(value, TensorDictBase):
            return list(value.chunk(chunks))
        rows = int(value.batch_size[0])
        sizes = balanced_sizes(rows, chunks)
        if sizes[0] != sizes[-1]:
            raise UnevenSplitError(
                f"cannot split {rows} rows into {chunks} equal parts; pass a multiple of {chunks} rows",
                n_rows=rows,
                n_parts=chunks,
            )
        return [cut_tensordict(value, part * sizes[0], (part + 1) * sizes[0], {}) for part in range(chunks)]

    @staticmethod
    def concat(values: Sequence[Any]) -> Any:
        """Join parts of one type, in order.

        Raises:
            BatchError: No part, parts of different types, or of a type that cannot be joined.
        """
        if not values:
            raise BatchError("concat needs at least one part, got an empty list")
        kinds = sorted({type(value).__name__ for value in values})
        if len(kinds) > 1 or not is_concatable(values[0]):
            raise BatchError(f"parts of type {', '.join(kinds)} cannot be joined")
        if isinstance(values[0], TensorDictBase):
            return cat_tensordicts(list(values), {})
        return type(values[0]).concat(list(values))
