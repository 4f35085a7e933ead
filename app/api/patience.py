"""How long a visitor may take to ask: the number of connections is small, and holding one open needs no token."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection on which no whole request came for ``head_timeout_s``.

    Uvicorn itself waits for ever for the rest of a request's head.
    """

    head_timeout_s: ClassVar[float] = 10.0
    _next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._next_look = self.loop.call_later(self.head_timeout_s, self._look, self.cycle)

    def _look(self, seen: object) -> None:
        """Close unless a request is being answered, or came since the last look; ``seen`` was the last one then."""
        if self.cycle is None or (self.cycle is seen and self.cycle.response_complete):
            self.transport.close()
        else:
            self._look_later()


def patient_protocol(head_timeout_s: float) -> type[PatientProtocol]:
    """Return the protocol with that patience, as a class: uvicorn makes the connections' objects itself."""
    return type("PatientProtocol", (PatientProtocol,), {"head_timeout_s": head_timeout_s})
