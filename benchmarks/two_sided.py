"""What Ray's two-sided tensor transports do to their workers: bare Ray, no Podium; why ``docs/bytes.md`` has no gloo.

Run it with ``python -m benchmarks.two_sided``. Each line is one thing tried on workers of their own, and what became of
it. "nccl" goes through the same code of Ray's; it needs GPUs.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ray
import torch
from ray.experimental.collective import create_collective_group


class Tensors:
    """Makes tensors that stay here, and takes those of others."""

    @ray.method(tensor_transport="gloo")
    def make(self) -> torch.Tensor:
        """Return a tensor that stays."""
        return torch.arange(1000.0)

    def take(self, tensor: torch.Tensor) -> float:
        """Take a tensor that was a plain argument."""
        return float(tensor.sum())

    def take_inside(self, values: list[Any]) -> float:
        """Take a tensor whose reference came within a value."""
        return float(ray.get(values[0]).sum())

    def process(self) -> int:
        """Tell this process."""
        return os.getpid()

    def world(self) -> int | None:
        """Tell the size of the process group that this worker has, None without one."""
        return torch.distributed.get_world_size() if torch.distributed.is_initialized() else None

    def join_world(self, path: str) -> None:
        """Make a process group of this worker's own, as training code does."""
        torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)


def tried(what: str, attempt: Callable[[], object]) -> None:
    """Print what an attempt came to."""
    try:
        came_to = str(attempt())
    except Exception as error:
        came_to = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    print(f"{what}\n    -> {came_to[:300]}", flush=True)


def main() -> None:
    """Try it in a Ray of its own."""
    with tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        try:
            try_all(f"{folder}/own")
        finally:
            ray.shutdown()


def try_all(path: str) -> None:
    """Try it on six workers; ``path`` is for the process group that one of them makes for itself."""
    made: Any = ray.remote(num_cpus=0)(Tensors)
    sender, receiver, third, fourth, with_own, without = (made.remote() for _ in range(6))
    pid = ray.get(sender.process.remote())
    create_collective_group([sender, receiver], "gloo")
    tried("a tensor as a plain argument", lambda: ray.get(receiver.take.remote(sender.make.remote())))
    tried("the driver fetches one", lambda: ray.get(sender.make.remote()))
    tried("within a value, before it is made", lambda: ray.get(receiver.take_inside.remote([sender.make.remote()])))
    there = sender.make.remote()
    ray.wait([there])
    tried("within a value, when it is made", lambda: ray.get(receiver.take_inside.remote([there])))
    tried("torch.distributed of a worker that never asked for it: its size", lambda: ray.get(sender.world.remote()))
    tried("a group for the next hop, to a third worker", lambda: create_collective_group([receiver, third], "gloo"))
    ray.get(with_own.join_world.remote(path))
    tried("a group with a worker that has one", lambda: create_collective_group([with_own, without], "gloo"))
    os.kill(pid, signal.SIGKILL)
    tried("the sender is killed, its tensor is wanted", lambda: ray.get(receiver.take.remote(there)))
    time.sleep(3)
    tried("the receiver, three seconds later", lambda: ray.get(receiver.process.remote()))
    tried("a worker that had no part in it", lambda: ray.get(fourth.process.remote()))


if __name__ == "__main__":
    main()
