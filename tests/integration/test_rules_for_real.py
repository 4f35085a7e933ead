"""Rules S14, S15 and S25 on a real driver, whose every file, import, process and connection is noted by Python."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make test-slow"),
]

_DRIVER = """
import json, sys, threading
import app
from core import Controller, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register

NOTED = set("open import pickle.find_class socket.connect socket.getaddrinfo subprocess.Popen os.system os.exec os.fork"
            " os.posix_spawn os.kill os.remove os.rename ctypes.dlopen sqlite3.connect".split())
events, listening = [], threading.Event()

def note(name, args):
    if listening.is_set() and name in NOTED:
        events.append([name, repr(args)[:300]])

sys.addaudithook(note)

class Echo(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def say(self):
        return 1

with Controller.local(), app.serve("runs", control=True) as server, RayResourcePool([2], name_prefix="pool") as pool:
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Echo), name_prefix="group")
    group.say()
    print(json.dumps({"address": server.address, "token": server.control_token, "pool": pool.name}), flush=True)
    listening.set()
    sys.stdin.readline()
    listening.clear()
    print(json.dumps(events), flush=True)
"""


@dataclass
class Tried:
    """What a driver did while it was asked; ``answers`` are (method, path, status)."""

    events: list[tuple[str, str]] = field(default_factory=list)
    answers: list[tuple[str, str, int]] = field(default_factory=list)
    pools: Any = None
    pool: str = ""

    def events_called(self, *names: str) -> list[str]:
        """Return what the driver did of these kinds."""
        return [args for name, args in self.events if name in names]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """Ask a driver for everything in its document, with paths, modules, classes and process ids in each place."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.py").write_text(_DRIVER, encoding="utf-8")
    (folder / "evil_module.py").write_text("open('touched', 'w')\nclass Evil:\n    pass\n", encoding="utf-8")
    (folder / "evil_secret.txt").write_text("secret", encoding="utf-8")
    found = Tried()
    with subprocess.Popen(
        [sys.executable, "driver.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        opened = json.loads(driver.stdout.readline())
        found.pool = opened["pool"]
        asked = Asking(opened["address"], opened["token"])
        document = asked.send("GET", "/openapi.json")[1]
        payloads = [
            str(folder / "evil_secret.txt"),
            "../evil_secret.txt",
            "evil_module",
            "evil_module:Evil",
            "evil_module.Evil",
            str(driver.pid),
            "file:///etc/passwd",
            "http://127.0.0.1:9/evil",
        ]
        for payload in payloads:
            for method, path, body in requests_with(document, payload):
                found.answers.append((method, path, asked.send(method, path, body)[0]))
        found.pools = asked.send("GET", "/api/v1/resource-pools")[1]["items"]
        driver.stdin.write("end\n")
        driver.stdin.flush()
        found.events = [(name, args) for name, args in json.loads(driver.stdout.readline())]
        assert driver.wait(60) == 0
    assert not (folder / "touched").exists()
    return found


class Asking:
    """Requests with the control token, spaced so that none is refused for the rate."""

    def __init__(self, address: str, token: str) -> None:
        self._host = urlsplit(address).netloc
        self._token = token

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        while True:
            connection = http.client.HTTPConnection(self._host, timeout=30)
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", "If-Match": "*"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read() if "event-stream" not in answer.headers["content-type"] else b""
            connection.close()
            if answer.status != 429:
                return answer.status, json.loads(text) if "json" in answer.headers["content-type"] else text


def requests_with(document: Any, payload: str) -> Iterator[tuple[str, str, Any]]:
    """Yield a request for each route of ``document``, with ``payload`` wherever a text may stand."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            filled = path
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    filled = filled.replace(f"{{{parameter['name']}}}", quote(payload, safe=""))
            names = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
            if method == "post":
                yield "POST", filled, body_of(filled, payload)
                continue
            yield "GET", filled, None
            for name in names:
                yield "GET", f"{filled}?{name}={quote(payload, safe='')}", None
    for page in ("/", "/calls", "/heatmap", "/compare", "/pools", "/postmortem"):
        yield "GET", f"{page}?group={quote(payload)}&method={quote(payload)}&run={quote(payload)}", None
    yield "GET", f"/static/{quote(payload, safe='')}", None
    yield "GET", f"/static/{payload.removeprefix('/')}", None


def body_of(path: str, payload: str) -> Any:
    bodies = {
        "merge": {"pools": [payload], "name": payload},
        "split": {"parts": [{"name": payload, "size": 1, "groups": [payload]}]},
        "resize": {"process_on_nodes": [1]},
        "move": {"pool": payload},
    }
    return next((body for name, body in bodies.items() if path.endswith(f"/{name}")), {})


def test_nothing_that_http_says_opens_a_file_or_imports_a_module(tried: Tried) -> None:
    assert len(tried.answers) > 200
    assert not [one for one in tried.events if "evil" in one[1] or "passwd" in one[1]]
    assert tried.events_called("open", "import"), "the driver's own doings were not noted"
    assert tried.events_called("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.fork") == []
    assert tried.events_called("os.posix_spawn", "os.kill", "os.remove", "os.rename", "ctypes.dlopen") == []
    assert tried.events_called("sqlite3.connect") == [
        args for args in tried.events_called("sqlite3.connect") if "runs/" in args
    ]


def test_only_names_that_are_in_the_tables_are_acted_on(tried: Tried) -> None:
    posts = {(path, status) for method, path, status in tried.answers if method == "POST"}
    assert posts
    assert not [one for one in posts if one[1] not in {404, 422}], sorted(posts)
    assert [(one["name"], one["state"]) for one in tried.pools] == [(tried.pool, "active")]
    assert not [one for one in tried.answers if one[2] >= 500], tried.answers


def test_a_server_connects_to_nobody(tried: Tried) -> None:
    assert tried.events_called("socket.connect", "socket.getaddrinfo") == []
