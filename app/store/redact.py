"""What is left of an event when no value of the user's program may be recorded, as ``--no-tracebacks`` asks."""

from __future__ import annotations

from dataclasses import replace

from core.events import CallAwaited, CallFinished, ErrorFacts, OperationChanged, WorkerEnded

NOT_RECORDED = "not recorded (--no-tracebacks)"


def without_values(event: object) -> object:
    """Return ``event`` without texts that the user's code wrote: messages and tracebacks of errors, ends of logs."""
    match event:
        case CallFinished(error=ErrorFacts() as error):
            return event._replace(error=_bare(error))
        case CallAwaited(error=ErrorFacts() as error):
            return replace(event, error=_bare(error))
        case WorkerEnded(report=report) if report is not None and report.log_tail:
            return replace(event, report=replace(report, log_tail=(NOT_RECORDED,)))
        case OperationChanged(error=text) if text:
            # A group's save_state and load_state are the user's code too.
            return replace(event, error=NOT_RECORDED)
        case _:
            return event


def _bare(error: ErrorFacts) -> ErrorFacts:
    """Return an error of which only its type and its rank are left."""
    return ErrorFacts(error.type, NOT_RECORDED, "", error.rank)
