"""A proxy that keeps the event stream to itself: the page polls, and shows new calls all the same."""

from __future__ import annotations

import http.client
import http.server
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import app
from app.server import RunServer
from core import Controller, RayClassWithInitArgs, RayWorkerGroup, Worker, register
from core.dispatch import Dispatch
from tests.e2e.commands import until
from tests.e2e.pages import watch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
_PASSED_ON = ("Content-Type", "Location", "Set-Cookie", "Content-Encoding")


class Echo(Worker):
    """A worker that answers."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def say(self) -> int:
        """Return 1."""
        return 1


class Proxy(http.server.ThreadingHTTPServer):
    """Passes requests on; of the stream it passes on the head at most, and keeps the events."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.port = self.server_address[1]
        self.upstream = 0
        self.passes_heads = False
        self.kept = b""
        self.is_closing = threading.Event()


class _Request(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Pass a request on."""
        # A browser that has left its page raises ConnectionError here at any write.
        with (
            suppress(ConnectionError),
            closing(http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=30)) as upstream,
        ):
            upstream.request("GET", self.path, headers=dict(self.headers))
            with upstream.getresponse() as answer:
                if self.path.endswith("/stream"):
                    self._keep(answer, upstream.sock)
                    return
                body = answer.read()
                self._begin(answer)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    def _begin(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.title() in _PASSED_ON:
                self.send_header(name, value)

    def _keep(self, answer: http.client.HTTPResponse, events: socket.socket) -> None:
        """Read the stream until the browser gives up."""
        if self.server.passes_heads:
            self._begin(answer)
            self.end_headers()
            self.wfile.flush()
        while not self.server.is_closing.is_set():
            readable, _, _ = select.select([self.connection, events], [], [], 0.2)
            if events in readable:
                self.server.kept += answer.read1(65536)
            if self.connection in readable:
                return


@dataclass
class Visit:
    """A run behind the proxy."""

    server: RunServer
    group: RayWorkerGroup
    proxy: Proxy
    seen: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """A driver whose dashboard is reached through the proxy."""
    proxy = Proxy()
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    folder: Path = tmp_path_factory.mktemp("runs")
    with Controller.local(), app.serve(folder, allowed_hosts=(f"127.0.0.1:{proxy.port}",)) as server:
        proxy.upstream = int(server.address.rstrip("/").rpartition(":")[2])
        group = RayWorkerGroup([1], RayClassWithInitArgs(Echo))
        group.say()
        yield Visit(server, group, proxy)
        proxy.is_closing.set()
        proxy.shutdown()
        proxy.server_close()


@pytest.mark.parametrize("passes_heads", [True, False], ids=["the body is kept", "head and body are kept"])
def test_behind_proxy_a_page_whose_stream_brings_nothing_polls(
    visit: Visit, browser: Browser, passes_heads: bool
) -> None:
    visit.proxy.passes_heads, visit.proxy.kept = passes_heads, b""
    watched = watch(browser)
    page = watched.page
    page.clock.install()
    page.goto(f"http://127.0.0.1:{visit.proxy.port}/?token={visit.server.token}")
    page.goto(f"http://127.0.0.1:{visit.proxy.port}/calls")
    n_before = page.locator("tr[data-key]").count()
    until(lambda: b"event: tick" in visit.proxy.kept, "the proxy to hold the stream's events back")
    visit.group.say()

    def has_grown() -> bool:
        page.clock.fast_forward(5_000)
        return page.locator("tr[data-key]").count() > n_before

    until(has_grown, "the new call on the page")
    assert page.locator("#connection").is_hidden()
    page.context.close()
