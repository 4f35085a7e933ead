"""The Operations page: the operations on pools, and every control request."""

from __future__ import annotations

from dataclasses import dataclass

from web.frame import Content, Frame
from web.plans import PlanView, plan_view
from web.rows import AuditEntry, Operation
from web.source import RunSource

OPERATIONS_PER_PAGE = 50
AUDIT_PER_PAGE = 100
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation with its plan and, if it came from outside, the attempt that it came from."""

    operation: Operation
    plan: PlanView | None
    asked: AuditEntry | None


def load_operations(source: RunSource, frame: Frame) -> Content:
    """Return the page, older ones below the query's ``before`` (an operation) and ``audit_before`` (an entry)."""
    before = frame.params.get("before", "") or None
    audit_before = frame.params.get("audit_before", "")
    below = int(audit_before) if audit_before.isascii() and audit_before.isdigit() else None
    if len(audit_before) > _MAX_DIGITS:
        below = None
    operations = source.operations(OPERATIONS_PER_PAGE, before)
    entries = source.audit_entries(AUDIT_PER_PAGE, below)
    return Content(
        rows=operation_rows(operations, entries),
        entries=entries,
        older=operations[-1].id if len(operations) == OPERATIONS_PER_PAGE else None,
        older_entries=entries[-1].id if len(entries) == AUDIT_PER_PAGE else None,
        is_first_page=before is None and below is None,
    )


def operation_rows(operations: tuple[Operation, ...], entries: tuple[AuditEntry, ...]) -> tuple[OperationRow, ...]:
    """Return ``operations`` each with the accepted attempt among ``entries`` that it came from."""
    asked = {entry.operation_id: entry for entry in entries if entry.operation_id}
    return tuple(OperationRow(one, plan_view(one.plan), asked.get(one.id)) for one in operations)
