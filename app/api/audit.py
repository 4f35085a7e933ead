"""What was asked of a running driver, and by whom: one entry before the deed, one with its outcome."""

from __future__ import annotations

from typing import Protocol

from app.store.facts import AuditFacts


class AuditLog(Protocol):
    """Keeps audit entries; it returns at once."""

    def audit(self, entry: AuditFacts) -> None:
        """Keep ``entry``."""
        ...


class NoAudit:
    """For a finished run: nothing can be changed, and its file is not written to."""

    def audit(self, entry: AuditFacts) -> None:
        """Keep nothing."""
