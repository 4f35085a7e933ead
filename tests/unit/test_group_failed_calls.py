"""What a call that failed leaves behind: nothing, so that a driver may try again and again."""

from __future__ import annotations

import contextlib
import copy
import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from core import DataProto, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.cluster.local import LocalCluster, LocalRef
from core.data.landing import Landing
from core.errors import WorkerMethodError
from core.testing import local_controller


class Failing(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def fail(self, batch: DataProto) -> DataProto:
        raise ValueError(self.rank)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def fail_later(self, batch: DataProto) -> DataProto:
        raise ValueError(self.rank)


def fetch_as_ray_does(cluster: LocalCluster, refs: Sequence[LocalRef], timeout_s: float | None = None) -> list[Any]:
    """Raise an error that was unpickled just now; a local reference keeps its own, with every traceback it got."""
    error = next((error for ref in refs if (error := ref.future.exception(timeout_s)) is not None), None)
    try:
        if error is not None:
            raise copy.copy(error)
    finally:
        del error
    return [ref.value() for ref in refs]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let go of what is in no cycle only."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("method", ["fail", "fail_later"])
@pytest.mark.usefixtures("no_collector")
def test_a_failed_call_lets_go_of_arguments_and_results_without_the_collector(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(LocalCluster, "fetch", fetch_as_ray_does)
    held: list[weakref.ref[Any]] = []

    def watched(*args: Any) -> Any:
        made = Landing(*args)
        held.append(weakref.ref(made))
        return made

    monkeypatch.setattr("core.group.call.Landing", watched)
    with local_controller():
        group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Failing))
        for _ in range(4):
            batch = DataProto.from_dict({"x": torch.ones(4)})
            held.append(weakref.ref(batch.batch))
            # Not pytest.raises: that keeps what it caught.
            with contextlib.suppress(WorkerMethodError):
                getattr(group, method)(batch).get()
                pytest.fail("it did not fail")
            del batch
        # The last call's error may still be in somebody's hands.
        assert sum(one() is not None for one in held) <= 2
