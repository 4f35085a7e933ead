"""Live changes on a real Ray: processes, placement groups, torch.distributed. One Ray for the module, few processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import ray
import torch

from core import Controller, DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.control import Operation, OperationState, Resize
from core.events import WorkerEnded
from core.runtime import Runtime
from core.testing import RecordingObserver
from tests.live_workers import RingLearner

pytestmark = [pytest.mark.integration, pytest.mark.warm_workers]

Watched = tuple[Runtime, RecordingObserver]


def rows(n_rows: int) -> DataProto:
    return DataProto.from_dict({"id": torch.arange(float(n_rows))})


def doubles(group: RayWorkerGroup, n_rows: int) -> bool:
    """Whether a call deals and joins its rows right."""
    return bool(group.double(rows(n_rows)).batch["id"].tolist() == [2.0 * row for row in range(n_rows)])


def eventually(true: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Wait until ``true`` is, for what happens on other threads and in Ray."""
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0.0))  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def scene(ray_runtime: Watched) -> Iterator[tuple[Controller, RayResourcePool, RayWorkerGroup]]:
    """A group of four with a process group and a trained model, on a pool of its own."""
    with RayResourcePool([4], max_colocate_count=2, name_prefix="pool") as pool:
        actor = RayWorkerGroup(pool, RayClassWithInitArgs(RingLearner), name_prefix="actor")
        for _ in range(2):
            actor.learn()
        yield Controller.current(), pool, actor


def test_h12_resize_while_a_call_runs(
    ray_runtime: Watched, scene: tuple[Controller, RayResourcePool, RayWorkerGroup]
) -> None:
    # Case H12: ray#12562, #16403, #20647
    controller, pool, actor = scene
    free_before = free_cpus()
    (digest,) = set(actor.digest())
    future = actor.double_later(rows(8))
    small = actor.double_later(rows(4))
    asked: list[Operation] = []
    asker = threading.Timer(0.3, lambda: asked.append(controller.plane.submit(Resize("pool", "ada", (2,)))))
    asker.start()
    assert actor.sleep(1.5) == [0, 1, 2, 3]
    asker.join()
    waiting = OperationState.WAITING_FOR_SAFE_POINT
    assert eventually(lambda: controller.plane.operation(asked[0].id).state is waiting)
    assert doubles(actor, 10)
    done = controller.plane.operation(asked[0].id)
    assert done.state is OperationState.SUCCEEDED, done.error
    assert (done.before, done.after, done.who) == ("4", "2", "ada")
    assert actor.world_size == 2
    assert eventually(lambda: free_cpus() == free_before + 2 * pool.max_colocate_count)
    assert actor.digest() == [digest] * 2
    # What the old workers had made outlives them, read here or by the new ones.
    assert actor.double(future).batch["id"].tolist() == [4.0 * row for row in range(8)]
    assert small.get().batch["id"].tolist() == [2.0 * row for row in range(4)]
    # Their process group is another one, of two.
    assert actor.sum_of_ranks() == [1.0, 1.0]
    assert done.downtime_s < 30
    assert not any(event.died for event in ray_runtime[1].of(WorkerEnded))


def test_there_and_back_between_colocated_and_apart(
    scene: tuple[Controller, RayResourcePool, RayWorkerGroup],
) -> None:
    controller, pool, actor = scene
    (digest,) = set(actor.digest())
    future = actor.double_later(rows(4))
    made = controller.split(pool, {"train": (1, [actor]), "gen": (1, [])})
    assert actor.digest() == [digest]
    assert actor.sum_of_ranks() == [0.0]
    assert made["gen"].world_size == 1
    assert future.get().batch["id"].tolist() == [0.0, 2.0, 4.0, 6.0]
    merged = controller.merge(["train", "gen"], "both")
    assert actor.world_size == merged.world_size == 2
    assert actor.digest() == [digest] * 2
    assert actor.sum_of_ranks() == [1.0, 1.0]
    assert actor.learn() == [3, 3]
