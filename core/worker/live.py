"""What becomes of a worker's state when its group is given other workers.

A class says so itself, in one of three ways: ``stateless = True``; ``save_state()`` and ``load_state(states)``; or
``reconfigure()``, for processes that stay and get a new rank. ``ReplicatedState`` has the second ready for
replicated modules and optimizers. A class that says nothing is not changed while it runs: it could lose what it holds.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import nn

from core.worker.worker import Worker


@runtime_checkable
class SavesState(Protocol):
    """A worker whose state can be taken out and put into another one."""

    def save_state(self) -> Any:
        """Return what must survive; it travels through the cluster's store, never through the driver."""
        ...

    def load_state(self, states: Sequence[Any]) -> None:
        """Take over ``states``, what every old rank saved, in rank order; there may be more or fewer than ranks now."""
        ...


@runtime_checkable
class Reconfigures(Protocol):
    """A worker that stays when its group's size or its rank changes."""

    def reconfigure(self) -> None:
        """Settle on the new rank, world size and rendezvous, which ``self`` and the environment have already."""
        ...


def can_call(user_class: type, name: str, n_arguments: int) -> bool:
    """Whether a class has a method that can be called so: others may use the name for something else."""
    method = inspect.getattr_static(user_class, name, None)
    if not inspect.isfunction(method):
        return False
    try:
        inspect.signature(method).bind(*[None] * (1 + n_arguments))
    except TypeError:
        return False
    return True


class ReplicatedState:
    """For workers whose modules and optimizers are equal on all ranks: every new rank gets those of old rank 0.

    What is an ``nn.Module``, an optimizer or a learning-rate scheduler among the attributes is found by itself; plain
    values such as counters are named in ``replicated_values``. Write it before ``Worker`` in the list of bases.
    """

    replicated_values: ClassVar[tuple[str, ...]] = ()

    def save_state(self) -> Mapping[str, Any] | None:
        """Return rank 0's state dicts and values; the other ranks hold the same and return None."""
        return None if isinstance(self, Worker) and self.rank != 0 else self.save_replica()

    def save_replica(self) -> Mapping[str, Any]:
        """Return this rank's state dicts and values, which are as good as any other rank's."""
        return {
            "values": {name: getattr(self, name) for name in self.replicated_values},
            "dicts": {name: _on_cpu(part.state_dict()) for name, part in _replicated(self).items()},
        }

    def load_state(self, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Take over what rank 0 saved.

        Raises:
            ValueError: There is no saved state, or this worker has other modules or optimizers.
        """
        saved = next((state for state in states if state is not None), None)
        if saved is None:
            raise ValueError(f"none of the {len(states)} old ranks saved a state")
        own = _replicated(self)
        if own.keys() != saved["dicts"].keys():
            raise ValueError(f"saved were {sorted(saved['dicts'])}, this worker has {sorted(own)}")
        # Modules before the optimizers that hold their parameters: an optimizer casts its state to theirs.
        for name in sorted(own, key=lambda name: not isinstance(own[name], nn.Module)):
            own[name].load_state_dict(saved["dicts"][name])
        for name, value in saved["values"].items():
            setattr(self, name, value)


def _replicated(worker: object) -> dict[str, Any]:
    kinds = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    return {name: value for name, value in vars(worker).items() if isinstance(value, kinds)}


def _on_cpu(value: Any) -> Any:
    """Return a state dict with copies of its tensors in main memory: the worker may go on while they travel."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _on_cpu(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(one) for one in value)
    return value
