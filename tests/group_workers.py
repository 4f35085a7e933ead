"""Worker classes that the tests of groups share: importable, so that a worker process finds them by name."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import torch
import torch.distributed

from core import (
    DataProto,
    Dispatch,
    Execute,
    Worker,
    collect_dp_compute_data_proto,
    dispatch_dp_compute_data_proto,
    register,
)


def behave(batch: DataProto, how: str) -> Any:
    """Do with a batch what ``how`` says: the kinds of methods that padding must get right."""
    ids = batch.batch["id"]
    match how:
        case "keep":
            return batch
        case "add column":
            batch.batch["y"] = 2 * ids
            return batch
        case "interleave":
            return batch.repeat(2)
        case "tile":
            return batch.repeat(2, interleave=False)
        case "drop":
            return batch[ids.flatten() % 2 == 0]
        case "reorder":
            return batch[list(range(len(batch)))[::-1]]
        case "fresh":
            return DataProto.from_dict({"y": 2 * ids})
        case "fresh interleaved":
            return DataProto.from_dict({"y": (2 * ids).repeat_interleave(2, dim=0)})
        case "list":
            return [f"row {int(row)}" for row in ids.flatten()]
        case "metric":
            return {"rows": len(batch)}
        case "columns":
            return {"y": 2 * ids, "z": ids + 0.5}
        case "none":
            return None
    raise ValueError(f"no method behaves as {how!r}")


class Rows(Worker):
    """Methods over rows, each registered in several ways."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def act(self, batch: DataProto, how: str) -> Any:
        """Behave, rows as the batch says."""
        return behave(batch, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def act_later(self, batch: DataProto, how: str) -> Any:
        """Behave, non-blocking."""
        return behave(batch, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def act_pad(self, batch: DataProto, how: str) -> Any:
        """Behave, padded."""
        return behave(batch, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="pad", blocking=False)
    def act_pad_later(self, batch: DataProto, how: str) -> Any:
        """Behave, padded, non-blocking."""
        return behave(batch, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="split")
    def act_split(self, batch: DataProto, how: str) -> Any:
        """Behave on uneven shares."""
        return behave(batch, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="split", blocking=False)
    def act_split_later(self, batch: DataProto, how: str) -> Any:
        """Behave on uneven shares, non-blocking."""
        return behave(batch, how)

    @register(
        dispatch_mode={"dispatch_fn": dispatch_dp_compute_data_proto, "collect_fn": collect_dp_compute_data_proto}
    )
    def act_custom(self, batch: DataProto, how: str) -> Any:
        """Behave, in a mode made of the functions that core offers."""
        return behave(batch, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def count(self, batch: DataProto) -> int:
        """Return the rows this rank got."""
        return len(batch)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def echo(self, value: Any) -> Any:
        """Return what came."""
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def echo_later(self, value: Any) -> Any:
        """Return what came, non-blocking."""
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def echo_zero(self, value: Any) -> Any:
        """Return the rank and what came, on rank 0."""
        return self.rank, value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO, blocking=False)
    def echo_zero_later(self, value: Any) -> Any:
        """Return the rank and what came, on rank 0, non-blocking."""
        return self.rank, value

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def echo_rank_zero(self, value: Any) -> Any:
        """Return the rank and what came, by the mode of that name."""
        return self.rank, value

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def echo_all(self, value: Any, other: Any = None) -> Any:
        """Return what came, by the convention for lists."""
        return value if other is None else (value, other)

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def deal(self, value: Any) -> Any:
        """Return the item that came to this rank."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def deal_later(self, value: Any) -> Any:
        """Return the item that came to this rank, non-blocking."""
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, rank: int) -> int:
        """Raise on one rank."""
        if self.rank == rank:
            raise KeyError(f"no such thing on rank {rank}")
        return self.rank

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def fail_later(self, batch: DataProto) -> DataProto:
        """Raise on rank 1, non-blocking."""
        if self.rank == 1:
            raise ValueError("no rows for rank 1")
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def nap_later(self, seconds_per_rank: float) -> None:
        """Sleep longer on higher ranks, non-blocking."""
        time.sleep(seconds_per_rank * self.rank)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nap(self, seconds: float) -> int:
        """Sleep, then say who slept."""
        time.sleep(seconds)
        return os.getpid()

    def unregistered(self, value: Any = None) -> tuple[int, Any]:
        """Return the rank and what came; only ``execute_*`` reach it."""
        return self.rank, value


class Async(Rows):
    """A class with an ``async def`` method beside the others."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    async def act_async(self, batch: DataProto) -> DataProto:
        """Add a column after a pause on the event loop."""
        await asyncio.sleep(0.001)
        batch.batch["y"] = 2 * batch.batch["id"]
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def fail_async(self) -> None:
        """Raise after a pause on the event loop."""
        await asyncio.sleep(0.001)
        raise LookupError(f"nothing on rank {self.rank}")


def _environment() -> dict[str, str]:
    return {name: os.environ.get(name, "not set") for name in (*Worker.env_keys(), "PODIUM_TEST")}


class Ring(Rows):
    """A worker that needs its whole group to be built: it joins a process group in its constructor."""

    def __init__(self) -> None:
        """Join the group, as training workers do."""
        super().__init__()
        torch.distributed.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sum_of_ranks(self) -> float:
        """Add up the ranks over the process group."""
        total = torch.tensor([float(self.rank)])
        torch.distributed.all_reduce(total)
        return float(total)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def environment(self) -> dict[str, str]:
        """Return the variables that the contract names."""
        return _environment()


class AsyncRing(Async):
    """A worker of a process group that has async methods too."""

    def __init__(self) -> None:
        """Join the group, as training workers do."""
        super().__init__()
        torch.distributed.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sum_of_ranks(self) -> float:
        """Add up the ranks over the process group."""
        total = torch.tensor([float(self.rank)])
        torch.distributed.all_reduce(total)
        return float(total)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def environment(self) -> dict[str, str]:
        """Return the variables that the contract names."""
        return _environment()


class Faulty(Worker):
    """A worker that does not come up on rank 1."""

    def __init__(self, fault: str) -> None:
        """Raise, or end the process, on rank 1."""
        super().__init__()
        if self.rank == 1:
            if fault == "exit":
                os._exit(3)
            raise RuntimeError(f"cannot load {fault}")


class Held:
    """A lock that a test holds while a worker of its own process waits for it."""

    gate = threading.Event()


class Waiting(Rows):
    """A worker on the local cluster whose call lasts until the test lets it end."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def wait_later(self) -> int:
        """Wait for the test."""
        Held.gate.wait(10)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait(self) -> int:
        """Wait for the test, and so does the driver."""
        Held.gate.wait(10)
        return self.rank

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def wait_with_rows(self, batch: DataProto) -> DataProto:
        """Wait for the test, with rows."""
        Held.gate.wait(10)
        return batch

    def slow_on_one(self) -> None:
        """Fail on rank 0, wait for the test on others."""
        if self.rank == 0:
            raise ValueError("rank 0 gave up")
        Held.gate.wait(10)
