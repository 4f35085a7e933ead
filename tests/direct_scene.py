"""The batch of the tests of results that stay on their workers, and how two of them are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from core import DataProto
from tests.unit.test_data_proto_wire import DTYPES, bits, random_tensor

MIB = 1 << 20


def batch_of_everything() -> DataProto:
    """Return eight rows of every kind that can travel, large enough to be worth the way."""
    columns: dict[str, Any] = {f"c{n}": random_tensor((8, 3), dtype) for n, dtype in enumerate(DTYPES)}
    columns |= {
        "x": torch.randn(8, MIB // 32),
        "empty": torch.empty(8, 0),
        "view": torch.randn(16, 64)[::2, 3:17],
        "conjugated": torch.randn(8, 4, dtype=torch.complex64).conj(),
        "jagged": torch.nested.nested_tensor([torch.randn(n + 1, 700) for n in range(8)], layout=torch.jagged),
    }
    texts = np.array([f"Zürich {n}" for n in range(8)], dtype=object)
    return DataProto.from_dict(columns, {"text": texts, "numbers": np.random.rand(8, 40_000)}, {"lr": 0.5})


def same(one: DataProto, other: DataProto) -> bool:
    """Compare two batches bit for bit."""
    if list(one.batch.keys()) != list(other.batch.keys()) or one.meta_info != other.meta_info:
        return False
    columns: Any = one.batch.items()
    for name, column in columns:
        got: Any = other.batch[name]
        pairs = zip(column.unbind(), got.unbind(), strict=True) if column.is_nested else [(column, got)]
        if any(a.dtype is not b.dtype or bits(a.resolve_conj()) != bits(b) for a, b in pairs):
            return False
    arrays = one.non_tensor_batch
    return all(np.array_equal(arrays[name], other.non_tensor_batch[name]) for name in arrays)
