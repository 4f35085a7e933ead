"""Pools and operations as the API shows them, whether a live plane or the run's file knows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from core.control import commands
from web import source

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DONE = frozenset(state.value for state in commands.OperationState if state.done)


def pool_view(pool: commands.PoolSnapshot | source.Pool) -> dict[str, object]:
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


def operation_view(operation: commands.Operation | source.Operation, run: source.Run) -> dict[str, object]:
    """Return an operation's JSON, with times in ms since the run's start and ``created_at`` as ISO 8601."""
    if isinstance(operation, commands.Operation):
        state = operation.state.value
        started_ns = run_start_ns(run)
        created_ms = (operation.created_ns - started_ns) / 1e6
        updated_ms = (operation.updated_ns - started_ns) / 1e6
        expected: int | None = operation.expected_generation
    else:
        state, created_ms, updated_ms = operation.state, operation.created_ms, operation.updated_ms
        expected = None
    return {
        "id": operation.id,
        "kind": operation.kind,
        "pool": operation.pool,
        "state": state,
        "done": state in _DONE,
        "who": operation.who,
        "created_at": (_started(run) + timedelta(milliseconds=created_ms)).isoformat(timespec="milliseconds"),
        "created_ms": round(created_ms, 3),
        "updated_ms": round(updated_ms, 3),
        "expected_generation": expected,
        "before": operation.before,
        "after": operation.after,
        "error": operation.error or None,
    }


def run_start_ns(run: source.Run) -> int:
    """Return the run's start on the driver clock, as exact as ``started_at`` says."""
    since = _started(run) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _started(run: source.Run) -> datetime:
    started = datetime.fromisoformat(run.started_at)
    return started if started.tzinfo is not None else started.replace(tzinfo=UTC)
