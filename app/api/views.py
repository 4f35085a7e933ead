"""Pools, plans and operations as the API shows them, whether a live plane or the run's file knows them."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

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


def pool_view(pool: commands.PoolSnapshot | rows.Pool) -> dict[str, object]:
    """Return a pool's JSON; the calls in flight and waiting are null where only the file is there to ask."""
    return {
        "name": pool.name,
        "state": pool.state,
        "generation": pool.generation,
        "process_on_nodes": pool.process_on_nodes,
        "world_size": pool.world_size,
        "groups": pool.groups,
        "n_calls_in_flight": pool.n_calls_in_flight if isinstance(pool, commands.PoolSnapshot) else None,
        "n_calls_waiting": pool.n_calls_waiting if isinstance(pool, commands.PoolSnapshot) else None,
    }


def plan_view(plan: object) -> dict[str, Any] | None:
    """Return a plan's JSON: of the plan itself, or of the text that the record keeps of it."""
    if isinstance(plan, str):
        return _loaded(plan)
    return public_names(asdict(plan)) if is_dataclass(plan) and not isinstance(plan, type) else None


def operation_view(operation: commands.Operation | rows.Operation, run: rows.Run) -> dict[str, object]:
    """Return an operation's JSON, with times in ms since the run's start and ``created_at`` as ISO 8601.

    Once it is done, ``result`` says what became of it, or ``error`` why nothing did, in the shape of a problem.
    """
    if isinstance(operation, commands.Operation):
        state = operation.state.value
        started_ns = run_start_ns(run)
        created_ms = (operation.created_ns - started_ns) / 1e6
        updated_ms = (operation.updated_ns - started_ns) / 1e6
        done, downtime_ms = operation.state.done, operation.downtime_s * 1e3
    else:
        state, created_ms, updated_ms = operation.state, operation.created_ms, operation.updated_ms
        done, downtime_ms = operation.done, operation.downtime_ms
    return {
        "id": operation.id,
        "kind": operation.kind,
        "pool": operation.pool,
        "state": state,
        "done": done,
        "who": operation.who,
        "created_at": (_started(run) + timedelta(milliseconds=created_ms)).isoformat(timespec="milliseconds"),
        "created_ms": round(created_ms, 3),
        "updated_ms": round(updated_ms, 3),
        "expected_generation": operation.expected_generation,
        "before": operation.before,
        "after": operation.after,
        "progress": bounded(operation.progress, LINE),
        "plan": plan_view(operation.plan),
        "downtime_ms": round(downtime_ms, 3),
        "result": {"before": operation.before, "after": operation.after} if state == "succeeded" else None,
        # The live plane has it whole, whatever the length; the record has this.
        "error": _error(state, bounded(operation.error, MESSAGE)),
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


def _loaded(text: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    return public_names(found) if isinstance(found, dict) else None


def _started(run: rows.Run) -> datetime:
    started = datetime.fromisoformat(run.started_at)
    return started if started.tzinfo is not None else started.replace(tzinfo=UTC)
