"""The protocol over a transport in memory, with uvicorn's own classes: fails if an upgrade changes what is used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.api.connections import MAX_HEAD_BYTES, STATE_KEY, GuardedProtocol, server_config
from app.errors import RunFileError
from app.settings import Limits
from tests.app_doubles import HOST, House, MemorySource
from web.calls import CallFilter, CallPage

HEAD = f"GET /livez HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; a reader that stands still makes it ask for a pause as asyncio's own does."""

    def __init__(self, reads: bool = True) -> None:
        super().__init__()
        self.protocol: GuardedProtocol
        self.sent = bytearray()
        self.unread = 0
        self.most_unread = 0
        self.state = "open"
        self.n_late_writes = 0
        self._reads = reads

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 4321)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.n_late_writes += self.state != "open"
        self.sent += data
        if not self._reads:
            self.unread += len(data)
            self.most_unread = max(self.most_unread, self.unread)
            if self.unread > 64 * 1024:
                self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def _end(self, state: str) -> None:
        if self.state == "open" and not (state == "closed" and self.unread):
            self.state = state
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Server:
    """What uvicorn makes of one application and one protocol class."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]], limits: Limits) -> None:
        self.config = server_config(app, limits)
        self.config.load()
        self.state = ServerState()

    def connect(self, *, reads: bool = True) -> MemoryTransport:
        make: Any = self.config.http_protocol_class
        transport = MemoryTransport(reads)
        transport.protocol = make(config=self.config, server_state=self.state, app_state={})
        transport.protocol.connection_made(transport)
        return transport


LIMITS = replace(Limits(), n_strangers=3, n_connections=2, head_timeout_s=0.05, write_timeout_s=0.05)
# Of a test that is not about a deadline: a loaded machine would meet one.
PATIENT = replace(LIMITS, head_timeout_s=600, write_timeout_s=600)


def over(
    scene: Callable[[Server], Coroutine[Any, Any, None]], house: House | None = None, limits: Limits = LIMITS
) -> None:
    async def play() -> None:
        await scene(Server((house or House()).app, limits))
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(play())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


def ask(path: str, token: str = "", method: str = "GET", more: str = "", body: bytes = b"") -> bytes:
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n{bearer}{more}\r\n".encode() + body


def test_each_scope_names_its_connection() -> None:
    seen: list[object] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(scope["state"][STATE_KEY])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def scene() -> None:
        transport = Server(app, LIMITS).connect()
        transport.protocol.data_received(HEAD)
        await until(lambda: bool(transport.sent))
        assert seen == [transport.protocol]

    asyncio.run(scene())


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n", HEAD + b"GET / HT"])
def test_a_connection_without_a_whole_head_is_closed_after_the_deadline(first: bytes) -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(first)
        await until(lambda: transport.state == "closed")

    over(scene)


def test_half_a_head_after_an_answer_is_closed_after_the_deadline_too() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(HEAD)
        await until(lambda: b"200 OK" in transport.sent)
        transport.protocol.data_received(b"GET / HT")
        await until(lambda: transport.state == "closed")

    over(scene)


def test_what_trickles_in_does_not_move_the_deadline() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(b"GET / HTTP/1.1\r\n")
        async with asyncio.timeout(10):
            while transport.state == "open":
                transport.protocol.data_received(b"x: y\r\n")
                await asyncio.sleep(0.02)
        assert len(server.state.connections) <= 1

    over(scene)


def test_a_reader_that_stands_still_is_aborted_and_keeps_little_in_memory() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect(reads=False)
        transport.protocol.data_received(ask(f"/static/{house.app.state.context.files.plotly_name}"))
        await until(lambda: transport.state == "aborted")
        assert 64 * 1024 < transport.most_unread < 200 * 1024

    house = House()
    over(scene, house)


def test_a_large_answer_stops_when_its_connection_is_gone() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        write = transport.write

        def write_until_it_breaks(data: bytes | bytearray | memoryview) -> None:
            write(data)
            if len(transport.sent) > 100_000:
                transport.abort()

        transport.write = write_until_it_breaks  # type: ignore[method-assign]
        transport.protocol.data_received(ask(f"/static/{house.app.state.context.files.plotly_name}"))
        await until(lambda: transport.state == "aborted")
        for _ in range(200):
            await asyncio.sleep(0)
        # asyncio logs a warning for each from the fifth on.
        assert transport.n_late_writes < 5

    house = House()
    over(scene, house, PATIENT)


def test_an_answer_that_is_left_unread_is_aborted_too() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect(reads=False)
        transport.protocol.data_received(HEAD)
        await until(lambda: bool(transport.sent))
        await until(lambda: transport.state == "aborted")

    over(scene)


def test_a_new_stranger_takes_the_place_of_the_oldest_and_never_of_a_token_holder() -> None:
    async def scene(server: Server) -> None:
        holder = server.connect()
        holder.protocol.data_received(ask("/api/v1/stream", house.tokens.read))
        await until(lambda: b"200 OK" in holder.sent)
        strangers = [server.connect() for _ in range(6)]
        assert [one.state for one in strangers] == ["aborted"] * 3 + ["open"] * 3
        assert holder.state == "open"
        late = server.connect()
        late.protocol.data_received(ask("/api/v1/session", house.tokens.read))
        await until(lambda: b"200 OK" in late.sent)
        holder.abort()

    house = House()
    over(scene, house, PATIENT)


def test_strangers_that_asked_without_a_token_go_before_one_that_has_not_asked_yet() -> None:
    async def scene(server: Server) -> None:
        slow = server.connect()
        refused = [server.connect() for _ in range(2)]
        for one in refused:
            one.protocol.data_received(HEAD)
        await until(lambda: all(one.sent for one in refused))
        server.connect()
        server.connect()
        assert [slow.state, *(one.state for one in refused)] == ["open", "aborted", "aborted"]

    over(scene, limits=PATIENT)


def test_token_holders_beyond_their_places_are_told_so_and_closed() -> None:
    async def scene(server: Server) -> None:
        holders = [server.connect() for _ in range(3)]
        for one in holders:
            one.protocol.data_received(ask("/api/v1/session", house.tokens.read))
        await until(lambda: all(one.sent for one in holders))
        assert [one.sent.split(b"\r\n")[0] for one in holders[:2]] == [b"HTTP/1.1 200 OK"] * 2
        assert holders[2].sent.startswith(b"HTTP/1.1 503")
        assert b"too-many-connections" in holders[2].sent
        assert holders[2].state == "closed"
        # Readers cannot shut out who may steer.
        steering = server.connect()
        steering.protocol.data_received(ask("/api/v1/session", house.tokens.control))
        await until(lambda: bool(steering.sent))
        assert steering.sent.startswith(b"HTTP/1.1 200 OK")

    house = House()
    over(scene, house, PATIENT)


BAD = {
    "nonsense": b"\x16\x03\x01\x02\x00\r\n\r\n",
    "head without an end": b"GET / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES * 2,
    "whole head too long": ask("/", more="x: " + "y" * MAX_HEAD_BYTES * 2 + "\r\n"),
    "long target": ask("/" + "a" * MAX_HEAD_BYTES * 2),
    "two hosts": ask("/", more=f"Host: {HOST}\r\n"),
    "two lengths": ask("/", more="Content-Length: 1\r\nContent-Length: 2\r\n"),
    "bad header": ask("/", more="a b: c\r\n"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
def test_what_is_not_http_is_refused_with_the_headers_of_every_answer(sent: bytes) -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(sent)
        await until(lambda: transport.state == "closed")
        head = bytes(transport.sent).lower()
        assert head.startswith(b"http/1.1 400")
        for name in (b"content-security-policy: default-src 'none'", b"x-content-type-options: nosniff", b"no-store"):
            assert name in head

    over(scene)


def test_a_length_and_chunks_together_are_refused_and_what_follows_is_not_a_request() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        smuggled = ask("/api/v1/session", house.tokens.control)
        more = "Content-Type: application/json\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n"
        path = "/api/v1/resource-pools/pool/pause"
        transport.protocol.data_received(
            ask(path, house.tokens.control, "POST", more, b"2\r\n{}\r\n0\r\n\r\n" + smuggled)
        )
        await until(lambda: transport.state == "closed")
        assert transport.sent.startswith(b"HTTP/1.1 400")
        assert transport.sent.count(b"HTTP/1.1") == 1
        assert house.plane is not None
        assert house.plane.pool("pool").state == "active"

    house = House()
    over(scene, house, PATIENT)


def test_more_header_fields_than_anybody_sends_are_refused() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(ask("/livez", more="x: y\r\n" * 200))
        await until(lambda: transport.state == "closed")
        assert transport.sent.startswith(b"HTTP/1.1 431")

    over(scene, limits=PATIENT)


def test_a_get_with_a_body_is_answered_and_closed() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(ask("/livez", more="Content-Length: 100000000\r\n"))
        await until(lambda: transport.state == "closed")
        assert transport.sent.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in transport.sent

    over(scene, limits=PATIENT)


def test_a_refused_body_is_read_so_that_the_connection_stays_in_step() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        head = ask("/api/v1/resource-pools/pool/pause", "wrong", "POST", "Content-Length: 5\r\n")
        transport.protocol.data_received(head)
        await asyncio.sleep(0.3)
        assert not transport.sent
        transport.protocol.data_received(b"GET /" + HEAD)
        await until(lambda: transport.sent.count(b"HTTP/1.1") == 2)
        assert transport.sent.startswith(b"HTTP/1.1 401")
        assert b"HTTP/1.1 200 OK" in transport.sent

    over(scene, limits=PATIENT)


def test_a_refused_body_that_does_not_come_closes_the_connection() -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        head = ask("/api/v1/resource-pools/pool/pause", "wrong", "POST", "Content-Length: 5\r\n")
        transport.protocol.data_received(head + b"GET")
        await until(lambda: transport.state == "closed")
        assert transport.sent.startswith(b"HTTP/1.1 401")
        assert b"connection: close" in transport.sent

    over(scene, limits=PATIENT, house=House(limits=replace(Limits(), refused_body_timeout_s=0.02)))


def test_an_answer_that_cannot_be_finished_is_broken_off_and_no_traceback_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Torn(MemorySource):
        def calls(self, limit: int, cursor: int | None, narrowed: CallFilter) -> CallPage:
            if cursor is not None:
                raise RunFileError("run.db is damaged", "run.db")
            return replace(super().calls(limit, cursor, narrowed), next_cursor=1)

    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(ask("/export/calls.csv", house.tokens.read))
        await until(lambda: transport.state != "open")
        assert transport.sent.startswith(b"HTTP/1.1 200")
        assert not transport.sent.endswith(b"\r\n0\r\n\r\n")
        assert transport.state == "aborted"

    house = House(Torn())
    over(scene, house, PATIENT)
    assert [(one.levelname, one.exc_info) for one in caplog.records] == [("WARNING", None)]
    assert "interrupted: run.db is damaged" in caplog.text


@contextlib.asynccontextmanager
async def quiet(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    yield
    assert [one.getMessage() for one in caplog.records] == []


@pytest.mark.parametrize(
    "sent",
    [
        ask("/livez", more="Connection: upgrade\r\nUpgrade: websocket\r\n"),
        ask("/livez", more="Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"),
        ask("/livez", more="Expect: 100-continue\r\n"),
        b"GET /livez HTTP/1.0\r\n\r\n",
        HEAD * 50,
    ],
    ids=["websocket", "h2c", "expect", "http/1.0", "pipelined"],
)
def test_odd_but_legal_requests_are_answered_as_any_other(sent: bytes) -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(sent)
        n = sent.count(b"GET")
        await until(lambda: transport.sent.count(b"HTTP/1.1 200 OK") == n)

    over(scene, limits=PATIENT)


@pytest.mark.parametrize("target", ["CONNECT 127.0.0.1:22", "OPTIONS *", "GET http://evil.org/", "TRACE /"])
def test_other_kinds_of_target_are_refused(target: str) -> None:
    async def scene(server: Server) -> None:
        transport = server.connect()
        transport.protocol.data_received(f"{target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        await until(lambda: bool(transport.sent))
        assert bytes(transport.sent[9:12]) in {b"400", b"401"}

    over(scene, limits=PATIENT)


def test_a_body_that_goes_wrong_in_the_middle_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(server: Server) -> None:
        async with quiet(caplog):
            for token in ("wrong", house.tokens.control):
                transport = server.connect()
                more = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
                head = ask("/api/v1/resource-pools/pool/pause", token, "POST", more)
                transport.protocol.data_received(head + b"1\r\n{\r\n")
                await asyncio.sleep(0.01)
                transport.protocol.data_received(b"not a chunk\r\n")
                await until(lambda one=transport: one.state != "open")  # type: ignore[misc]

    house = House()
    over(scene, house, PATIENT)


def test_nonsense_while_an_answer_is_being_sent_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(server: Server) -> None:
        async with quiet(caplog):
            transport = server.connect(reads=False)
            transport.protocol.data_received(ask(large, more="Transfer-Encoding: chunked\r\n"))
            await until(lambda: b"200 OK" in transport.sent)
            assert transport.state == "open"
            transport.protocol.data_received(b"not a chunk\r\n")
            assert transport.state == "aborted"

    house = House()
    large = f"/static/{house.app.state.context.files.plotly_name}"
    over(scene, house, PATIENT)


def test_a_crowd_that_connects_at_once_cannot_replace_a_connection_before_its_head_is_read() -> None:
    async def scene(server: Server) -> None:
        assert Limits().n_strangers > 4 * (server.config.backlog + 1)

    over(scene)
