"""The worker of the tests that move bytes through a real Ray: importable, so that a worker process finds it by name."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from core import DataProto, Dispatch, Worker, register
from core.data import private_mmap, zero_copy


class Taken:
    """Counts the bytes of tensors that arrive in this process."""

    n_bytes = 0

    @classmethod
    def count(cls) -> None:
        """Begin to count; only once in a process."""
        if getattr(zero_copy, "counted", False):
            return
        take = private_mmap.private_view

        def counting(array: Any) -> Any:
            cls.n_bytes += array.nbytes
            return take(array)

        zero_copy.private_view = counting  # type: ignore[attr-defined]
        lend = zero_copy.BorrowedBuffers.add

        def lending(self: Any, array: Any) -> None:
            cls.n_bytes += array.nbytes
            lend(self, array)

        zero_copy.BorrowedBuffers.add = lending  # type: ignore[method-assign]
        zero_copy.counted = True  # type: ignore[attr-defined]


@dataclass
class Wrapped:
    """An object of a user's own that keeps a batch."""

    inner: DataProto


class Bytes(Worker):
    """Takes, keeps, changes and gives back what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give_back(self, value: Any) -> Any:
        """Give back what all ranks got."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo(self, batch: DataProto) -> DataProto:
        """Give the rows back."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo_in_turn(self, batch: DataProto, turns: list[float], last: str) -> DataProto:
        """Give the rows back after this rank's turn; the last rank's in another way."""
        time.sleep(turns[self.rank])
        if last == "each twice":
            return batch.repeat(2)
        if self.rank == self.world_size - 1:
            if last == "of another type":
                batch.batch["x"] = batch.batch["x"].double()
            elif last == "shorter":
                return batch[:-1]
            elif last == "not at all":
                raise ValueError("not at all")
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def echo_in_turn_later(self, batch: DataProto, turns: list[float], last: str) -> DataProto:
        """Do so for a driver that goes on meanwhile."""
        return self.echo_in_turn(batch, turns, last)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def pass_on(self, batch: DataProto) -> DataProto:
        """Give the rows back, each a little larger, as a future."""
        batch.batch["x"] += 1
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def count_bytes(self) -> int:
        """Begin to count what arrives here; return what has arrived since the last time."""
        Taken.count()
        n_bytes, Taken.n_bytes = Taken.n_bytes, 0
        return n_bytes

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def write(self, tensor: torch.Tensor, array: np.ndarray[Any, Any]) -> tuple[int, float, float, int]:
        """Write this rank's number all over, keep it, and tell what stands there, and how much is mapped privately."""
        tensor.fill_(self.rank + 1)
        array[:] = self.rank + 1
        self.kept = tensor, array
        return os.getpid(), float(tensor.float().mean()), float(array.mean()), len(private_mmap._living)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look_again(self) -> tuple[float, float, int]:
        """Tell what stands in what was kept, and how much of it still pins an object of the store."""
        tensor, array = self.kept
        pinned = sum(memory.pinned is not None for memory in private_mmap._living)
        return float(tensor.float().mean()), float(array.mean()), pinned

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, zero_copy=True)
    def write_to_views(self, tensor: torch.Tensor, array: np.ndarray[Any, Any]) -> tuple[int, bool, str, float]:
        """Try to write into what was to be read only."""
        refused = ""
        try:
            array[:] = 7
        except ValueError as error:
            refused = str(error)
        tensor.fill_(self.rank + 5)
        return os.getpid(), bool(array.flags.writeable), refused, float(tensor.float().mean())
