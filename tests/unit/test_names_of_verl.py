"""Names and hooks that programs written for verl, or an adapter for them, rely on; no verl is needed here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from enum import Enum
from functools import wraps
from importlib import import_module
from typing import Any

import pytest
import ray
import torch

import core
from core import (
    DataProto,
    Dispatch,
    Execute,
    RayClassWithInitArgs,
    RayWorkerGroup,
    Worker,
    accept_registrations,
    broadcast,
    create_colocated_worker_cls,
    get_random_string,
    register,
    wrap_registered_methods,
)
from core.controller import Controller
from core.dispatch import Registration, registration_of
from core.errors import BatchError, RegistrationError, ShareError, UnevenSplitError
from core.testing import RecordingObserver

Local = tuple[Controller, RecordingObserver]
FOREIGN = "attrs_of_another_library"


class TheirDispatch(Enum):
    """Another library's modes."""

    ONE_TO_ALL = 1
    DP_COMPUTE_PROTO = 4
    UNHEARD_OF = 9


class TheirExecute(Enum):
    """Another library's execute modes."""

    ALL = 0
    RANK_ZERO = 1


def theirs(mode: TheirDispatch, execute: TheirExecute = TheirExecute.ALL) -> Callable[[Any], Any]:
    """Register as another library does."""

    def mark(function: Any) -> Any:
        setattr(function, FOREIGN, {"dispatch_mode": mode, "execute_mode": execute, "blocking": True})
        return function

    return mark


class Inherited:
    """A class of another library's."""

    @theirs(TheirDispatch.ONE_TO_ALL)
    def start_profile(self) -> str:
        """Do what a library's own worker does."""
        return "started"

    @theirs(TheirDispatch.ONE_TO_ALL, TheirExecute.RANK_ZERO)
    def save(self) -> str:
        """Run on rank 0."""
        return "saved"

    @theirs(TheirDispatch.DP_COMPUTE_PROTO)
    def update(self, batch: DataProto) -> DataProto:
        """Work on rows."""
        return batch


