"""Worker classes that the tests of live changes share, one for each way to keep a state."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed
from torch import nn

from core import (
    DataProto,
    Dispatch,
    Execute,
    ReplicatedState,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)


class Faults:
    """What a test wants to go wrong in workers of its own process: at which stage, on which rank, how often."""

    stage: ClassVar[str] = ""
    rank: ClassVar[int] = 0
    times: ClassVar[int] = 1000
    gate: ClassVar[threading.Event] = threading.Event()

    @classmethod
    def let_go(cls) -> None:
        """Let nothing go wrong any more, and nobody wait."""
        cls.stage, cls.rank, cls.times = "", 0, 1000
        cls.gate.set()

    @classmethod
    def strike(cls, stage: str, rank: int) -> None:
        """Raise if a test asked for it, or wait for the test."""
        if cls.rank == rank and cls.stage == f"slow {stage}":
            cls.gate.wait(20)
        elif (cls.stage, cls.rank) == (stage, rank) and cls.times > 0:
            cls.times -= 1
            raise RuntimeError(f"{stage} was to fail")


class Plain(Worker):
    """Says who it is; has no way to keep a state."""

    def __init__(self) -> None:
        """Begin."""
        super().__init__()
        Faults.strike("__init__", self.rank)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int]:
        """Return rank and world size."""
        return self.rank, self.world_size

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def process(self) -> int:
        """Return the process's id."""
        return os.getpid()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def double(self, batch: DataProto) -> DataProto:
        """Return twice the ids."""
        return DataProto.from_dict({"id": 2 * batch.batch["id"]})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def double_later(self, batch: DataProto) -> DataProto:
        """Return twice the ids, non-blocking."""
        return DataProto.from_dict({"id": 2 * batch.batch["id"]})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, seconds: float) -> int:
        """Take a while."""
        time.sleep(seconds)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def wait_later(self) -> int:
        """Wait for the test, on the local cluster."""
        Faults.gate.wait(20)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def nap(self, seconds: float) -> int:
        """Take a while, non-blocking."""
        time.sleep(seconds)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        """Raise."""
        raise ValueError("as asked")


class Stateless(Plain):
    """Is built anew."""

    stateless = True


class Counting(Plain):
    """Keeps a sum by hooks of its own; every rank's part is told apart."""

    def __init__(self, start: int = 0) -> None:
        """Begin with ``start``."""
        super().__init__()
        self.total = start
        self.heard: list[int] = []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, value: int) -> int:
        """Add and return the sum."""
        self.total += value
        return self.total

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def told(self) -> list[int]:
        """Return the old ranks whose states this one was given."""
        return self.heard

    def save_state(self) -> dict[str, int]:
        """Return the sum."""
        Faults.strike("save_state", self.rank)
        return {"rank": self.rank, "total": self.total}

    def load_state(self, states: Sequence[dict[str, int]]) -> None:
        """Take the sum of old rank 0."""
        Faults.strike("load_state", self.rank)
        self.total = states[0]["total"]
        self.heard = [state["rank"] for state in states]


class Enduring(Counting):
    """Takes the sum of the first old rank that is left, after a restart as after a change."""

    def load_state(self, states: Sequence[dict[str, int] | None]) -> None:
        """Leave out those that are dead."""
        super().load_state([state for state in states if state is not None])


class Learning(ReplicatedState, Plain):
    """A replicated module with its optimizer and a counter."""

    replicated_values = ("n_steps",)

    def __init__(self, seed: int = 0) -> None:
        """Build the module; a new worker has other weights than a trained one."""
        super().__init__()
        self.model = nn.Linear(64, 64)
        # A generator of its own: workers on the local cluster share the process's.
        drawn = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        self.model.load_state_dict({"weight": drawn, "bias": torch.zeros(64)})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.n_steps = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def learn(self) -> int:
        """Make a step that is equal on all ranks."""
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 64)).square().sum().backward()
        self.optimizer.step()
        self.n_steps += 1
        return self.n_steps

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def digest(self) -> str:
        """Return a hash of weights, optimizer and counter."""
        told = hashlib.sha256(str(self.n_steps).encode())
        for value in self.model.state_dict().values():
            told.update(value.numpy().tobytes())
        for moments in self.optimizer.state_dict()["state"].values():
            for name in sorted(moments):
                told.update(moments[name].numpy().tobytes())
        return told.hexdigest()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def weights(self) -> dict[str, Any]:
        """Return rank 0's weights."""
        return self.model.state_dict()


class Staying(Plain):
    """Stays in its process and is told its new place."""

    def __init__(self) -> None:
        """Remember how often the place changed."""
        super().__init__()
        self.n_moves = 0

    def reconfigure(self) -> None:
        """Count."""
        Faults.strike("reconfigure", self.rank)
        self.n_moves += 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def moves(self) -> int:
        """Return how often the place changed."""
        return self.n_moves


class RingLearner(Learning):
    """A replicated model in a process group, which every new set of workers forms anew."""

    def __init__(self, seed: int = 0) -> None:
        """Join the group of the ranks of now."""
        super().__init__(seed)
        torch.distributed.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sum_of_ranks(self) -> float:
        """Add up the ranks over the process group."""
        return sum_over_ring(self.rank)


class Ring(Enduring):
    """Counts in a process group, which every new set of workers forms anew."""

    def __init__(self, start: int = 0) -> None:
        """Join the group of the ranks of now."""
        super().__init__(start)
        torch.distributed.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sum_of_ranks(self) -> float:
        """Add up the ranks over the process group."""
        return sum_over_ring(self.rank)


def sum_over_ring(value: float) -> float:
    """Add up a number over the process group."""
    total = torch.tensor([float(value)])
    torch.distributed.all_reduce(total)
    return float(total)


def dispatch_after_a_question(worker_group: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Ask the workers something before their arguments are dealt, as a mode of a user's own may."""
    n_ranks = len(worker_group.place())
    return tuple([value] * n_ranks for value in args), {name: [value] * n_ranks for name, value in kwargs.items()}


def collect_all(worker_group: Any, output: Any) -> Any:
    """Return what came."""
    del worker_group
    return output


class Asking(Stateless):
    """Has a method whose dispatch makes a call."""

    @register(dispatch_mode={"dispatch_fn": dispatch_after_a_question, "collect_fn": collect_all})
    def echo(self, value: Any) -> Any:
        """Return what came."""
        return value


class Meshed(Stateless):
    """Two ranks for each data-parallel rank."""

    def __init__(self) -> None:
        """Say the place in the mesh."""
        super().__init__()
        self._register_dispatch_collect_info("dp", self.rank // 2, self.rank % 2 == 0)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("dp"))
    def double_once(self, batch: DataProto) -> DataProto:
        """Return twice the ids, from one of each two ranks."""
        return DataProto.from_dict({"id": 2 * batch.batch["id"]})
