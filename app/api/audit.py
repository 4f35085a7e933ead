"""What was asked of a running driver, and by whom: one entry before the deed, one with its outcome."""

from __future__ import annotations

from typing import Protocol

from app.store.facts import AuditFacts


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