class Mixed(Inherited, Worker):
    """A user's worker over it."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def own(self) -> int:
        """Return the rank."""
        return self.rank


class Unheard(Worker):
    """A worker with a mode that we do not have."""

    @theirs(TheirDispatch.UNHEARD_OF)
    def odd(self) -> None:
        """Do nothing."""


@pytest.fixture
def accepting() -> Iterator[None]:
    end = accept_registrations(FOREIGN)
    yield
    end()


def test_methods_that_another_library_registered_are_bound_like_ours(local: Local, accepting: None) -> None:
    group = RayWorkerGroup([2], RayClassWithInitArgs(Mixed), use_gpu=False)
    assert group.start_profile() == ["started", "started"]
    assert group.save() == "saved"
    assert group.own() == [0, 1]
    assert len(group.update(DataProto.from_dict({"x": torch.arange(4)}))) == 4
    roles = RayWorkerGroup([2], create_colocated_worker_cls({"actor": RayClassWithInitArgs(Mixed)}), use_gpu=False)
    assert roles.spawn({"actor"})["actor"].start_profile() == ["started", "started"]


def test_their_registrations_count_only_while_they_are_accepted() -> None:
    assert registration_of(Inherited.start_profile) is None
    end = accept_registrations(FOREIGN)
    found = registration_of(Inherited.start_profile)
    assert found == Registration(Dispatch.ONE_TO_ALL, Execute.ALL, True, True, None)
    with pytest.raises(RegistrationError, match=r"Unheard.odd .* has no member 'UNHEARD_OF'"):
        registration_of(Unheard.odd)
    end()
    end()
    assert registration_of(Inherited.start_profile) is None


def test_a_wrapper_is_around_each_method_registered_while_it_is_set(local: Local) -> None:
    def bridge(method: Callable[..., Any], registration: Registration) -> Callable[..., Any]:
        """Add one to what a method is given, as a bridge that fetches what a reference points to."""
        assert registration.dispatch_mode == Dispatch.ONE_TO_ALL
        if asyncio.iscoroutinefunction(method):

            @wraps(method)
            async def fetched_async(self: Any, value: int) -> Any:
                return await method(self, value + 1)

            return fetched_async

        @wraps(method)
        def fetched(self: Any, value: int) -> Any:
            return method(self, value + 1)

        return fetched

    end = wrap_registered_methods(bridge)

    class Bridged(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def plain(self, value: int) -> int:
            return value

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        async def later(self, value: int) -> int:
            return value

    end()

    class Free(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def plain(self, value: int) -> int:
            return value

    group = RayWorkerGroup([2], RayClassWithInitArgs(Bridged), use_gpu=False)
    assert group.plain(1) == [2, 2]
    assert group.later(5) == [6, 6]
    assert RayWorkerGroup([1], RayClassWithInitArgs(Free), use_gpu=False).plain(1) == [1]


def test_arguments_are_cut_into_chunks_by_position_and_by_name() -> None:
    batch = DataProto.from_dict({"x": torch.arange(4)})
    (column,), named = core._split_args_kwargs_data_proto(2, batch, other=batch)
    assert [part.batch["x"].tolist() for part in column] == [[0, 1], [2, 3]]
    assert [part.batch["x"].tolist() for part in named["other"]] == [[0, 1], [2, 3]]
    with pytest.raises((BatchError, UnevenSplitError)):
        core._split_args_kwargs_data_proto(3, batch)
    with pytest.raises(ShareError, match="argument #1 is a int"):
        core._split_args_kwargs_data_proto(2, 5)


def test_the_padding_twin_fills_up_a_copy_and_says_by_how_many_rows() -> None:
    batch = DataProto.from_dict({"x": torch.arange(5)}, auto_padding=True)
    (column,), named = core._split_args_kwargs_data_proto_with_auto_padding(4, batch)
    assert [part.batch["x"].tolist() for part in column] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert named == {core._padding_size_key: 3}
    assert len(batch) == 5
    plain = DataProto.from_dict({"x": torch.arange(4)})
    assert core._split_args_kwargs_data_proto_with_auto_padding(4, plain)[1] == {}
    longer = DataProto.from_dict({"x": torch.arange(6)}, auto_padding=True)
    with pytest.raises(ShareError, match="different lengths"):
        core._split_args_kwargs_data_proto_with_auto_padding(4, batch, other=longer)


def test_a_random_string_has_its_length_and_no_seed_makes_it_twice() -> None:
    random.seed(1)
    one = get_random_string(12)
    random.seed(1)
    assert len(one) == 12
    assert one.isalnum()
    assert get_random_string(12) != one


def test_a_wrapped_class_is_unwrapped_and_a_plain_one_stays() -> None:
    assert core._unwrap_ray_remote(Mixed) is Mixed
    assert core._unwrap_ray_remote(ray.remote(Mixed)) is Mixed


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("MegatronWorker", "core.Worker"),
        ("NVMegatronRayWorkerGroup", "core.RayWorkerGroup"),
        ("create_worker_group_register_center", "leave it out"),
    ],
)
def test_an_old_name_of_verl_is_refused_with_what_to_use_instead(name: str, way_out: str) -> None:
    with pytest.raises(ImportError, match=f"core has no {name}, which verl had before 0.6: .*{way_out}"):
        exec(f"from core import {name}")  # noqa: S102
    with pytest.raises(ImportError):
        getattr(import_module("core"), name)


def test_an_old_dispatch_mode_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(AttributeError, match=r"MEGATRON_COMPUTE_PROTO is of verl before 0.6; .*make_nd_compute"):
        _ = Dispatch.MEGATRON_COMPUTE_PROTO


def test_an_address_and_a_port_for_a_rendezvous_are_had_on_the_local_cluster_too(local: Local) -> None:
    class Finder(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def find(self, first: int) -> tuple[str, str]:
            return core.get_master_addr_port((first, first + 50))

    ((address, port),) = RayWorkerGroup([1], RayClassWithInitArgs(Finder), use_gpu=False).find(broadcast(23450))
    assert address == "127.0.0.1"
    assert 23450 <= int(port) < 23500
