"""``register`` and the open enums."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from core import (
    DISPATCH_MODE_FN_REGISTRY,
    MAGIC_ATTR,
    Dispatch,
    Execute,
    collect_all_to_all,
    dispatch_one_to_all,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
    register,
    register_dispatch_mode,
    update_dispatch_mode,
)
from core.data.shares import Uneven
from core.dispatch import registration_of
from core.dispatch.modes import OpenEnum
from core.errors import RegistrationError

CUSTOM = {"dispatch_fn": dispatch_one_to_all, "collect_fn": collect_all_to_all}


@pytest.fixture(autouse=True)
def modes_as_before() -> Iterator[None]:
    """Take out what a test registered."""
    members, functions = dict(Dispatch.members), dict(DISPATCH_MODE_FN_REGISTRY)
    yield
    for now, before in ((Dispatch.members, members), (DISPATCH_MODE_FN_REGISTRY, functions)):
        now.clear()
        now.update(before)  # type: ignore[arg-type]


def test_the_registration_is_readable_on_the_method() -> None:
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def method(self: object) -> None:
        """Do it."""

    attrs = getattr(method, MAGIC_ATTR)
    assert attrs["dispatch_mode"] == Dispatch.DP_COMPUTE_PROTO
    assert attrs["execute_mode"] == Execute.ALL
    assert attrs["blocking"] is False
    assert method.__name__ == "method"
    assert method.__doc__ == "Do it."


def test_what_is_not_given_is_all_to_all_on_all_ranks_blocking() -> None:
    registration = registration_of(register()(lambda self: None))
    assert registration is not None
    assert registration.dispatch_mode == Dispatch.ALL_TO_ALL
    assert registration.execute_mode == Execute.ALL
    assert registration.blocking
    assert registration.materialize_futures
    assert registration.uneven is None


def test_one_function_registered_twice_keeps_two_registrations() -> None:
    def method(self: object) -> None:
        """Do it."""

    one, other = register(Dispatch.ONE_TO_ALL)(method), register(Dispatch.DP_COMPUTE)(method)
    assert registration_of(one) != registration_of(other)
    assert registration_of(method) is None


def test_an_async_method_stays_one() -> None:
    @register(Dispatch.ONE_TO_ALL)
    async def method(value: int) -> int:
        return value + 1

    assert inspect.iscoroutinefunction(method)
    assert asyncio.run(method(1)) == 2


def test_uneven_is_given_as_text_or_member() -> None:
    for value in ("pad", Uneven.PAD):
        registration = registration_of(register(Dispatch.DP_COMPUTE_PROTO, uneven=value)(lambda self: None))
        assert registration is not None
        assert registration.uneven is Uneven.PAD


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dispatch_mode": "ONE_TO_ALL"}, "is not a dispatch mode"),
        ({"dispatch_mode": None}, "is not a dispatch mode"),
        ({"dispatch_mode": Execute.ALL}, "is not a dispatch mode"),
        ({"dispatch_mode": {"dispatch_fn": dispatch_one_to_all}}, "collect_fn"),
        ({"dispatch_mode": {"collect_fn": dispatch_one_to_all}}, "dispatch_fn"),
        ({"dispatch_mode": {"dispatch_fn": 1, "collect_fn": dispatch_one_to_all}}, "dispatch_fn"),
        ({"execute_mode": "ALL"}, "is not an execute mode"),
        ({"execute_mode": Dispatch.RANK_ZERO}, "is not an execute mode"),
        ({"dispatch_mode": Dispatch.DP_COMPUTE_PROTO, "uneven": "padd"}, "'error', 'pad', 'split'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_decoration(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(RegistrationError, match=words):
        register(**arguments)


@pytest.mark.parametrize(
    "mode",
    [
        Dispatch.DP_COMPUTE,
        Dispatch.DP_COMPUTE_PROTO,
        Dispatch.DP_COMPUTE_PROTO_WITH_FUNC,
        Dispatch.DP_COMPUTE_METRIC,
    ],
)
def test_fault_6_a_mode_that_deals_shares_is_refused_with_rank_zero_execution(mode: OpenEnum) -> None:
    with pytest.raises(RegistrationError, match="all but the first would be lost"):
        register(dispatch_mode=mode, execute_mode=Execute.RANK_ZERO)


def test_only_callables_are_registered() -> None:
    with pytest.raises(RegistrationError, match="got int"):
        register()(3)  # type: ignore[arg-type]


def test_a_new_mode_is_a_member_by_attribute_by_name_and_in_iteration() -> None:
    register_dispatch_mode("my_mode", **CUSTOM)
    mode = Dispatch.MY_MODE
    assert mode is Dispatch["MY_MODE"]
    assert mode in list(Dispatch)
    assert "MY_MODE" in Dispatch
    assert get_predefined_dispatch_fn(mode) == CUSTOM
    assert registration_of(register(mode)(lambda self: None)) is not None


def test_a_name_that_is_taken_is_refused_and_what_it_had_stays() -> None:
    before = get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)
    with pytest.raises(RegistrationError, match="exists already"):
        register_dispatch_mode("ONE_TO_ALL", **CUSTOM)
    assert get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL) == before


@pytest.mark.parametrize("functions", [(None, print), (print, "x")])
def test_fault_48_functions_that_cannot_be_called_are_refused_and_no_member_is_left(functions: Any) -> None:
    with pytest.raises(RegistrationError, match="must be callable"):
        register_dispatch_mode("BROKEN", *functions)
    with pytest.raises(RegistrationError, match="must be callable"):
        update_dispatch_mode(Dispatch.ONE_TO_ALL, *functions)
    assert "BROKEN" not in Dispatch.members


def test_a_partial_and_a_bound_method_are_callables() -> None:
    register_dispatch_mode("PARTIAL", partial(dispatch_one_to_all), [].append)
    assert "PARTIAL" in Dispatch


def test_fault_48_a_mode_that_was_removed_is_unknown_everywhere() -> None:
    register_dispatch_mode("GONE", **CUSTOM)
    mode = Dispatch.GONE
    Dispatch.remove("GONE")
    with pytest.raises(AttributeError, match="no member 'GONE'"):
        _ = Dispatch.GONE
    with pytest.raises(RegistrationError):
        get_predefined_dispatch_fn(mode)
    with pytest.raises(RegistrationError):
        update_dispatch_mode(mode, **CUSTOM)
    with pytest.raises(RegistrationError):
        register(mode)
    with pytest.raises(RegistrationError, match="no member"):
        Dispatch.remove("GONE")
    register_dispatch_mode("GONE", **CUSTOM)


def test_fault_48_every_declared_mode_has_functions() -> None:
    assert {mode.name for mode in Dispatch} >= {
        "RANK_ZERO",
        "ONE_TO_ALL",
        "ALL_TO_ALL",
        "DP_COMPUTE",
        "DP_COMPUTE_PROTO",
        "DP_COMPUTE_PROTO_WITH_FUNC",
        "DP_COMPUTE_METRIC",
        "DIRECT_ROLLOUT_METHOD",
    }
    for mode in Dispatch:
        assert set(get_predefined_dispatch_fn(mode)) == {"dispatch_fn", "collect_fn"}


def test_the_functions_of_a_mode_can_be_replaced() -> None:
    update_dispatch_mode(Dispatch.DP_COMPUTE, **CUSTOM)
    assert get_predefined_dispatch_fn(Dispatch.DP_COMPUTE) == CUSTOM


def test_the_live_registry_takes_what_is_put_into_it() -> None:
    saved = DISPATCH_MODE_FN_REGISTRY.copy()
    DISPATCH_MODE_FN_REGISTRY.clear()
    with pytest.raises(RegistrationError):
        get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)
    DISPATCH_MODE_FN_REGISTRY.update(saved)
    assert get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)["dispatch_fn"] is dispatch_one_to_all


def test_members_are_equal_by_name_after_a_trip_and_never_across_the_two_enums() -> None:
    for mode in (*Dispatch, *Execute):
        assert pickle.loads(pickle.dumps(mode)) == mode
        assert copy.deepcopy(mode) == mode
        assert hash(pickle.loads(pickle.dumps(mode))) == hash(mode)
    assert Dispatch.RANK_ZERO != Execute.RANK_ZERO
    assert len({mode.value for mode in Dispatch}) == len(Dispatch)


@pytest.mark.parametrize("name", ["", "two words", "1st"])
def test_a_member_needs_a_name_that_can_be_an_attribute(name: str) -> None:
    with pytest.raises(RegistrationError, match="is not an identifier"):
        Dispatch.register(name)


def test_the_names_of_the_executing_methods() -> None:
    assert get_predefined_execute_fn(Execute.ALL) == {"execute_fn_name": "execute_all"}
    assert get_predefined_execute_fn(Execute.RANK_ZERO) == {"execute_fn_name": "execute_rank_zero"}


@pytest.mark.parametrize("transport", ["gloo", "NCCL"])
def test_a_transport_in_which_the_sender_takes_part_is_refused_with_the_reason(transport: str) -> None:
    with pytest.raises(RegistrationError, match=rf"tensor_transport='{transport}' needs the sender's part .* 'nixl'"):
        register(blocking=False, tensor_transport=transport)


def test_a_transport_that_is_no_name_is_refused_in_words() -> None:
    with pytest.raises(RegistrationError, match=r"tensor_transport must be a name such as 'nixl', .* got None"):
        register(blocking=False, tensor_transport=None)  # type: ignore[arg-type]


def test_a_transport_is_for_results_that_stay_on_the_cluster() -> None:
    with pytest.raises(RegistrationError, match=r"tensor_transport='nixl' .*register it with blocking=False"):
        register(Dispatch.DP_COMPUTE_PROTO, tensor_transport="nixl")
    method = register(Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="nixl")(len)
    registration = registration_of(method)
    assert registration is not None
    assert registration.tensor_transport == "nixl"
