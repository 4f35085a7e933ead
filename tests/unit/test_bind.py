"""Which methods of a class a group offers, and what stands for them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.controller import Controller
from core.errors import RegistrationError
from core.group.bind import BoundMethod, bind, registered_methods
from core.testing import RecordingObserver


class Base(Worker):
    """A class with one registered method and one that is not."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def inherited(self, value: int, *, scale: float = 2.0) -> float:
        """Scale a value."""
        return value * scale

    def plain(self) -> None:
        """Do nothing."""


class Derived(Base):
    """Adds a method and a property that must not be run while binding."""

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def own(self) -> str:
        """Answer."""
        return "own"

    @property
    def explosive(self) -> None:
        """Raise when looked at."""
        raise RuntimeError("a property was run")


def test_inherited_and_own_registered_methods_are_found_and_no_others() -> None:
    names = {method.name for method in registered_methods(Derived, ())}
    assert {"inherited", "own", "execute_with_func_generator", "execute_func_rank_zero"} <= names
    assert not names & {"plain", "explosive"}


def test_an_override_without_register_takes_the_method_from_the_group() -> None:
    class Hidden(Base):
        def inherited(self, value: int, *, scale: float = 2.0) -> float:
            return 0.0

    assert "inherited" not in {method.name for method in registered_methods(Hidden, ())}


def test_a_bound_method_has_the_name_signature_and_docstring_of_the_workers() -> None:
    (method,) = (one for one in registered_methods(Base, ()) if one.name == "inherited")
    calls: list[Any] = []
    bound = bind(method, lambda *call: calls.append(call))
    assert type(bound).__name__ == "inherited"
    assert isinstance(bound, BoundMethod)
    assert bound.__name__ == "inherited"
    assert bound.__doc__ == "Scale a value."
    assert str(inspect.signature(bound)) == "(value: 'int', *, scale: 'float' = 2.0) -> 'float'"
    bound(3, scale=1.0)
    assert calls == [(method, (3,), {"scale": 1.0})]


@pytest.mark.parametrize("name", ["execute_all_async", "workers", "close", "world_size", "name", "_state", "_perform"])
def test_fault_13_a_method_that_would_hide_one_of_the_groups_own_is_refused_by_name(
    local: tuple[Controller, RecordingObserver], name: str
) -> None:
    def method(self: Worker) -> None:
        """Hide something."""

    clashing = type("Clashing", (Worker,), {name: register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)})
    pool = RayResourcePool([1])
    with pytest.raises(RegistrationError, match=rf"Clashing\.{name} .* rename the method"):
        RayWorkerGroup(pool, RayClassWithInitArgs(clashing))
    assert pool.groups == ()


def test_a_group_that_is_built_has_no_attribute_that_a_method_could_still_replace(
    local: tuple[Controller, RecordingObserver],
) -> None:
    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Derived))
    own = {name for name, value in vars(group).items() if not isinstance(value, BoundMethod)}
    for name in own:

        def method(self: Worker) -> None:
            """Hide something."""

        clashing = type("Clashing", (Worker,), {name: register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)})
        with pytest.raises(RegistrationError):
            RayWorkerGroup(group.resource_pool, RayClassWithInitArgs(clashing))


def test_a_workers_argument_may_have_any_name(local: tuple[Controller, RecordingObserver]) -> None:
    class Named(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def echo(self, packed: int, method: int, args: int, group: int) -> list[int]:
            return [packed, method, args, group]

    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Named))
    assert group.echo(packed=1, method=2, args=3, group=4) == [[1, 2, 3, 4]]
