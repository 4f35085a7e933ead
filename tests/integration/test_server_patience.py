"""Connections that ask nothing: they go, and with them their places."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import app
from app.api import Tokens, create_app
from app.server import ServerStartError, WebServer
from app.settings import Limits, ServerSettings
from core import Controller, RayClassWithInitArgs, RayWorkerGroup, Worker, register
from core.dispatch import Dispatch
from tests.app_doubles import MemorySource

pytestmark = pytest.mark.integration


class Echo(Worker):
    """A worker that answers."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def say(self, word: str) -> str:
        """Return ``word``."""
        return word


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Yield a server for four connections that waits half a second for a request."""
    settings = replace(ServerSettings(), limits=Limits(n_connections=4, head_timeout_s=0.5))
    server = WebServer(settings)
    server.start(create_app(MemorySource(), None, server.bind(), tokens=Tokens.make(False)))
    yield server
    server.stop()


def answer(web: WebServer) -> str:
    with socket.create_connection(("127.0.0.1", web.settings.port), timeout=5) as asking:
        asking.sendall(f"GET /livez HTTP/1.1\r\nHost: 127.0.0.1:{web.settings.port}\r\n\r\n".encode())
        return asking.recv(1000).decode().partition("\r\n")[0]


def test_half_sent_requests_do_not_keep_others_out_for_long(web: WebServer) -> None:
    held = [socket.create_connection(("127.0.0.1", web.settings.port), timeout=5) for _ in range(8)]
    for one in held[::2]:
        one.sendall(b"GET / HTTP/1.1\r\n")
    deadline = time.monotonic() + 5
    while "200" not in answer(web) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "200" in answer(web)
    assert all(one.recv(1) == b"" for one in held)
    for one in held:
        one.close()


def test_a_connection_in_use_stays_open_past_that_time(web: WebServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.settings.port, timeout=5)
    connection.connect()
    sock = connection.sock
    for _ in range(6):
        connection.request("GET", "/livez")
        assert connection.getresponse().read() == b"ok"
        time.sleep(0.2)
    assert connection.sock is sock
    connection.close()


def test_a_driver_that_changes_its_folder_keeps_its_record_and_leaves_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with Controller.local(), app.serve("runs") as server:
        monkeypatch.chdir(elsewhere)
        assert RayWorkerGroup([1], RayClassWithInitArgs(Echo)).say("here") == ["here"]
    assert server.db_path.parent == tmp_path / "runs"
    left = {path.suffix for path in (tmp_path / "runs").iterdir()}
    assert ".token" not in left
    assert ".lock" not in left


def test_a_server_starts_once(tmp_path: Path) -> None:
    server = app.serve(tmp_path).start()
    with pytest.raises(ServerStartError, match="starts once"):
        server.start()
    server.stop()
    with pytest.raises(ServerStartError, match="starts once"):
        server.start()
    assert len(list(tmp_path.glob("*.db"))) == 1
