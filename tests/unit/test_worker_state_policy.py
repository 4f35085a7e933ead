"""How a class's state survives a live change, as read from the class; and the mixin for replicated state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from core import RayClassWithInitArgs, ReplicatedState, Worker, create_colocated_worker_raw_cls
from core.worker import StatePolicy, can_save_state, savers, state_policy, unsaved


class Nothing(Worker):
    pass


class Stateless(Worker):
    stateless = True

    def save_state(self, path: str) -> None:
        """Something else."""


class Stateful(Stateless):
    stateless = False

    def save_state(self) -> Any:  # type: ignore[override]
        return "state"

    def load_state(self, states: Sequence[Any]) -> None:
        self.loaded = list(states)


class OddHooks(Worker):
    def save_state(self, path: str) -> None:
        """Something else."""

    def load_state(self) -> None:
        """Something else."""

    def reconfigure(self, settings: dict[str, Any]) -> None:
        """Something else."""


class Staying(Worker):
    def reconfigure(self) -> None:
        """Stay."""


class Replicated(ReplicatedState, Worker):
    replicated_values = ("n_steps",)

    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.n_steps = 0

    @property
    def rank(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("user_class", "expected"),
    [
        (Nothing, StatePolicy.NOTHING),
        (Stateless, StatePolicy.STATELESS),
        (Stateful, StatePolicy.STATE),
        (OddHooks, StatePolicy.NOTHING),
        (Staying, StatePolicy.RECONFIGURE),
        (Replicated, StatePolicy.STATE),
    ],
)
def test_a_class_says_how_its_state_survives(user_class: type, expected: StatePolicy) -> None:
    assert state_policy(user_class) is expected


def fused(*roles: type) -> type:
    made = {f"role{number}": RayClassWithInitArgs(role) for number, role in enumerate(roles)}
    return create_colocated_worker_raw_cls(made)


def test_roles_in_one_process_are_kept_if_each_is() -> None:
    assert state_policy(fused(Stateless, Stateless)) is StatePolicy.STATELESS
    assert state_policy(fused(Stateless, Replicated)) is StatePolicy.STATE
    mixed = fused(Replicated, Nothing, Staying)
    assert state_policy(mixed) is StatePolicy.NOTHING
    assert unsaved(mixed) == ("Nothing", "Staying")
    assert savers(mixed) == (Replicated,)
    assert not can_save_state(fused(Stateless))
    assert (savers(Replicated), unsaved(Replicated)) == ((Replicated,), ())
    assert (savers(Staying), unsaved(Staying)) == ((), ("Staying",))


def test_each_role_is_handed_its_own_states() -> None:
    worker: Any = object.__new__(fused(Stateless, Stateful))
    worker.fused_worker_dict = {
        "role0": object.__new__(Stateless),
        "role1": object.__new__(Stateful),
    }
    assert worker.save_state() == {"role1": "state"}
    worker.load_state([{"role1": 1}, None, {"role1": 2}])
    assert worker.fused_worker_dict["role1"].loaded == [1, None, 2]


def test_replicated_state_is_found_saved_apart_and_loaded() -> None:
    old, new = Replicated(), Replicated()
    for _ in range(2):
        old.model(torch.ones(1, 2)).sum().backward()
        old.optimizer.step()
        old.schedule.step()
        old.n_steps += 1
    saved = old.save_state()
    assert saved is not None
    with torch.no_grad():
        old.model.weight.zero_()
    new.load_state([None, saved])
    assert not torch.equal(new.model.weight, old.model.weight)
    assert torch.equal(new.model.weight, saved["dicts"]["model"]["weight"])
    assert new.optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    assert new.schedule.last_epoch == 2
    assert new.n_steps == 2


def test_states_that_do_not_fit_are_refused_with_what_there_is() -> None:
    worker = Replicated()
    with pytest.raises(ValueError, match="none of the 2 old ranks saved a state"):
        worker.load_state([None, None])
    with pytest.raises(ValueError, match=r"saved were \['critic'\], this worker has"):
        worker.load_state([{"dicts": {"critic": {}}, "values": {}}])
