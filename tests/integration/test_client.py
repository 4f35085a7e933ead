"""The client and the commands on top of it, against a real server on a unix socket over pools in a dictionary."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.api import Tokens, create_app
from app.cli import main
from app.client import (
    BusyError,
    Client,
    ConflictError,
    InvalidRequestError,
    NotAuthorisedError,
    NotFoundError,
    OperationFailedError,
    StaleGenerationError,
    StillRunningError,
    UnreachableError,
)
from app.client import transport as wire
from app.client.transport import Answer
from app.server import FileServer, ServerStartError
from app.settings import Limits, ServerSettings
from app.web_server import WebServer
from core.control.commands import OperationState
from tests.app_doubles import MemorySource
from tests.app_plane import MemoryPlane

pytestmark = pytest.mark.integration
TOKENS = Tokens.make(True)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebServer, MemoryPlane]]:
    plane = MemoryPlane()
    limits = Limits(requests_per_s=1000.0, n_burst=1000)
    path = tmp_path_factory.mktemp("uds") / "podium.sock"
    server = WebServer(ServerSettings(control=True, limits=limits, uds=str(path)))
    server.start(create_app(MemorySource(), plane, server.bind(), tokens=TOKENS))
    yield server, plane
    server.stop()
    assert not path.exists()


@pytest.fixture
def plane(door: tuple[WebServer, MemoryPlane]) -> MemoryPlane:
    fresh, plane = MemoryPlane(), door[1]
    vars(plane).update(vars(fresh))
    return plane


@pytest.fixture
def client(door: tuple[WebServer, MemoryPlane], plane: MemoryPlane) -> Client:
    return Client(door[0].url(), TOKENS.control)


def test_the_socket_is_for_its_user_alone(door: tuple[WebServer, MemoryPlane]) -> None:
    path = door[0].settings.uds
    assert door[0].url() == f"unix:{path}"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(ServerStartError, match="another server listens"):
        WebServer(ServerSettings(uds=path)).bind()


def test_a_socket_that_a_dead_server_left_is_taken_over_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = WebServer(ServerSettings(uds=str(path)))
    assert server.bind().uds == str(path)
    server.stop()
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ServerStartError, match="is not a socket"):
        WebServer(ServerSettings(uds=str(path))).bind()
    assert path.read_text(encoding="utf-8") == "mine"
    with pytest.raises(ServerStartError, match="cannot listen"):
        WebServer(ServerSettings(uds=str(tmp_path / "none" / "x.sock"))).bind()


def test_every_change_is_made_by_the_client(client: Client, plane: MemoryPlane) -> None:
    assert [pool.name for pool in client.pools()] == ["judges", "pool"]
    assert client.pool("pool").process_on_nodes == (2,)
    assert client.wait(client.pause("pool")).after == "pool [2]"
    assert client.resume("pool", generation=3).succeeded
    assert client.plan_resize("pool", [4])["pools"][0]["after"] == [4]
    resized = client.resize("pool", [4])
    assert (resized.kind, resized.who, resized.plan and resized.plan["kind"]) == ("resize", "control", "resize")
    assert client.plan_split("pool", [("a", 1, ["rollout"]), ("b", 3, [])])["kind"] == "split"
    client.split("pool", [("a", 1, ["rollout"]), ("b", 3, [])])
    assert client.plan_move("rollout", "b")["groups"][0]["to_pool"] == "b"
    client.move("rollout", "b")
    assert client.plan_merge(["a", "b"], "pool")["kind"] == "merge"
    merged = client.merge(["a", "b"], "pool")
    assert client.operation(merged.id) == merged
    assert [one.kind for one in client.operations(limit=3)] == ["merge", "move", "split"]
    assert [one.kind for one in client.operations()][-1] == "pause"
    assert plane.pool("pool").groups == ("rollout",)


def test_each_refusal_has_a_type_of_its_own_with_the_problems_fields(client: Client, plane: MemoryPlane) -> None:
    client.resize("pool", [4])
    with pytest.raises(StaleGenerationError) as stale:
        client.resize("pool", [1], generation=3)
    assert (stale.value.actual_generation, stale.value.last_change["kind"]) == (4, "resize")
    assert "resize by control, pool [2] to pool [4]" in str(stale.value)
    assert type(pickle.loads(pickle.dumps(stale.value))) is StaleGenerationError
    with pytest.raises(StaleGenerationError):
        client.merge(["pool", "judges"], "all", {"judges": 2})
    with pytest.raises(InvalidRequestError) as unfit:
        client.split("pool", [("a", 0, [])])
    assert unfit.value.errors[0][0] == "body.parts.0.size"
    with pytest.raises(InvalidRequestError, match="has no home"):
        client.plan_split("pool", [("a", 4, [])])
    with pytest.raises(NotFoundError):
        client.pool("none")
    plane.n_held = 8
    with pytest.raises(ConflictError) as full:
        client.resize("pool", [10])
    assert (full.value.kind, full.value.status, len(full.value.request_id)) == ("no-room", 409, 32)


def test_a_token_that_is_wrong_or_may_only_read_is_told_apart(door: tuple[WebServer, MemoryPlane]) -> None:
    for token in ("", "wrong"):
        with pytest.raises(NotAuthorisedError, match="token"):
            Client(door[0].url(), token).pools()
    reader = Client(door[0].url(), TOKENS.read)
    assert reader.pools()
    with pytest.raises(NotAuthorisedError, match="control token"):
        reader.pause("pool")


def test_an_operation_is_watched_to_its_end(client: Client, plane: MemoryPlane) -> None:
    plane.hold = True
    operation = client.resize("pool", [4])
    with pytest.raises(StillRunningError) as late:
        client.wait(operation, timeout_s=0.05)
    assert late.value.operation is not None
    assert late.value.operation.progress == "waits for the driver's next call"
    states = []
    for seen in client.watch(operation):
        states.append(seen.state)
        moved = {"waiting_for_safe_point": OperationState.RUNNING, "running": OperationState.FAILED}.get(seen.state)
        if moved:
            plane.by_id[operation.id] = replace(plane.by_id[operation.id], state=moved, error="no room")
    assert states == ["waiting_for_safe_point", "running", "failed"]
    with pytest.raises(OperationFailedError, match="no room") as failed:
        client.wait(operation.id)
    assert failed.value.operation is not None
    with pytest.raises(ConflictError):
        client.cancel(operation)


def test_a_change_whose_answer_was_lost_is_sent_again_and_done_once(
    client: Client, plane: MemoryPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [2]

    def lossy(url: str, method: str, path: str, body: bytes | None, said: dict[str, str], timeout_s: float) -> Answer:
        answer = wire.send(url, method, path, body, said, timeout_s)
        if method == "POST" and lost[0]:
            lost[0] -= 1
            raise wire.NoAnswerError("reset", sent=True)
        return answer

    monkeypatch.setattr("app.client.client.send", lossy)
    assert client.resize("pool", [4]).succeeded
    assert (lost, len(plane.by_id)) == ([0], 1)
    lost[0] = 9
    with pytest.raises(UnreachableError, match="reset"):
        client.pause("pool")


def test_nobody_and_strangers_are_not_reached(tmp_path: Path) -> None:
    for url in (f"unix:{tmp_path}/none", "http://127.0.0.1:1", "http://[::1", "http://127.0.0.1:99999"):
        with pytest.raises(UnreachableError, match="cannot reach"):
            Client(url, "secret").pools()


def test_a_redirect_is_not_followed_and_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(307)
            self.send_header("Location", "/stolen")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with pytest.raises(UnreachableError, match="not a Podium server"):
            Client(f"http://127.0.0.1:{server.server_address[1]}", "secret").pools()
        server.shutdown()
        thread.join(5)
    assert asked == ["/api/v1/resource-pools"]


def test_a_server_that_is_too_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = {"type": "urn:podium:problem:busy", "title": "Too many queries", "detail": "ask again"}
    answers = [Answer(429, json.dumps(problem).encode(), "id", 0.01), Answer(200, b'{"items": []}', "id")]
    monkeypatch.setattr("app.client.client.send", lambda *_: answers.pop(0))
    assert Client("http://x").pools() == ()
    answers += [Answer(503, json.dumps(problem).encode(), "id", 0.01)] * 3
    with pytest.raises(BusyError) as busy:
        Client("http://x").pools()
    assert busy.value.retry_after_s == 0.01


def test_neither_client_nor_command_line_nor_server_waits_for_torch() -> None:
    code = "import app.client, app.cli, app.server, sys; print('torch' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["False", "False"]


# The commands


@pytest.fixture
def at(door: tuple[WebServer, MemoryPlane], plane: MemoryPlane, monkeypatch: pytest.MonkeyPatch) -> MemoryPlane:
    monkeypatch.setenv("PODIUM_URL", door[0].url())
    monkeypatch.setenv("PODIUM_TOKEN", TOKENS.control)
    return plane


def test_pools_are_changed_from_the_command_line(at: MemoryPlane, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pools", "resize", "pool", "2", "2", "--yes"]) == 0
    assert at.pool("pool").process_on_nodes == (2, 2)
    assert main(["pools", "split", "pool", "a=1:rollout", "b=3", "--yes", "--wait", "5", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out[said.out.index("{") :])["state"] == "succeeded"
    assert main(["pools", "move", "rollout", "b", "--yes", "--generation", "5"]) == 0
    generations = ["--generation", f"a={at.pool('a').generation}", "--generation", f"b={at.pool('b').generation}"]
    assert main(["pools", "merge", "a", "b", "--name", "all", "--yes", *generations]) == 0
    assert at.pool("all").groups == ("rollout",)


def test_a_dry_run_shows_the_plan_and_changes_nothing(at: MemoryPlane, capsys: pytest.CaptureFixture[str]) -> None:
    before = at.pools()
    assert main(["pools", "resize", "pool", "4", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "pool pool      2          4" in shown.out
    assert "group rollout  2 on pool  4 on pool (stateless)" in shown.out
    assert "estimated downtime 0.5 s" in shown.err
    assert main(["pools", "merge", "pool", "judges", "--name", "all", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "merge"
    assert (at.pools(), at.by_id) == (before, {})


@pytest.mark.parametrize(
    ("command", "code", "named"),
    [
        (["resize", "pool", "4"], 2, "pass --yes"),
        (["resize", "pool", "0", "--yes"], 2, "process_on_nodes"),
        (["resize", "pool", "99", "--yes"], 1, "16 slots"),
        (["resize", "pool", "4", "--generation", "2", "--yes"], 3, "generation 3, not 2"),
        (["resize", "none", "4", "--yes"], 1, "'none'"),
        (["split", "pool", "a", "--yes"], 2, "NAME=SIZE"),
        (["split", "pool", "a=x", "--yes"], 2, "NAME=SIZE"),
        (["split", "pool", "a=9:rollout", "--yes"], 1, "9 slots"),
        (["merge", "pool", "judges", "--name", "all", "--generation", "x=1", "--yes"], 2, "POOL=N"),
        (["merge", "pool", "judges", "--name", "all", "--generation", "pool=1", "--yes"], 3, "generation 3, not 1"),
        (["move", "none", "pool", "--yes"], 1, "'none'"),
    ],
)
def test_what_is_refused_is_one_line_and_a_code(
    at: MemoryPlane,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    code: int,
    named: str,
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    before = at.pools()
    assert main(["pools", *command]) == code
    said = capsys.readouterr()
    assert named.lower() in said.err.lower()
    assert (said.out, "Traceback" in said.err, at.pools()) == ("", False, before)


@pytest.mark.parametrize(("reply", "code", "after"), [("y\n", 0, (4,)), ("n\n", 1, (2,)), ("", 1, (2,))])
def test_a_person_is_asked_after_the_plan(
    at: MemoryPlane,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    reply: str,
    code: int,
    after: tuple[int, ...],
) -> None:
    class Terminal:
        closed = False

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return reply

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main(["pools", "resize", "pool", "4"]) == code
    assert "pool pool: 2 -> 4" in capsys.readouterr().err
    assert at.pool("pool").process_on_nodes == after


def test_what_the_person_saw_is_what_is_changed(at: MemoryPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        closed = False

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            at.by_name["pool"] = replace(at.by_name["pool"], generation=9)
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main(["pools", "resize", "pool", "4"]) == 3
    assert at.pool("pool").process_on_nodes == (2,)


def test_operations_are_listed_watched_and_cancelled(at: MemoryPlane, capsys: pytest.CaptureFixture[str]) -> None:
    at.hold = True
    assert main(["pools", "pause", "pool", "--wait", "0.05"]) == 0
    said = capsys.readouterr()
    assert "podium ops watch op-1" in said.err
    assert "pause pool waiting_for_safe_point: waits for the driver's next call" in said.err
    assert main(["ops", "list"]) == 0
    assert "op-1       pause  pool  waiting_for_safe_point  control" in capsys.readouterr().out
    assert main(["ops", "watch", "op-1", "--timeout", "0.05"]) == 1
    assert main(["ops", "cancel", "op-1", "--json"]) == 0
    capsys.readouterr()
    assert main(["ops", "watch", "op-1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    assert main(["ops", "cancel", "op-1"]) == 3
    assert main(["ops", "watch", "op-9"]) == 1
    assert main(["ops", "list", "--json", "--limit", "1"]) == 0


def test_a_file_can_be_shown_on_a_socket_too(tmp_path: Path) -> None:
    import app

    with app.serve(tmp_path / "runs", uds=tmp_path / "run.sock", control=True) as server:
        assert server.address == f"unix:{tmp_path}/run.sock"
        assert Client(server.address, server.control_token).pools() == ()
    with FileServer(server.db_path, ServerSettings(uds=str(tmp_path / "view.sock"))) as view:
        url, _, token = view.url.partition("?token=")
        assert Client(url, token).operations() == ()
