"""References on the local cluster: what their values are, and which errors stand in their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.cluster import SpawnRequest
from core.cluster.local import LocalCluster
from core.errors import WorkerDiedError, WorkerMethodError
from core.testing import local_controller
from tests.cluster_actors import Echo


class Unreadable:
    """A value that can be pickled and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


class Giver(Worker):
    """Gives back all kinds of things, later."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def give(self, kind: str) -> Any:
        """Give back a value of that kind."""
        if kind == "error":
            raise LookupError("nothing here")
        return {"value": [1], "generator": (number for number in range(3)), "unreadable": Unreadable()}[kind]


@pytest.fixture
def group() -> Iterator[Any]:
    """One rank."""
    with (
        local_controller(),
        RayResourcePool([1], use_gpu=False) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Giver)) as made,
    ):
        yield made


def test_a_references_value_is_a_fresh_copy(group: Any) -> None:
    (ref,) = group.give("value")
    ref.value().append(2)
    assert ref.value() == [1]


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        ("error", "Giver.give raised LookupError on rank 0: nothing here", LookupError),
        ("generator", "a result could not be sent: TypeError: cannot pickle 'generator' object", TypeError),
        ("unreadable", "cannot unpickle its result: ValueError: invalid literal", ValueError),
    ],
)
def test_what_stands_in_a_values_place_is_a_typed_error(group: Any, kind: str, text: str, cause: type) -> None:
    (ref,) = group.give(kind)
    with pytest.raises(WorkerMethodError, match=text) as caught:
        ref.value()
    assert isinstance(caught.value.__cause__, cause)


def test_the_value_of_a_worker_that_ended_is_an_error_that_says_so() -> None:
    cluster = LocalCluster()
    actor = cluster.spawn(SpawnRequest(Echo, "echo"))
    cluster.kill(actor)
    with pytest.raises(WorkerDiedError, match="worker echo was killed"):
        cluster.ask(actor, "echo", (), {}).value()
