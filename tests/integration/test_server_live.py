"""A real server on a real port over a real run's file, in this process; Ray is not needed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import app
from app.api import Tokens, create_app
from app.errors import RunsFolderError
from app.server import FileServer, RunServer, ServerStartError
from app.settings import Limits, ServerSettings
from app.store.reader import Reader
from app.web_server import WebServer
from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.dispatch import Dispatch
from tests.app_doubles import MemorySource

pytestmark = pytest.mark.integration


class Adder(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, left: int, right: int) -> int:
        return left + right


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    with Controller.local(), app.serve(tmp_path / "runs", control=True) as running:
        yield running


def connect(server: RunServer | WebServer) -> http.client.HTTPConnection:
    url = server.address if isinstance(server, RunServer) else server.url()
    return http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=10)


def ask(server: RunServer | WebServer, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    connection = connect(server)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = None if body is None else json.dumps(body)
        connection.request(
            method, path, raw, {"Content-Type": "application/json", **named} if body is not None else named
        )
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if "json" in answer.headers["content-type"] else answer
    finally:
        connection.close()


def bearer(server: RunServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.control_token}"}


def read_event(stream: http.client.HTTPResponse) -> dict[str, str]:
    found: dict[str, str] = {}
    while line := stream.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        found[name] = value
    return found


def test_a_drivers_calls_are_seen_in_the_browsers_api(server: RunServer) -> None:
    with RayResourcePool([2], name_prefix="small") as pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Adder))
        assert group.add(2, 3) == [5, 5]
        deadline_s = time.monotonic() + 5
        while True:
            status, calls = ask(server, "GET", "/api/v1/calls", **bearer(server))
            assert status == 200
            if calls["items"] and calls["items"][0]["status"] == "ok":
                break
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert calls["items"][0]["method"] == "add"
        _, pools = ask(server, "GET", "/api/v1/resource-pools", **bearer(server))
        assert [one["name"] for one in pools["items"]] == [pool.name]


def test_a_pause_over_rest_holds_the_next_call_until_the_resume(server: RunServer) -> None:
    with RayResourcePool([1]) as pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Adder))
        path = f"/api/v1/resource-pools/{pool.name}"
        assert ask(server, "POST", f"{path}/pause", {}, **bearer(server))[0] == 202
        done = threading.Event()
        caller = threading.Thread(target=_call, args=(group, done), daemon=True)
        caller.start()
        assert not done.wait(0.3)
        assert ask(server, "GET", path, **bearer(server))[1]["state"] == "paused"
        assert ask(server, "POST", f"{path}/resume", {}, **bearer(server))[0] == 202
        assert done.wait(5)
        caller.join(5)
    server.finish()
    _, operations = ask(server, "GET", "/api/v1/operations", **bearer(server))
    assert [one["kind"] for one in operations["items"]] == ["resume", "pause"]


def _call(group: RayWorkerGroup, done: threading.Event) -> None:
    group.add(1, 1)
    done.set()


def test_every_attempt_is_in_the_file_before_the_answer(server: RunServer) -> None:
    ask(server, "POST", "/api/v1/resource-pools/none/pause", {}, **bearer(server))
    ask(server, "POST", "/api/v1/resource-pools/none/pause", {}, Authorization="Bearer wrong")
    reader = Reader(server.db_path)
    try:
        found = {(one.actor, one.outcome) for one in reader.audit_entries(10, None)}
    finally:
        reader.close()
    assert found == {("control", "asked"), ("control", "refused"), ("nobody", "unauthorised")}


def test_the_server_knows_only_its_own_host_with_its_port(server: RunServer) -> None:
    for host in ("evil.org", "127.0.0.1", "127.0.0.1:1", "localhost"):
        assert ask(server, "GET", "/openapi.json", Host=host)[0] == 421
    assert ask(server, "GET", "/healthz")[0] == 200


def test_another_sites_page_is_refused(server: RunServer) -> None:
    token = bearer(server)
    assert ask(server, "GET", "/api/v1/runs", **token, Origin="http://evil.org")[0] == 403
    assert ask(server, "GET", "/api/v1/stream", **token, Origin="null")[0] == 403
    assert ask(server, "GET", "/api/v1/runs", **token, Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(server, "OPTIONS", "/api/v1/runs", **token, Origin="http://evil.org")[0] == 403


def test_a_program_that_prints_the_url_gives_away_the_read_token_only(server: RunServer, tmp_path: Path) -> None:
    assert server.url == f"{server.address}?token={server.token}"
    assert server.control_url == f"{server.address}?token={server.control_token}"
    assert server.control_token not in server.url
    with app.serve(tmp_path) as readable:
        assert readable.control_url == ""


def test_the_printed_url_opens_the_dashboard_once_the_cookie_is_set(server: RunServer) -> None:
    path = server.url.removeprefix(server.address.rstrip("/"))
    status, entered = ask(server, "GET", path)
    assert (status, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"].partition(";")[0]
    assert server.control_token not in cookie
    status, page = ask(server, "GET", "/", Cookie=cookie)
    assert (status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert ask(server, "GET", "/")[0] == 401
    assert ask(server, "POST", "/api/v1/resource-pools/x/pause", {}, Cookie=cookie)[0] == 403


def test_the_tokens_files_are_for_the_user_alone_and_go_with_the_run(tmp_path: Path) -> None:
    with app.serve(tmp_path, control=True) as running:
        files = {path.name.removeprefix(running.db_path.name): path for path in tmp_path.glob("*token")}
        assert files[".token"].read_text(encoding="utf-8").strip() == running.token
        assert files[".control-token"].read_text(encoding="utf-8").strip() == running.control_token
        assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert not list(tmp_path.glob("*token"))


def test_no_token_is_in_the_file_of_the_run_or_in_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"), app.serve(tmp_path, control=True) as running:
        secrets = (running.token, running.control_token)
        ask(running, "GET", f"/?token={running.token}")
        ask(running, "GET", "/api/v1/runs", Authorization=f"Bearer {running.token}")
        ask(running, "POST", f"/api/v1/resource-pools/x/pause?token={running.token}", {}, **bearer(running))
        files = [path for path in tmp_path.iterdir() if not path.name.endswith("token")]
        recorded = b"".join(path.read_bytes() for path in files)
    shown = caplog.text + "".join(capfd.readouterr()) + recorded.decode("latin-1")
    assert not [secret for secret in secrets if secret in shown]


def test_stopping_ends_open_streams_at_once_and_cleanly(tmp_path: Path) -> None:
    running = app.serve(tmp_path).start()
    connections = [connect(running) for _ in range(3)]
    streams = []
    for connection in connections:
        connection.request("GET", "/api/v1/stream", headers={"Authorization": f"Bearer {running.token}"})
        streams.append(connection.getresponse())
    assert [read_event(stream)["event"] for stream in streams] == ["tick"] * 3
    began_s = time.monotonic()
    running.stop()
    assert time.monotonic() - began_s < 1.5
    for stream, connection in zip(streams, connections, strict=True):
        events = stream.read().decode()
        assert '"state":"ended"' in events
        assert "event: end" in events
        connection.close()
    running.stop()
    assert "podium-server" not in [thread.name for thread in threading.enumerate()]


def test_a_driver_that_raises_ends_its_server_and_is_recorded_as_failed(tmp_path: Path) -> None:
    running = app.serve(tmp_path)
    with pytest.raises(ZeroDivisionError), running:
        raise ZeroDivisionError
    path, address = running.db_path, running.address
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.rstrip("/").rsplit(":", 1)[1])), timeout=2)
    with FileServer(path, ServerSettings()) as viewer:
        assert "?token=" in viewer.url
    reader = Reader(path)
    assert reader.run().state == "failed"
    reader.close()


def test_the_drivers_signal_handlers_stay_its_own(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)
    before = [signal.getsignal(number) for number in numbers]
    with app.serve(tmp_path):
        assert [signal.getsignal(number) for number in numbers] == before
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_port_in_use_is_one_clear_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"port {port} on 127.0.0.1 is in use"):
            app.serve(tmp_path / "runs", port=port).start()
    assert not (tmp_path / "runs").exists()


def test_a_runs_folder_that_cannot_be_written_is_an_error_and_frees_the_port(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunsFolderError):
        app.serve(tmp_path / "file" / "runs").start()
    assert "podium-server" not in [thread.name for thread in threading.enumerate()]


def test_finished_but_still_shown_a_run_can_be_read_and_no_longer_steered(server: RunServer) -> None:
    server.finish()
    assert ask(server, "GET", "/api/v1/runs/current", **bearer(server))[1]["state"] == "ended"
    assert ask(server, "POST", "/api/v1/resource-pools/x/pause", {}, **bearer(server))[0] == 409


@pytest.fixture
def small() -> Iterator[tuple[WebServer, str]]:
    """A server with few places and an in-memory run."""
    limits = replace(Limits(), n_connections=4, n_streams=2, requests_per_s=20.0, n_burst=20)
    web = WebServer(ServerSettings(limits=limits))
    settings, tokens = web.bind(), Tokens.make(False)
    web.start(create_app(MemorySource(), None, settings, tokens=tokens))
    yield web, tokens.read
    web.stop()


def test_the_rate_is_bounded_for_everybody(small: tuple[WebServer, str]) -> None:
    web, token = small
    connection = connect(web)
    found = []
    for _ in range(60):
        connection.request("GET", "/api/v1/session", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        found.append(answer.status)
    connection.close()
    assert 20 <= found.count(200) < 50
    assert set(found) == {200, 429}


def test_streams_and_connections_are_bounded(small: tuple[WebServer, str]) -> None:
    web, token = small
    connections = [connect(web) for _ in range(6)]
    statuses = []
    for connection in connections:
        connection.request("GET", "/api/v1/stream", headers={"Authorization": f"Bearer {token}"})
        statuses.append(connection.getresponse().status)
    assert statuses[:2] == [200, 200]
    assert set(statuses[2:]) == {503}
    for connection in connections:
        connection.close()


def test_a_request_that_never_ends_does_not_hold_the_server_up(tmp_path: Path) -> None:
    running = app.serve(tmp_path, control=True).start()
    host, port = running.address.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as slow:
        slow.sendall(
            f"POST /api/v1/resource-pools/x/pause HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Authorization: Bearer {running.control_token}\r\nContent-Type: application/json\r\n"
            "Content-Length: 1000\r\n\r\n{".encode()
        )
        time.sleep(0.2)
        began_s = time.monotonic()
        running.stop()
        assert time.monotonic() - began_s < 3.5


def test_pickles_in_the_body_touch_nothing(server: RunServer, tmp_path: Path) -> None:
    target = tmp_path / "touched"
    bomb = b"cposix\nsystem\n(S'touch " + os.fsencode(target) + b"'\ntR."
    connection = connect(server)
    for path in ("/api/v1/resource-pools/pool/pause", "/", "/api/v1/operations/1/cancel"):
        connection.request("POST", path, bomb, {"Content-Type": "application/json", **bearer(server)})
        answer = connection.getresponse()
        answer.read()
        assert 400 <= answer.status < 500
    connection.close()
    assert not target.exists()


def test_reading_everything_leaves_the_runs_file_as_it_is(tmp_path: Path) -> None:
    with app.serve(tmp_path, name="done") as running:
        path = running.db_path
    before = path.read_bytes()
    viewer = FileServer(path, ServerSettings()).start()
    try:
        address, _, token = viewer.url.partition("/?token=")
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        for route in ("/", "/timeline", "/calls", "/calls/1", "/openapi.json", "/readyz", "/api/v1/stream"):
            connection.request("GET", route, headers={"Authorization": f"Bearer {token}"})
            assert connection.getresponse().read()
        for name in ("session", "runs", "runs/current/overview", "runs/current/timeline", "calls", "workers", "events"):
            connection.request("GET", f"/api/v1/{name}", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
        connection.close()
    finally:
        viewer.stop()
    assert path.read_bytes() == before


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine speaks no IPv6")
def test_the_other_loopback_address_is_served_too() -> None:
    web = WebServer(ServerSettings(host="::1"))
    try:
        settings = web.bind()
    except ServerStartError as error:
        pytest.skip(str(error))
    web.start(create_app(MemorySource(), None, settings))
    connection = http.client.HTTPConnection("::1", settings.port, timeout=10)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b"ok"
    connection.close()
    web.stop()
    assert web.url("t") == f"http://[::1]:{settings.port}/?token=t"
