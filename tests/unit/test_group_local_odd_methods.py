"""Odd methods, odd errors and odd arguments of workers: each works, or is one clear line with its place."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch

import core
from core import DataProto, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.controller import Controller
from core.errors import PoolSpecError, RegistrationError, ShareError, UsageError, WorkerMethodError, WorkerStartError
from core.events import RankFinished
from core.testing import local_controller
from tests.cluster_actors import Rooted


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Stop(BaseException):
    pass


class Odd(Worker):
    """Methods that are no plain methods, and errors that are no plain errors."""

    @staticmethod
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def double(number: int) -> int:
        """Return twice ``number``."""
        return 2 * number

    @classmethod
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def named(cls, number: int) -> tuple[str, int]:
        """Return a name of the class and ``number``."""
        return cls.__name__, number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, how: str) -> None:
        """Raise on rank 1."""
        if self.rank == 1:
            raise {
                "surrogate": RuntimeError("no file \udcff.txt"),
                "mute": _Mute(),
                "interrupt": KeyboardInterrupt("by the user's own code"),
                "base": _Stop("enough"),
            }[how]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def lock(self) -> Any:
        """Return what cannot be pickled, on rank 1."""
        return threading.Lock() if self.rank == 1 else None

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def lock_later(self, batch: DataProto) -> Any:
        """Return what cannot be pickled."""
        return threading.Lock()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def rooted(self) -> Any:
        """Return what the driver cannot unpickle, on rank 1."""
        return Rooted() if self.rank == 1 else None

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def rooted_later(self, batch: DataProto) -> Any:
        """Return what the driver cannot unpickle, on rank 2."""
        return Rooted() if self.rank == 2 else batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take(self, value: object, more: object = None) -> None:
        """Take anything."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def with_rank(self, batch: DataProto) -> tuple[DataProto, int]:
        """Return the rows in a tuple."""
        return batch, self.rank


def odd_group() -> Any:
    return RayWorkerGroup([4], RayClassWithInitArgs(Odd))


def test_static_and_class_methods_can_be_registered() -> None:
    with local_controller():
        group = odd_group()
        assert group.double(3) == [6] * 4
        assert group.named(3) == [("Odd", 3)] * 4
        assert list(inspect.signature(group.double).parameters) == ["number"]
        assert list(inspect.signature(group.named).parameters) == ["number"]


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_register_above_staticmethod_is_refused_with_the_way_out(kind: Any) -> None:
    with pytest.raises(RegistrationError, match=f"write @{kind.__name__} above @register"):
        register(dispatch_mode=Dispatch.ONE_TO_ALL)(kind(lambda number: number))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("surrogate", r"raised RuntimeError on rank 1: no file \\udcff.txt"),
        ("mute", r"raised _Mute on rank 1: \(its __str__ raised RuntimeError\)"),
        ("interrupt", "raised KeyboardInterrupt on rank 1: by the user's own code"),
        ("base", "raised _Stop on rank 1: enough"),
    ],
)
def test_odd_exceptions_of_a_worker_come_with_their_rank(how: str, said: str) -> None:
    with local_controller():
        group = odd_group()
        with pytest.raises(WorkerMethodError, match=said) as caught:
            group.fail(how)
        assert caught.value.rank == 1
        caught.value.traceback_text.encode("utf-8")
        assert group.double(1) == [2] * 4


def test_a_result_that_cannot_be_pickled_is_told_with_method_and_rank() -> None:
    with local_controller():
        group = odd_group()
        with pytest.raises(WorkerMethodError, match=r"the result of Odd.lock on rank 1 .*cannot pickle '_thread.lock'"):
            group.lock()
        with pytest.raises(WorkerMethodError, match=r"the result of Odd.lock_later on rank \d .*cannot pickle"):
            group.lock_later(DataProto.from_dict({"x": torch.arange(4)})).get()


