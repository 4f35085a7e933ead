"""Pools, plans and operations as the API shows them, whether a live plane or the run's file knows them."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from app.store.texts import LINE, MESSAGE, bounded
from core.control import commands
from web import rows
from web.plans import public_names

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TITLES = {
    "failed": "Operation failed",
    "cancelled": "Operation cancelled",
    "expired": "Operation expired",
}


# The live plane does not know it.
NOT_SHOWN = frozenset({"safe_point_ms"})


def pool_row(pool: commands.PoolSnapshot) -> rows.Pool:
    """Return a pool of the live plane as a row."""
    return rows.Pool(**{one.name: getattr(pool, one.name) for one in fields(rows.Pool)})


def operation_row(operation: commands.Operation, run: rows.Run) -> rows.Operation:
    """Return an operation of the live plane as a row, its times since the run's start."""
    started_ns = run_start_ns(run)
    return rows.Operation(
        id=operation.id,
        kind=operation.kind,
        pool=operation.pool,
        state=operation.state.value,
        who=operation.who,
        created_ms=(operation.created_ns - started_ns) / 1e6,
        updated_ms=(operation.updated_ns - started_ns) / 1e6,
        before=operation.before,
        after=operation.after,
        error=operation.error,
        expected_generation=operation.expected_generation,
        progress=operation.progress,
        plan=None if operation.plan is None else plan_document(operation.plan),
        downtime_ms=operation.downtime_s * 1e3,
    )


def plan_document(plan: commands.Plan) -> dict[str, Any]:
    """Return a plan of the live plane as JSON."""
    return public_names(asdict(plan))


def operation_view(operation: rows.Operation, run: rows.Run) -> dict[str, Any]:
    """Return an operation's JSON, with ``created_at`` as ISO 8601; see `app.api.documents.OperationDocument`.

    Once it is done, ``result`` says what it did, or ``error`` why it failed, in the shape of a problem.
    """
    shown = {one.name: getattr(operation, one.name) for one in fields(operation) if one.name not in NOT_SHOWN}
    shown |= {name: round(value, 3) for name, value in shown.items() if name.endswith("_ms")}
    created_at = _started(run) + timedelta(milliseconds=operation.created_ms)
    return shown | {
        "done": operation.done,
        "created_at": created_at.isoformat(timespec="milliseconds"),
        "progress": bounded(operation.progress, LINE),
        "result": {"before": operation.before, "after": operation.after} if operation.succeeded else None,
        # The live plane has it whole, whatever the length; the record has this.
        "error": _error(operation.state, bounded(operation.error, MESSAGE)),
    }


def brief_operation(operation: commands.Operation) -> dict[str, object]:
    """Return what a problem says of another operation: who did what, and how far it is."""
    return {
        "id": operation.id,
        "kind": operation.kind,
        "pool": operation.pool,
        "who": operation.who,
        "state": operation.state.value,
        "before": operation.before,
        "after": operation.after,
    }


def run_start_ns(run: rows.Run) -> int:
    """Return the run's start on the driver clock, as exact as ``started_at`` says."""
    since = _started(run) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _error(state: str, text: str) -> dict[str, str] | None:
    if state not in _TITLES:
        return None
    return {"type": f"urn:podium:problem:operation-{state}", "title": _TITLES[state], "detail": text}


def _started(run: rows.Run) -> datetime:
    started = datetime.fromisoformat(run.started_at)
    return started if started.tzinfo is not None else started.replace(tzinfo=UTC)
