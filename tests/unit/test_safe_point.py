"""What waits for a driver's thread between two calls."""

from __future__ import annotations

import pytest

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.controller import Controller
from core.safe_point import SafePoint
from core.testing import RecordingObserver
from tests.group_workers import Rows

Local = tuple[Controller, RecordingObserver]


def test_an_action_runs_at_each_safe_point_until_it_is_withdrawn() -> None:
    point, ran = SafePoint(), list[str]()

    def change() -> None:
        ran.append("change")

    point.run()
    assert not point.is_due
    point.register(change)
    point.register(change)
    assert point.is_due
    point.run()
    point.run()
    point.withdraw(change)
    point.withdraw(change)
    point.run()
    assert ran == ["change"] * 2
    assert not point.is_due


def test_an_action_may_withdraw_itself_while_it_runs() -> None:
    point, ran = SafePoint(), list[str]()

    def once() -> None:
        point.withdraw(once)
        ran.append("once")

    point.register(once)
    point.register(lambda: ran.append("other"))
    point.run()
    point.run()
    assert ran == ["once", "other", "other"]


def test_what_waits_for_a_group_runs_in_its_own_calls_alone_and_says_whether_to_look_again() -> None:
    point, answers = SafePoint(), [True, False]

    def restart() -> bool:
        return answers.pop(0)

    point.register_for("actor", restart)
    point.run()
    assert (point.is_due, point.run_for("critic"), answers) == (False, False, [True, False])
    assert [point.run_for("actor"), point.run_for("actor")] == [True, False]
    point.withdraw_for("actor", lambda: True)
    answers.append(True)
    assert point.run_for("actor")
    point.withdraw_for("actor", restart)
    assert not point.run_for("actor")


def test_calls_steps_and_checkpoints_are_safe_points(local: Local) -> None:
    controller, _ = local
    group, ran = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Rows)), list[str]()

    def change() -> None:
        controller.runtime.safe_point.withdraw(change)
        ran.append("change")

    controller.runtime.safe_point.register(change)
    group.execute_all_sync("echo", 1)
    assert ran == ["change"]
    controller.runtime.safe_point.register(change)
    controller.checkpoint()
    assert ran == ["change"] * 2
    controller.runtime.safe_point.register(change)
    assert [step.index for step in controller.steps(1)] == [1]
    assert ran == ["change"] * 3


def test_a_call_whose_action_fails_leaves_the_gate_and_raises(local: Local) -> None:
    controller, _ = local
    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Rows))

    def restart() -> bool:
        raise RuntimeError("no room")

    controller.runtime.safe_point.register_for(group.name, restart)
    with pytest.raises(RuntimeError, match="no room"):
        group.execute_all_sync("echo", 1)
    assert group.resource_pool.gate.n_in_flight == 0
    controller.runtime.safe_point.withdraw_for(group.name)
    assert group.execute_all_sync("echo", 1) == [1]


def test_a_group_that_ends_leaves_nothing_at_the_safe_point(local: Local) -> None:
    controller, _ = local
    group = RayWorkerGroup(RayResourcePool([1]), RayClassWithInitArgs(Rows))
    controller.runtime.safe_point.register_for(group.name, lambda: True)
    group.close()
    assert not controller.runtime.safe_point.run_for(group.name)
