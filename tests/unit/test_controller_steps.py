"""The controller: steps, the current runtime, and what was called too late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import core
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core import runtime as runtimes
from core.control import Resize
from core.controller import Controller
from core.errors import UsageError
from core.events import CallStarted, StepFinished, StepStarted
from core.testing import FakeClock, RecordingObserver, local_controller
from tests.group_workers import Rows

Local = tuple[Controller, RecordingObserver]


def test_steps_are_numbered_from_one_and_marked_in_the_record(local: Local) -> None:
    assert [(step.index, step.total) for step in core.steps(3)] == [(1, 3), (2, 3), (3, 3)]
    seen = local[1]
    assert [(event.index, event.total) for event in seen.of(StepStarted)] == [(1, 3), (2, 3), (3, 3)]
    assert [event.index for event in seen.of(StepFinished)] == [1, 2, 3]


class Steering(Worker):
    """Does in a worker what is the driver's."""

    stateless = True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take(self, what: str) -> object:
        """Count steps, or change the pool."""
        controller = Controller.current()
        match what:
            case "steps":
                return len(list(core.steps(2)))
            case "resize":
                return controller.resize("pool", [2])
            case "pause":
                return controller.pause("pool")
            case _:
                return controller.plane.submit(Resize("pool", "ada", (2,)))


@pytest.mark.parametrize(
    ("what", "said"), [("steps", "steps"), ("resize", "Resize of"), ("pause", "Pause of"), ("submit", "Resize of")]
)
def test_a_worker_that_shares_the_drivers_process_does_not_steer_it(local: Local, what: str, said: str) -> None:
    group = RayWorkerGroup(RayResourcePool([1], name_prefix="pool"), RayClassWithInitArgs(Steering))
    with pytest.raises(UsageError, match=rf"{said}.* can only be called by the driver: a worker on the local cluster"):
        group.take(what)
    assert local[1].of(StepStarted) == []
    assert local[0].plane.operations() == ()
    group.resource_pool.resize([2])
    assert group.world_size == 2


def test_a_loop_within_a_step_gives_the_step_back_and_one_that_ends_late_takes_none(local: Local) -> None:
    runtime = local[0].runtime
    for step in core.steps(2):
        for _ in core.steps(5):
            pass
        assert runtime.step == step.index
    left = core.steps(9)
    for _ in range(4):
        next(left)
    for step in core.steps(2):
        left.close()  # type: ignore[attr-defined]
        assert runtime.step == step.index


def test_metrics_of_a_step_are_told_at_its_end(local: Local) -> None:
    for step in core.steps(1):
        step.log(reward=0.5, loss=torch.tensor(1.5))
        step.log(loss=np.float32(2.5), n=3)
    (finished,) = local[1].of(StepFinished)
    assert finished.metrics == (("reward", 0.5), ("loss", 2.5), ("n", 3.0))


@pytest.mark.parametrize("value", [None, "high", [1, 2], torch.zeros(2)])
def test_a_metric_that_is_no_number_is_refused_by_name(local: Local, value: Any) -> None:
    for step in core.steps(1):
        with pytest.raises(UsageError, match="metric reward of step 1 is not a number"):
            step.log(reward=value)


def test_calls_carry_the_number_of_the_step_they_are_made_in(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Rows))
    group.echo(0)
    for _ in core.steps(2):
        group.echo(0)
    group.echo(0)
    assert [event.step for event in local[1].of(CallStarted)] == [0, 1, 2, 0]


def test_a_step_that_raises_or_is_broken_off_ends_in_the_record_too(local: Local) -> None:
    def fail() -> None:
        for _ in core.steps(5):
            raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        fail()
    for _ in core.steps(5):
        break
    assert [event.index for event in local[1].of(StepFinished)] == [1, 1]
    assert local[0].runtime.step == 0


def test_no_steps_are_no_steps_and_fewer_are_refused(local: Local) -> None:
    assert list(core.steps(0)) == []
    with pytest.raises(UsageError, match="-1 steps"):
        list(core.steps(-1))


def test_a_controller_is_current_inside_its_block_and_the_one_before_again_behind_it() -> None:
    with local_controller() as (outer, _):
        with local_controller() as (inner, _):
            assert runtimes.current() is inner.runtime
            pool = RayResourcePool([1])
            assert pool.runtime is inner.runtime
        assert runtimes.current() is outer.runtime
        assert pool.state.value == "closed"
        inner.close()
        assert runtimes.current() is outer.runtime


def test_settings_of_ray_come_too_late_once_the_cluster_is_in_use(local: Local) -> None:
    core.init(num_cpus=4)
    RayResourcePool([1]).get_placement_groups()
    with pytest.raises(UsageError, match="was called too late"):
        core.init(num_cpus=8)
    assert runtimes.ray_options.num_cpus == 4
    runtimes.ray_options.num_cpus = None


def test_a_reference_and_several_are_fetched_alike(local: Local) -> None:
    group = RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Rows))
    refs = group.echo_later(5)
    assert core.get(refs[0]) == 5
    assert core.get(refs) == core.get(tuple(refs)) == [5, 5]


def test_a_clock_set_by_hand_times_the_events(local: Local) -> None:
    clock = FakeClock(1_000)
    local[0].runtime.clock = clock  # type: ignore[assignment]
    for _ in core.steps(1):
        clock.advance(2.5)
    assert [event.at_ns for event in local[1].of(StepStarted)] == [1_000]
    assert [event.at_ns for event in local[1].of(StepFinished)] == [2_500_001_000]


def test_the_driver_clock_never_runs_backwards() -> None:
    clock = runtimes.DriverClock()
    times = [clock.now_ns() for _ in range(1000)]
    assert times == sorted(times)


def test_names_of_groups_are_unique_also_when_a_number_is_asked_for_by_hand() -> None:
    runtime = runtimes.Runtime(lambda: pytest.fail("no cluster is needed"))
    names = [runtime.claim_group_name(wanted) for wanted in ("actor", "actor", "actor_2", "actor", "critic")]
    assert len(set(names)) == 5
    assert names[:2] == ["actor", "actor_2"]


def test_a_runtime_that_was_never_used_closes_without_a_cluster() -> None:
    runtime = runtimes.Runtime(lambda: pytest.fail("no cluster is needed"))
    runtime.close()
    runtime.close()
    assert not runtime.connected
