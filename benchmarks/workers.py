"""The workers that both sides call, and the groups of Podium and of verl that are made of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from core import DataProto, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register

Array = np.ndarray[Any, Any]


class Mover(Worker):
    """A worker that takes and gives bytes, by Podium and by bare Ray."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nothing(self) -> None:
        """Do nothing."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def take(self, batch: DataProto) -> None:
        """Take rows."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo(self, batch: DataProto) -> DataProto:
        """Give the rows back."""
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def hold(self, tensor: torch.Tensor) -> None:
        """Take what all ranks get."""

    def take_arrays(self, arrays: list[Array]) -> None:
        """Take arrays, for bare Ray."""

    def echo_arrays(self, arrays: list[Array]) -> list[Array]:
        """Give arrays back, for bare Ray."""
        return arrays


@contextmanager
def podium_group(n_ranks: int) -> Iterator[Any]:
    """Start a group of ``Mover``; its ``workers`` are the actors that bare Ray is measured on."""
    with (
        RayResourcePool([n_ranks], use_gpu=False, max_colocate_count=1) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Mover)) as group,
    ):
        yield group


def verl_is_importable() -> bool:
    """Tell whether the package verl is there to be measured beside."""
    return importlib.util.find_spec("verl") is not None


def verl_group(n_ranks: int) -> tuple[Any, Any]:
    """Return a group of verl's with the same methods, and verl's own batch class."""
    import ray
    import verl
    from verl.single_controller.base import Worker as VerlWorker
    from verl.single_controller.base.decorator import Dispatch as VerlDispatch
    from verl.single_controller.base.decorator import register as verl_register
    from verl.single_controller.ray import RayClassWithInitArgs as VerlClass
    from verl.single_controller.ray import RayResourcePool as VerlPool
    from verl.single_controller.ray import RayWorkerGroup as VerlGroup

    def nothing(self: Any) -> None:
        """Do nothing."""

    def take(self: Any, batch: Any) -> None:
        """Take rows."""

    def echo(self: Any, batch: Any) -> Any:
        """Give the rows back."""
        return batch

    def hold(self: Any, tensor: Any) -> None:
        """Take what all ranks get."""

    to_all = verl_register(dispatch_mode=VerlDispatch.ONE_TO_ALL)
    rows = verl_register(dispatch_mode=VerlDispatch.DP_COMPUTE_PROTO)
    # The same dispatch, but results are not joined: verl cannot join None.
    only_dealt = verl_register(dispatch_mode=VerlDispatch.DP_COMPUTE_METRIC)
    methods = {"nothing": to_all(nothing), "take": only_dealt(take), "echo": rows(echo), "hold": to_all(hold)}
    mover = type("VerlMover", (VerlWorker,), {**methods, "__module__": __name__})
    pool = VerlPool([n_ranks], use_gpu=False, max_colocate_count=1)
    return VerlGroup(pool, VerlClass(ray.remote(mover))), verl.DataProto
