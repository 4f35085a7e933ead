"""What was asked of a running driver, by whom, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Protocol

from app.store.facts import AuditFacts
from core.events import Event, OperationChanged
from web.rows import END_STATES


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


class RefusalAudit:
    """Keeps at most one entry a second of what each kind of visitor was refused, with the number it stands for.

    Each entry is a row on disk that is never deleted, and being refused needs no token. Used on the server's loop only.
    """

    def __init__(self, keep: Callable[[AuditFacts], Coroutine[None, None, None]], every_s: float = 1.0) -> None:
        """Keep entries through ``keep``."""
        self._keep = keep
        self._every_s = every_s
        self._held: dict[str, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def note(self, entry: AuditFacts) -> None:
        """Keep ``entry`` now, or with others at the end of the second."""
        loop = asyncio.get_running_loop()
        held = self._held.get(entry.actor)
        if held is not None and loop.time() < held.until_s:
            held.last, held.n = entry, held.n + 1
            return
        self._hold(entry.actor, loop)
        await self._keep(entry if held is None else held.with_count(entry))

    def _hold(self, actor: str, loop: asyncio.AbstractEventLoop) -> None:
        held = self._held[actor] = _Held(loop.time() + self._every_s)
        loop.call_later(self._every_s, self._flush, actor, held, loop)

    def _flush(self, actor: str, held: _Held, loop: asyncio.AbstractEventLoop) -> None:
        if self._held.get(actor) is not held:
            return
        del self._held[actor]
        if held.last is not None:
            self._hold(actor, loop)
            task: asyncio.Task[None] = loop.create_task(self._keep(held.with_count()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


@dataclass(slots=True)
class _Held:
    """Refusals since an entry was kept: the last, and how many."""

    until_s: float
    last: AuditFacts | None = None
    n: int = 0

    def with_count(self, entry: AuditFacts | None = None) -> AuditFacts:
        """Return ``entry``, or the last that is held, with the number of those it stands for."""
        n, shown = (self.n, self.last) if entry is None else (self.n + 1, entry)
        assert shown is not None
        return shown if n == 1 else replace(shown, detail=f"{shown.detail}; {n} requests refused")


class OperationAudit:
    """Observes operations and keeps one entry of what became of each: before and after, or why not.

    Those of the driver's own code are among them; ``put`` must not wait.
    """

    def __init__(self, put: Callable[[AuditFacts], object]) -> None:
        """Keep entries through ``put``."""
        self._put = put

    def observe(self, event: Event) -> None:
        """Keep the entry of an operation that is done."""
        if type(event) is not OperationChanged or event.state not in END_STATES:
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
