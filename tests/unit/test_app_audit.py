"""What became of an operation is an audit entry of its own, with before and after."""

from __future__ import annotations

from app.api.audit import OperationAudit
from app.store.facts import AuditFacts
from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.control.commands import OperationState, Pause
from core.dispatch import Dispatch
from core.events import OperationChanged
from core.testing import local_controller
from web.rows import END_STATES


class Adder(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, left: int, right: int) -> int:
        return left + right


def changed(state: str, before: str = "", after: str = "", error: str = "") -> OperationChanged:
    return OperationChanged(7, "op-1", "resize", "gpus", state, "control", 3, before, after, error)


def test_an_operation_that_is_done_is_one_entry_with_before_and_after() -> None:
    kept: list[AuditFacts] = []
    audit = OperationAudit(kept.append)
    for state in ("pending", "preparing", "waiting_for_safe_point", "running"):
        audit.observe(changed(state, before="4"))
    audit.observe(changed("succeeded", before="4", after="2"))
    assert [(one.outcome, one.detail, one.operation_id) for one in kept] == [("succeeded", "before 4, after 2", "op-1")]
    assert (kept[0].actor, kept[0].action, kept[0].target, kept[0].expected_generation) == (
        "control",
        "resize",
        "gpus",
        3,
    )


def test_one_that_came_to_nothing_says_why() -> None:
    kept: list[AuditFacts] = []
    audit = OperationAudit(kept.append)
    for state in ("failed", "cancelled", "expired"):
        audit.observe(changed(state, error=f"it {state}"))
    assert [(one.outcome, one.detail) for one in kept] == [
        (state, f"it {state}") for state in ("failed", "cancelled", "expired")
    ]


def test_what_the_driver_itself_does_is_audited_too() -> None:
    kept: list[AuditFacts] = []
    with local_controller() as (controller, _), RayResourcePool([1]) as pool:
        controller.runtime.bus.subscribe(OperationAudit(kept.append))
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Adder))
        assert group.add(1, 2) == [3]
        controller.plane.submit(Pause(pool.name, "driver"))
    assert [(one.actor, one.action, one.outcome) for one in kept] == [("driver", "pause", "succeeded")]
    assert kept[0].detail == "before active, after paused"


def test_the_end_states_of_the_rows_are_those_of_the_control_plane() -> None:
    assert {state.value for state in OperationState if state.done} == END_STATES