def test_an_argument_that_cannot_be_pickled_is_named() -> None:
    with local_controller():
        group = odd_group()
        with pytest.raises(ShareError, match=r"argument #1 of Odd.take is a lock that cannot be sent") as caught:
            group.take(threading.Lock())
        assert caught.value.argument == "#1"
        with pytest.raises(ShareError, match=r"argument more of Odd.take is a generator that cannot be sent"):
            group.take(1, more=(number for number in range(3)))
        assert group.double(1) == [2] * 4


def test_a_result_that_the_driver_cannot_unpickle_is_told_as_that() -> None:
    with local_controller() as (_, observer):
        group = odd_group()
        said = r"Odd.rooted ran on rank 1, but the driver cannot unpickle .*'cannot live here', in Rooted.__setstate__"
        with pytest.raises(WorkerMethodError, match=said) as caught:
            group.rooted()
        assert (caught.value.group, caught.value.rank, caught.value.method) == ("Odd", 1, "rooted")
        assert "__setstate__" in caught.value.traceback_text
        assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(WorkerMethodError, match=r"Odd.rooted_later ran on rank 2, but the driver cannot unpickle"):
            group.rooted_later(DataProto.from_dict({"x": torch.arange(4)})).get()
        assert group.double(1) == [2] * 4
        # Each rank's part of the calls has come to an end in the record.
        assert len([one for one in observer.of(RankFinished) if one.call_id == 1]) == 4


def test_a_value_that_cannot_be_unpickled_is_told_by_its_reference_too() -> None:
    with local_controller():
        group = odd_group()
        with pytest.raises(WorkerMethodError, match=r"a call ran on a rank, but the driver cannot unpickle its result"):
            core.get(group.execute_all_async("rooted"))
        with pytest.raises(
            WorkerMethodError, match=r"a rank could not unpickle the arguments of a call, which has not"
        ):
            core.get(group.execute_all_async("take", Rooted()))


def test_arguments_that_a_worker_cannot_unpickle_are_told_as_that() -> None:
    with local_controller():
        group = odd_group()
        said = r"rank \d could not unpickle the arguments of Odd.take, which has not run: KeyError: 'cannot live here'"
        with pytest.raises(WorkerMethodError, match=said) as caught:
            group.take(Rooted())
        assert caught.value.rank in range(4)
        assert caught.value.method == "take"
        assert group.double(1) == [2] * 4
        said = r"the arguments of Odd\(...\) could not be unpickled on a worker of group .*'cannot live here'"
        with pytest.raises(WorkerStartError, match=said):
            RayWorkerGroup([1], RayClassWithInitArgs(Odd, Rooted()))


@pytest.mark.parametrize("n_rows", [1, 3, 5, 6, 8])
def test_batches_inside_a_tuple_come_back_without_padding(n_rows: int) -> None:
    with local_controller():
        batch = DataProto.from_dict({"x": torch.arange(n_rows)}, auto_padding=True)
        parts = odd_group().with_rank(batch)
    assert [rank for _, rank in parts] == [0, 1, 2, 3]
    assert [row for part, _ in parts for row in part.batch["x"].tolist()] == list(range(n_rows))


def test_a_class_without_its_wrapper_and_a_pool_without_a_list_are_refused_in_words() -> None:
    with local_controller():
        with pytest.raises(UsageError, match=r"RayClassWithInitArgs\(your_class, ...\) as its worker class, got Odd"):
            RayWorkerGroup([1], Odd)  # type: ignore[arg-type]
        with pytest.raises(PoolSpecError, match=r"a list of processes per node, such as \[4\], got 4"):
            RayResourcePool(4)  # type: ignore[arg-type]


def test_pools_of_a_local_controller_inside_an_observed_run_can_be_steered_from_outside() -> None:
    with local_controller() as (outer, _), Controller.local():
        pool = RayResourcePool([1], name_prefix="inner")
        assert [snapshot.name for snapshot in outer.plane.pools()] == ["inner"]
        pool.close()
        assert outer.plane.pools() == ()
