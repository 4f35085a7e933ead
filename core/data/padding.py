"""Rows that fill a batch up, so that it divides."""

from __future__ import annotations

import os

import numpy as np
import torch

from core.errors import BatchError


class _PaddingSwitch(type):
    """Makes ``DataProtoConfig.auto_padding`` settable; until then it follows the environment."""

    _auto_padding: bool | None = None

    @property
    def auto_padding(cls) -> bool:
        """Return whether batches that do not divide are padded: what was set, else VERL_AUTO_PADDING ("1")."""
        if cls._auto_padding is not None:
            return cls._auto_padding
        return os.environ.get("VERL_AUTO_PADDING", "").strip().lower() in ("1", "true", "yes", "on")

    @auto_padding.setter
    def auto_padding(cls, enabled: bool | None) -> None:
        """Switch it for this process; None follows the environment again."""
        cls._auto_padding = None if enabled is None else bool(enabled)


class DataProtoConfig(metaclass=_PaddingSwitch):
    """Settings of all batches in this process: ``auto_padding``."""


def padded_numbers(n_rows: int, size: int, candidate: str = "") -> torch.Tensor:
    """Return the rows of a batch followed by ``size`` times its first (``candidate="first"``) or last row.

    Raises:
        BatchError: A negative size, an unknown candidate, or no row to repeat.
    """
    if size < 0:
        raise BatchError(f"padding_size must not be negative, got {size}")
    if candidate not in ("", "first", "last"):
        raise BatchError(f"padding repeats the 'first' or the 'last' row, not {candidate!r}")
    if n_rows == 0 and size:
        raise BatchError(f"a batch without rows cannot be padded by {size} rows: there is no row to repeat")
    row = 0 if candidate == "first" else n_rows - 1
    return torch.cat([torch.arange(n_rows), torch.full((size,), row, dtype=torch.int64)])


def cycled_numbers(n_rows: int, divisor: int) -> torch.Tensor:
    """Return the rows of a batch followed by its first ones again, as often as it takes to divide by ``divisor``.

    Raises:
        BatchError: The divisor is below 1.
    """
    if divisor < 1:
        raise BatchError(f"size_divisor must be at least 1, got {divisor}")
    total = -(-n_rows // divisor) * divisor
    return torch.from_numpy(np.arange(total, dtype=np.int64) % max(n_rows, 1))
