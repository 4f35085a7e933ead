"""Connections that ask nothing: they go, and with them their places."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import app
from app.api import Tokens, create_app
from app.server import ServerStartError
from app.settings import Limits, ServerSettings
from app.web_server import WebServer
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
    """Yield a server that waits half a second for a request."""
    settings = replace(ServerSettings(), limits=Limits(n_strangers=4, n_connections=4, head_timeout_s=0.5))
    server = WebServer(settings)
    server.start(create_app(MemorySource(), None, server.bind(), tokens=Tokens.make(False)))
    yield server
    server.stop()


@pytest.fixture(params=["port", "unix socket"])
def besieged(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[tuple[WebServer, Tokens, str]]:
    """Yield a server that waits long for everything, with its tokens and the path of the largest file it serves."""
    limits = Limits(
        n_strangers=8, n_connections=4, head_timeout_s=600, write_timeout_s=600, requests_per_s=1000, n_burst=1000
    )
    uds = str(short_dir / "podium.sock") if request.param == "unix socket" else ""
    server, tokens = WebServer(ServerSettings(limits=limits, uds=uds)), Tokens.make(False)
    app = create_app(MemorySource(), None, server.bind(), tokens=tokens)
    server.start(app)
    yield server, tokens, f"/static/{app.state.context.files.plotly_name}"
    server.stop()


def dial(server: WebServer) -> socket.socket:
    """Return a connection with a small receive buffer."""
    family = socket.AF_UNIX if server.settings.uds else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(10)
    sock.connect(server.settings.uds or ("127.0.0.1", server.settings.port))
    return sock


def status(server: WebServer, path: str, token: str) -> int:
    host = "localhost" if server.settings.uds else f"127.0.0.1:{server.settings.port}"
    with dial(server) as asking:
        bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        asking.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{bearer}Connection: close\r\n\r\n".encode())
        return int(asking.recv(12).split()[1])


def test_strangers_cannot_keep_a_token_holder_out_however_long_they_stay(
    besieged: tuple[WebServer, Tokens, str],
) -> None:
    server, tokens, large = besieged
    host = "localhost" if server.settings.uds else f"127.0.0.1:{server.settings.port}"
    heads = [b"", b"GET / HTTP/1.1\r\n", f"GET {large} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()]
    held = []
    for i in range(60):
        sock = dial(server)
        held.append(sock)
        try:
            sock.sendall(heads[i % 3])
        except OSError:
            continue  # a later stranger has its place already
        assert status(server, "/", tokens.read) == 200
    assert status(server, "/livez", "") == 200
    for sock in held:
        sock.close()


def test_half_sent_requests_do_not_keep_others_out_for_long(web: WebServer) -> None:
    held = [socket.create_connection(("127.0.0.1", web.settings.port), timeout=5) for _ in range(8)]
    for one in held[::2]:
        one.sendall(b"GET / HTTP/1.1\r\n")
    assert status(web, "/livez", "") == 200
    for one in held:
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""
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


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux about the socket")
def test_a_crowd_that_connects_at_once_waits_and_is_not_dropped(web: WebServer) -> None:
    assert web._socket is not None
    # Of a socket that listens, tcpi_sacked is how many may wait.
    info = web._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    most = int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="utf-8"))
    assert struct.unpack_from("I", info, 28)[0] >= min(1000, most)


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
    with pytest.raises(ServerStartError, match="started only once"):
        server.start()
    server.stop()
    with pytest.raises(ServerStartError, match="started only once"):
        server.start()
    assert len(list(tmp_path.glob("*.db"))) == 1
