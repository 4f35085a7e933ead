"""What was asked of a running driver, by whom, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.store.facts import AuditFacts
from core.events import Event, OperationChanged

_DONE = frozenset({"succeeded", "failed", "cancelled", "expired"})


class AuditLog(Protocol):
    """Keeps audit entries. It may wait for the disk, so it is asked from a thread that nobody else needs."""

    def audit(self, entry: AuditFacts) -> bool:
        """Keep ``entry``, and say whether it is safely kept."""
        ...


class NoAudit:
    """For a finished run: nothing can be changed, and its file is not written to."""

    def audit(self, entry: AuditFacts) -> bool:
        """Keep nothing."""
        return False


class OperationAudit:
    """Observes operations and keeps one entry of what became of each: before and after, or why not.

    Those of the driver's own code are among them; ``put`` must not wait.
    """

    def __init__(self, put: Callable[[AuditFacts], object]) -> None:
        """Keep entries through ``put``."""
        self._put = put

    def observe(self, event: Event) -> None:
        """Keep the entry of an operation that is done."""
        if type(event) is not OperationChanged or event.state not in _DONE:
            return
        detail = f"before {event.before}, after {event.after}"
        self._put(
            AuditFacts(
                at_ns=event.at_ns,
                actor=event.who,
                remote="",
                user_agent="",
                request_id="",
                action=event.kind,
                target=event.pool,
                expected_generation=event.expected_generation,
                outcome=event.state,
                detail=detail if event.state == "succeeded" else event.error,
                operation_id=event.operation_id,
            )
        )
