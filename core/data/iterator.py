"""The order of mini batches, decided before the first one is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from core.data.index import row_numbers
from core.errors import BatchError

# Options of torch's DataLoader about where the work is done; here rows are taken from memory in this process.
_WITHOUT_EFFECT = frozenset(
    {
        "num_workers",
        "pin_memory",
        "pin_memory_device",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
    }
)


def plan_batches(
    n_rows: int, mini_batch_size: int, epochs: int, seed: int | None, options: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """Check the request and return an iterator over the row numbers of each mini batch.

    Raises:
        BatchError: Rows that do not divide, invalid numbers, or unknown options.
    """
    shuffle, sampler = bool(options.pop("shuffle", False)), options.pop("sampler", None)
    drop_last, generator = bool(options.pop("drop_last", False)), options.pop("generator", None)
    unknown = sorted(set(options) - _WITHOUT_EFFECT)
    if unknown:
        raise BatchError(
            f"make_iterator has no option {unknown[0]!r}; its options are shuffle, sampler, drop_last, generator"
        )
    if shuffle and sampler is not None:
        raise BatchError("make_iterator takes either shuffle=True or a sampler, not both")
    if mini_batch_size < 1 or epochs < 0:
        raise BatchError(
            f"mini_batch_size must be at least 1 and epochs at least 0, got {mini_batch_size} and {epochs}"
        )
    if n_rows % mini_batch_size and not drop_last:
        raise BatchError(
            f"{n_rows} rows do not divide into mini batches of {mini_batch_size}; pass drop_last=True or another size"
        )
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
    return _batches(n_rows, mini_batch_size, epochs, shuffle, sampler, drop_last, generator)


def _batches(
    n_rows: int,
    size: int,
    epochs: int,
    shuffle: bool,
    sampler: Sequence[int] | None,
    drop_last: bool,
    generator: torch.Generator | None,
) -> Iterator[torch.Tensor]:
    for _ in range(epochs):
        if sampler is not None:
            order = row_numbers(list(sampler), n_rows)
        elif shuffle:
            order = torch.randperm(n_rows, generator=generator)
        else:
            order = torch.arange(n_rows)
        for start in range(0, order.shape[0], size):
            rows = order[start : start + size]
            if rows.shape[0] == size or not drop_last:
                yield rows
