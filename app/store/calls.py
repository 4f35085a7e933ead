"""The row of a call: while it runs, and when it has ended."""

from __future__ import annotations

from typing import Any

from app.store.codes import ERROR, OK, RUNNING, pack_sizes, status_code
from app.store.texts import MESSAGE, TRACEBACK, bounded, bounded_end
from app.store.totals import OpenCall
from core.events import CallAwaited, CallFinished

# In the order of the tuples below.
CALL_COLUMNS = (
    "id",
    "method_id",
    "pool_id",
    "generation",
    "dispatch_mode_id",
    "execute_mode_id",
    "blocking",
    "step",
    "started_ns",
    "gate_ns",
    "status",
    "ended_ns",
    "dispatch_ns",
    "execute_ns",
    "wait_ns",
    "collect_ns",
    "unpad_ns",
    "awaited_ns",
    "rows",
    "rows_out",
    "padding_rows",
    "bytes_out",
    "bytes_in",
    "shard_sizes",
    "error_type",
    "error_message",
    "error_traceback",
    "error_rank",
    "serialise_ns",
)
# What a future cost when its value was asked for. An error there makes a call that had ended well a failed one, and
# never hides the error that it ended with.
AWAIT_CALL = (
    "UPDATE call SET awaited_ns = ?, wait_ns = ?, collect_ns = ?, unpad_ns = ?, "
    f"status = CASE WHEN ? AND status = {OK} THEN {ERROR} ELSE status END, "
    "error_message = CASE WHEN error_type IS NULL THEN ? ELSE error_message END, "
    "error_traceback = CASE WHEN error_type IS NULL THEN ? ELSE error_traceback END, "
    "error_rank = CASE WHEN error_type IS NULL THEN ? ELSE error_rank END, "
    "error_type = coalesce(error_type, ?) WHERE id = ?"
)
_NOT_YET = (RUNNING, None, 0, 0, 0, 0, 0, None, 0, 0, 0, 0, 0, "", None, None, None, None, 0)


def running_row(call: OpenCall, started_ns: int) -> tuple[Any, ...]:
    """Return the row of a call in flight; ``started_ns`` is the run's start on the driver clock."""
    return (*_known_at_start(call, started_ns), *_NOT_YET)


def finished_row(call: OpenCall, event: CallFinished, started_ns: int) -> tuple[Any, ...]:
    """Return the row of a call that has ended; a future's value may have been asked for before that."""
    awaited = call.awaited
    error = event.error or (None if awaited is None else awaited.error)
    status = "error" if event.status == "ok" and error is not None else event.status
    return (
        *_known_at_start(call, started_ns),
        status_code(status),
        event.at_ns - started_ns,
        event.dispatch_ns,
        event.execute_ns,
        event.wait_ns if awaited is None else awaited.wait_ns,
        event.collect_ns if awaited is None else awaited.collect_ns,
        event.unpad_ns if awaited is None else awaited.unpad_ns,
        None if awaited is None else awaited.awaited_at_ns - started_ns,
        event.rows,
        event.rows_out,
        event.padding_rows,
        event.bytes_out,
        event.bytes_in,
        pack_sizes(event.shard_sizes),
        None if error is None else error.type,
        None if error is None else bounded(error.message, MESSAGE),
        bounded_end(error.traceback_text, TRACEBACK) if error is not None and error.traceback_text else None,
        None if error is None else error.rank,
        event.serialise_ns,
    )


def awaited_row(event: CallAwaited, started_ns: int) -> tuple[Any, ...]:
    """Return the values of ``AWAIT_CALL``."""
    error = event.error
    return (
        event.awaited_at_ns - started_ns,
        event.wait_ns,
        event.collect_ns,
        event.unpad_ns,
        error is not None,
        None if error is None else bounded(error.message, MESSAGE),
        bounded_end(error.traceback_text, TRACEBACK) if error is not None and error.traceback_text else None,
        None if error is None else error.rank,
        None if error is None else error.type,
        event.call_id,
    )


def _known_at_start(call: OpenCall, started_ns: int) -> tuple[Any, ...]:
    started = call.started
    return (
        started.call_id,
        call.method.id,
        call.pool_id,
        started.generation,
        call.dispatch_mode_id,
        call.execute_mode_id,
        started.blocking,
        started.step,
        started.at_ns - started_ns,
        started.gate_ns,
    )
