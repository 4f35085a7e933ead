"""Open connections: who may hold one, for how long, and how much of a request or an answer waits in memory.

Holding a connection needs no token. A connection that has not shown one is a *stranger*: strangers share a fixed number
of places, and a new one takes the place of the oldest, so that a token holder can always come in and show the token.
From then on the connection has a place among the *holders*, which no stranger can take.

The protocol is uvicorn's for h11 with four methods of ``asyncio.Protocol`` extended, and ``send_400_response``.
Uvicorn has no public setting for any of this; tests/unit/test_app_connections.py fails if an upgrade changes what is
used.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar
from typing import Protocol as TypingProtocol

import h11
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from app.api.headers import NO_STORE, SECURITY_HEADERS
from app.api.problems import PROBLEM_JSON, Problem, problem_body
from app.settings import Limits

STATE_KEY = "podium.connection"
# h11 bounds only a head that is incomplete: fed in pieces of this size, a whole one is bounded too.
_PIECE_BYTES = 4 * 1024
MAX_HEAD_BYTES = 16 * 1024
# asyncio accepts so many connections in one turn of its loop. A head that is there is read within four turns of its
# connection being accepted, so that a crowd that connects at once cannot replace a token holder before that.
_BACKLOG = 16
_GRACE_S = 2


class Connection(TypingProtocol):
    """What the guard says about the connection that a request came by."""

    def begin(self) -> None:
        """Note that a whole head came and is being answered."""
        ...

    def end(self) -> None:
        """Note that the answer is given."""
        ...

    def identify(self, by: str) -> bool:
        """Note that the request carried the credential called ``by``; return False when it has too many connections."""
        ...

    def abort(self) -> None:
        """Close at once, without sending what is left."""
        ...


class NoConnection:
    """Stands in where there is no server, as when an application is called directly."""

    def begin(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def identify(self, by: str) -> bool:
        """Return True."""
        del by
        return True

    def abort(self) -> None:
        """Do nothing."""


class Connections:
    """The open connections of one server; used on its loop only."""

    def __init__(self, n_strangers: int, n_holders: int) -> None:
        """Make room for ``n_strangers`` connections without a token and ``n_holders`` with each token."""
        self._n_strangers = n_strangers
        self._n_holders = n_holders
        self._silent: dict[GuardedProtocol, None] = {}
        self._refused: dict[GuardedProtocol, None] = {}
        self._holders: dict[GuardedProtocol, str] = {}

    def add(self, connection: GuardedProtocol) -> None:
        """Add a stranger; when there are too many, the oldest that asked without a token goes, else the oldest."""
        if len(self._silent) + len(self._refused) >= self._n_strangers:
            group = self._refused or self._silent
            oldest = next(iter(group))
            del group[oldest]
            oldest.abort()
        self._silent[connection] = None

    def asked(self, connection: GuardedProtocol) -> None:
        """Note that a whole head came, which showed no token unless ``identify`` follows."""
        if connection in self._silent:
            del self._silent[connection]
            self._refused[connection] = None

    def identify(self, connection: GuardedProtocol, by: str) -> bool:
        """Move a connection to the holders of the token ``by``; return False when these have no room.

        Holders of the read token cannot shut out who may control the run.
        """
        if self._holders.get(connection) == by:
            return True
        if sum(name == by for name in self._holders.values()) >= self._n_holders:
            return False
        self._refused.pop(connection, None)
        self._silent.pop(connection, None)
        self._holders[connection] = by
        return True

    def remove(self, connection: GuardedProtocol) -> None:
        """Forget a connection that is closed."""
        self._refused.pop(connection, None)
        self._silent.pop(connection, None)
        self._holders.pop(connection, None)


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for each head, a deadline for a reader that stands still, and bounded buffers."""

    limits: ClassVar[Limits]
    places: ClassVar[Connections]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Let each request's scope name this connection, under ``state``."""
        super().__init__(config, server_state, {**app_state, STATE_KEY: self}, _loop)
        self._n_requests = 0
        self._closed = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._last_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place and wait for the first head."""
        super().connection_made(transport)
        self.places.add(self)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._closed = True
        for timer in (self._head_timer, self._write_timer, self._last_timer):
            _stop(timer)
        self.places.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on what came, in small pieces, until the connection is refused."""
        for begin in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[begin : begin + _PIECE_BYTES])

    def pause_writing(self) -> None:
        """Wait only so long for a reader that does not read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.write_timeout_s, self.abort)

    def resume_writing(self) -> None:
        """The reader has read on."""
        _stop(self._write_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, with the headers that every answer carries."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.abort()
            return
        body = problem_body(Problem(400, "bad-request", "Bad request", msg), "", "")
        headers = [
            (b"content-type", PROBLEM_JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            NO_STORE,
            *SECURITY_HEADERS,
        ]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """End after the answer that is being given, and before uvicorn leaves an open connection behind."""
        super().shutdown()
        self._last_timer = self.loop.call_later(_GRACE_S / 2, self.abort)

    def begin(self) -> None:
        """Note that a whole head came and is being answered."""
        self._n_requests += 1
        self.places.asked(self)
        _stop(self._head_timer)

    def end(self) -> None:
        """Note that the answer is given, and wait for the next head."""
        self._n_requests -= 1
        if self._n_requests == 0 and not self._closed:
            self._await_head()

    def identify(self, by: str) -> bool:
        """Take a place among those who showed the token called ``by``."""
        return self.places.identify(self, by)

    def abort(self) -> None:
        """Close at once, without sending what is left."""
        self.transport.abort()

    def _await_head(self) -> None:
        _stop(self._head_timer)
        self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._give_up)

    def _give_up(self) -> None:
        """Close a connection on which no whole head came, or whose last answer is still unread."""
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            self.transport.close()


def server_config(app: ASGIApp, limits: Limits) -> Config:
    """Return how uvicorn serves ``app`` within ``limits``."""
    places = Connections(limits.n_strangers, limits.n_connections)
    # A class, since uvicorn makes the connections' objects itself.
    protocol = type("GuardedProtocol", (GuardedProtocol,), {"limits": limits, "places": places})
    return Config(
        app,
        http=protocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        backlog=_BACKLOG,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        # A visitor without a token could fill the driver's terminal with warnings of requests that make no sense.
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
