"""The memory behind a tensor or an array, where it lies in one piece and nothing but its bytes matters."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor's bytes as a flat uint8 tensor."""
    # Torch calls a tensor of one element contiguous whatever its stride, and then refuses to view its bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def plain_memory(column: Any) -> Bytes | None:
    """Return the bytes of a column with rows on the CPU, row after row, as a view; None if there is more to it."""
    if type(column) is torch.Tensor:
        is_plain = (
            column.layout is torch.strided
            and not (column.is_nested or column.is_quantized)
            and column.device.type == "cpu"
            and column.ndim > 0
            and column.is_contiguous()
            and not (column.requires_grad or column.is_conj() or column.is_neg())
        )
        return raw_bytes(column).numpy() if is_plain else None
    if type(column) is np.ndarray and column.ndim > 0 and column.flags.c_contiguous and not column.dtype.hasobject:
        return column.reshape(-1).view(np.uint8)
    return None


def address_of(memory: np.ndarray[Any, Any]) -> int:
    """Return where an array's memory begins."""
    return int(memory.__array_interface__["data"][0])
