"""A page of another program on this machine, open in the browser that holds our cookie, can read and change nothing."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Response

import app
from app.server import RunServer
from app.store.reader import Reader
from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker
from tests.e2e.commands import until
from tests.e2e.pages import watch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

_ATTACK = """async (target) => {
  const pause = `${target}/api/v1/resource-pools/gpus/pause`;
  const json = { "Content-Type": "application/json" };
  const tried = {};
  const attempt = async (name, url, options) => {
    try {
      const answer = await fetch(url, { credentials: "include", ...options });
      tried[name] = answer.type === "opaque" ? "opaque" : await answer.text();
    } catch (error) {
      tried[name] = "refused";
    }
  };
  await attempt("read", `${target}/api/v1/runs/current/overview`, {});
  await attempt("read blindly", `${target}/api/v1/resource-pools`, { mode: "no-cors" });
  await attempt("read the page with its proof", `${target}/`, {});
  await attempt("post JSON", pause, { method: "POST", headers: json, body: "{}" });
  await attempt("post with a guessed proof", pause, { method: "POST", headers: { ...json, "X-CSRF": "x" }, body: "" });
  await attempt("post blindly", pause, { method: "POST", mode: "no-cors", body: "{}" });
  await attempt("beacon", pause, { method: "POST", mode: "no-cors", keepalive: true, body: "{}" });
  tried.image = await new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve("loaded");
    image.onerror = () => resolve("refused");
    image.src = `${target}/api/v1/runs/current`;
  });
  tried.script = await new Promise((resolve) => {
    const script = document.createElement("script");
    script.onload = () => resolve("loaded");
    script.onerror = () => resolve("refused");
    script.src = `${target}/api/v1/runs/current`;
    document.head.append(script);
  });
  tried.stream = await new Promise((resolve) => {
    const stream = new EventSource(`${target}/api/v1/stream`, { withCredentials: true });
    stream.onopen = () => resolve("opened");
    stream.onerror = () => { stream.close(); resolve("refused"); };
  });
  return tried;
}"""

_FORM = """(target) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", enctype: "text/plain", action: `${target}/api/v1/resource-pools/gpus/pause` });
  const field = document.createElement("input");
  Object.assign(field, { name: '{"deadline_s": 5, "x": "', value: '"}' });
  form.append(field);
  document.body.append(form);
  form.submit();
}"""

_FRAME = """(target) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.onload = () => resolve("loaded");  // also for the browser's own page of a refusal
  frame.src = `${target}/`;
  document.body.append(frame);
})"""


class _Plain(http.server.BaseHTTPRequestHandler):
    """Serves one empty page."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>Another program</title><body></body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(params=["127.0.0.1", "localhost"])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The origin of another program: on our own host, where the browser sends our cookie along, and on another."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Plain) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{request.param}:{server.server_address[1]}"
        server.shutdown()
        thread.join(5)


@dataclass(frozen=True)
class Victim:
    """A steerable run, and the browser of the person who may steer it."""

    server: RunServer
    page: Page
    origin: str

    @property
    def pool_state(self) -> str:
        """Return what the pool is doing, as its owner sees it."""
        answer = self.page.context.request.get(f"{self.origin}/api/v1/resource-pools/gpus")
        state: str = answer.json()["state"]
        return state

    def operations(self) -> list[Any]:
        """Return the operations that there were."""
        found: list[Any] = self.page.context.request.get(f"{self.origin}/api/v1/operations").json()["items"]
        return found


@pytest.fixture
def victim(tmp_path: Path, browser: Browser) -> Iterator[Victim]:
    """A run with control on, its URL followed in a browser."""
    with (
        Controller.local(),
        app.serve(tmp_path / "runs", control=True) as server,
        RayResourcePool([2], name_prefix="gpus") as pool,
    ):
        RayWorkerGroup(pool, RayClassWithInitArgs(Worker))
        page = watch(browser).page
        page.set_default_timeout(30_000)
        page.goto(server.control_url)
        page.locator("[data-pool=gpus] [data-pool-action=pause]").wait_for()
        yield Victim(server, page, server.address.rstrip("/"))
        page.context.close()


def audited(server: RunServer) -> list[tuple[str, str]]:
    """Return every attempt to change something: with which credential, and what became of it."""
    reader = Reader(server.db_path)
    try:
        return [(entry.actor, entry.outcome) for entry in reader.audit_entries(1000, None)]
    finally:
        reader.close()


def test_a_page_of_another_origin_reads_nothing_and_pauses_nothing(victim: Victim, stranger: str) -> None:
    page = victim.page.context.new_page()
    answered: list[Response] = []
    page.on("response", lambda response: answered.append(response) if response.url.startswith(victim.origin) else None)
    page.goto(stranger)
    tried = page.evaluate(_ATTACK, victim.origin)
    assert set(tried.values()) <= {"refused", "opaque"}, tried
    assert tried["read"] == tried["post JSON"] == tried["image"] == tried["stream"] == "refused"
    page.evaluate(_FRAME, victim.origin)
    # The load of the browser's own page of a refusal is told before its address is.
    page.wait_for_function("window.frames.length === 1")
    until(lambda: page.title() and page.frames[1].url.startswith("chrome-error:"), "the refusal in the frame", 20)

    page.evaluate(_FORM, victim.origin)
    page.wait_for_url(f"{victim.origin}/**")
    assert "Cross-site request" in page.inner_text("body")

    assert answered
    asked = [(one.request.method, one.status) for one in answered if one.request.resource_type != "document"]
    assert {status for _, status in asked} <= {401, 403}, asked
    assert victim.pool_state == "active"
    assert victim.operations() == []
    entries = until(lambda: audited(victim.server), "the refused attempts in the record", 20)
    assert {outcome for _, outcome in entries} <= {"refused", "unauthorised"}, entries


def test_the_owners_own_page_can_still_do_what_the_stranger_could_not(victim: Victim) -> None:
    line = victim.page.locator("[data-pool=gpus]")
    line.locator("[data-pool-action=pause]").click()
    line.locator("[data-pool-action=resume]:enabled").wait_for()
    assert victim.pool_state == "paused"
    assert [(one["kind"], one["state"]) for one in victim.operations()] == [("pause", "succeeded")]
    until(lambda: len(audited(victim.server)) > 2, "the audit entries", 20)
    entries = audited(victim.server)
    assert {actor for actor, _ in entries} == {"control"}
    assert sorted(outcome for _, outcome in entries) == ["accepted", "asked", "succeeded"]
