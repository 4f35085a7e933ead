"""Requests that nobody planned for, made from our own OpenAPI document, against a run that is really recorded."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

import app
from app.api import Tokens, create_app
from app.settings import Limits, ServerSettings
from app.store.reader import Reader
from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register, runtime
from core.control.commands import ControlPlane
from core.controller import control_plane
from core.dispatch import Dispatch
from tests.app_doubles import PORT, URL, MemoryAudit

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make test-slow"),
]
N_EXAMPLES = int(os.environ.get("PODIUM_FUZZ_EXAMPLES", "60"))
MOST_S = 5.0
FUZZED = settings(
    max_examples=N_EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


class Teller(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tell(self, wrong: bool) -> int:
        if wrong:
            raise ValueError("<b>wrong</b>")
        return self.rank


@dataclass
class Scene:
    app: FastAPI
    plane: ControlPlane
    audit: MemoryAudit
    headers: dict[str, str]

    def state(self) -> tuple[object, ...]:
        """Return what a command could change."""
        return (self.plane.pools(), self.plane.operations(), len(self.audit.entries))

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url=URL, headers=self.headers) as client:
                return await client.request(method, path, **request)

        return asyncio.run(send())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A recorded driver with two pools, good and bad calls, and no limit on the rate."""
    with (
        Controller.local(),
        app.serve(tmp_path_factory.mktemp("runs"), control=True) as server,
        RayResourcePool([2], name_prefix="one") as one,
        RayResourcePool([1, 1], name_prefix="two") as two,
    ):
        groups = [RayWorkerGroup(pool, RayClassWithInitArgs(Teller)) for pool in (one, two)]
        for group in groups:
            for wrong in (False, True, False):
                try:
                    group.tell(wrong)
                except Exception:
                    assert wrong
        plane = control_plane(runtime.current())
        audit, tokens = MemoryAudit(), Tokens.make(control=True)
        limits = Limits(requests_per_s=1e6, n_burst=1_000_000)
        reader = Reader(server.db_path)
        made = create_app(
            reader, plane, ServerSettings(port=PORT, control=True, limits=limits), tokens=tokens, audit=audit
        )
        yield Scene(made, plane, audit, {"Authorization": f"Bearer {tokens.control}"})
        reader.close()


def test_no_request_of_our_document_fails_hangs_or_changes_by_reading(scene: Scene) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_dict(scene.ask("GET", "/openapi.json").json())
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        if operation.path == "/api/v1/stream":
            continue  # it does not end while the run goes on
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            try:
                try_one(scene, operation, mode)
            except Unsatisfiable:
                # A route that takes nothing has nothing that could be wrong.
                assert mode is schemathesis.GenerationMode.NEGATIVE


def try_one(scene: Scene, operation: Any, mode: Any) -> None:
    @FUZZED
    @given(case=operation.as_strategy(generation_mode=mode))
    def probe(case: Any) -> None:
        wanted = case.as_transport_kwargs(base_url=URL)
        request = {name: wanted[name] for name in ("params", "json", "content") if wanted.get(name) is not None}
        if isinstance(wanted.get("data"), bytes | str):
            request["content"] = wanted["data"]
        headers = {
            name: value for name, value in wanted["headers"].items() if name.lower() in {"if-match", "idempotency-key"}
        }
        before, began_s = scene.state(), time.monotonic()
        answer = scene.ask(wanted["method"], wanted["url"].removeprefix(URL), headers=headers, **request)
        assert answer.status_code < 500 or answer.status_code == 503, (case.as_curl_command(), answer.text)
        assert time.monotonic() - began_s < MOST_S
        if wanted["method"] == "GET":
            assert scene.state() == before

    probe()


PAGES = ("/", "/timeline", "/calls", "/calls/1", "/heatmap", "/stragglers", "/data", "/compare", "/pools", "/workers")
NAMES = ("last", "group", "method", "step", "status", "from", "to", "px", "cursor", "limit", "a", "b", "sel", "at")
NUMBERS = st.one_of(
    st.integers().map(str), st.floats().map(str), st.sampled_from(["1e999", "-0", "9" * 400, "\u0663", "0x10"])
)
VALUES = st.one_of(
    st.text(max_size=60), NUMBERS, st.sampled_from(["<img src=x onerror=alert(1)>", "\x00", "../../etc"])
)


@FUZZED
@given(
    path=st.sampled_from(
        [*PAGES, "/operations", "/postmortem", "/export/calls.csv", "/export/trace.json", "/static/x"]
    ),
    query=st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=20)), VALUES, max_size=5),
)
def test_no_query_makes_a_page_fail(scene: Scene, path: str, query: dict[str, str]) -> None:
    before = scene.state()
    answer = scene.ask("GET", path, params={name: value.encode("utf-8", "replace") for name, value in query.items()})
    assert answer.status_code < 500, (path, query, answer.text)
    assert scene.state() == before
    assert "<img src=x" not in answer.text


@FUZZED
@given(path=st.text(max_size=80), method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"]))
def test_no_path_makes_the_server_fail(scene: Scene, path: str, method: str) -> None:
    raw = "/" + "".join(f"%{byte:02x}" for byte in path.encode("utf-8", "replace"))
    headers = {"Content-Type": "application/json"}
    answer = scene.ask(method, raw, headers=headers, content=b"" if method in {"GET", "OPTIONS"} else b"{}")
    assert answer.status_code < 500, (path, answer.text)
