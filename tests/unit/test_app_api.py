"""The REST side over an in-memory run, without a socket."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi.routing import APIRoute

from app.api.context import require_control
from app.errors import ReaderBusyError
from app.settings import Limits
from core.control.commands import OperationState
from tests.app_doubles import (
    HOST,
    PORT,
    House,
    MemoryAudit,
    MemorySource,
    answer,
    check_problem,
    get,
    post,
    some_call,
    some_run,
)
from web import rows
from web import source as web

PAUSE = "/api/v1/resource-pools/pool/pause"
RESUME = "/api/v1/resource-pools/pool/resume"


# Reading


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs",
        "/api/v1/runs/current",
        "/api/v1/runs/run-1",
        "/api/v1/runs/current/overview",
        "/api/v1/runs/run-1/timeline?from=0&to=100.5&px=800",
        "/api/v1/calls?limit=3",
        "/api/v1/calls/3",
        "/api/v1/workers",
        "/api/v1/worker-groups",
        "/api/v1/now",
        "/api/v1/audit-entries?limit=2",
        "/api/v1/events",
        "/api/v1/operations",
        "/api/v1/resource-pools",
        "/api/v1/resource-pools/pool",
        "/api/v1/session",
        "/openapi.json",
    ],
)
def test_every_question_has_a_json_answer(path: str) -> None:
    response = get(path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"


def test_an_answer_is_the_dataclass_itself() -> None:
    source = MemorySource()
    body = get("/api/v1/runs/current/timeline?from=5&to=50&px=300", House(source)).json()
    assert body == orjson.loads(orjson.dumps(source.timeline(5.0, 50.0, 300)))


def test_a_number_that_json_does_not_know_is_null() -> None:
    assert get("/api/v1/runs/current/overview").json()["steps"][0]["metrics"] == [["reward", None]]


def test_a_run_says_whether_it_can_be_steered() -> None:
    assert get("/api/v1/runs/current").json()["controllable"] is True
    house = House(control=False)
    assert get("/api/v1/runs/current", house, token=house.tokens.read).json()["controllable"] is False


def test_another_run_is_not_found() -> None:
    for path in ("/api/v1/runs/other", "/api/v1/runs/other/overview", "/api/v1/runs/other/timeline"):
        check_problem(get(path), 404, "not-found")


def test_calls_are_paged_by_key_without_gap_or_repeat() -> None:
    house, seen, cursor = House(), [], ""
    while True:
        page = get(f"/api/v1/calls?limit=10{cursor}", house).json()
        seen += [call["id"] for call in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == list(range(25, 0, -1))


def test_calls_are_narrowed() -> None:
    house = House(MemorySource(call_rows=[some_call(2, "update", "error"), some_call(1)]))
    assert [one["id"] for one in get("/api/v1/calls?method=update&status=error&step=1", house).json()["items"]] == [2]
    assert get("/api/v1/calls?step=7", house).json() == {"items": [], "next_cursor": None}


def test_events_are_paged_until_the_last() -> None:
    house = House()
    first = get("/api/v1/events?limit=3", house).json()
    assert ([one["id"] for one in first["items"]], first["next_cursor"]) == ([5, 4, 3], 3)
    last = get("/api/v1/events?limit=3&cursor=3", house).json()
    assert ([one["id"] for one in last["items"]], last["next_cursor"]) == ([2, 1], None)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/calls?metod=generate",
        "/api/v1/calls?limit=0",
        "/api/v1/calls?limit=1001",
        "/api/v1/calls?cursor=x",
        "/api/v1/calls?status=weird",
        "/api/v1/calls/x",
        "/api/v1/calls/99999999999999999999999",
        "/api/v1/runs?x=1",
        "/api/v1/runs/current/overview?x=1",
        "/api/v1/runs/current/timeline?from=nan",
        "/api/v1/runs/current/timeline?to=inf",
        "/api/v1/runs/current/timeline?px=0",
        "/api/v1/runs/current/timeline?width=100",
        "/api/v1/resource-pools/pool?x=1",
        "/api/v1/workers?limit=3",
    ],
)
def test_a_request_that_does_not_fit_is_a_problem_that_says_where(path: str) -> None:
    problem = check_problem(get(path), 422, "invalid-request")
    assert re.search(r"(query|path)\.", problem["detail"])


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/calls/9999", "/static/none.js", "/static/../pages.py"])
def test_what_is_not_there_is_a_problem(path: str) -> None:
    check_problem(get(path), 404, "not-found")


def test_a_method_that_a_route_does_not_know_is_a_problem() -> None:
    check_problem(answer(House(), "DELETE", "/api/v1/runs", json={}), 405, "method-not-allowed")


def test_a_file_that_is_busy_asks_to_come_back() -> None:
    class Busy(MemorySource):
        def overview(self) -> web.Overview:
            raise ReaderBusyError("every connection is taken", retry_after_s=2.0)

    response = get("/api/v1/runs/current/overview", House(Busy()))
    check_problem(response, 503, "busy")
    assert response.headers["retry-after"] == "2"


def test_an_error_of_ours_is_a_problem_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemorySource):
        def workers(self) -> tuple[rows.Worker, ...]:
            raise RuntimeError("password=hunter2")

    response = get("/api/v1/workers", House(Broken()))
    check_problem(response, 500, "failed")
    assert "hunter2" not in response.text
    assert "x-content-type-options" in response.headers
    assert "a request for /api/v1/workers failed" in caplog.text


# Pages


@pytest.mark.parametrize("path", ["/", "/timeline", "/calls", "/calls?status=ok&cursor=9", "/calls/3"])
def test_every_page_is_html(path: str) -> None:
    response = get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"


def test_a_browser_gets_problems_as_pages_and_nothing_in_them_is_markup() -> None:
    name = "<img src=x onerror=alert(1)>"
    for path in ("/calls/9999", f"/{name}", "/calls/x"):
        response = get(path, headers={"Accept": "text/html"})
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.status_code in {404, 422}
        assert "<img src=x" not in response.text
    response = get("/timeline", token="", headers={"Accept": "text/html"})
    assert response.status_code == 401
    assert "<html" in response.text


def test_names_are_text_on_every_page() -> None:
    name = "<img src=x onerror=alert(1)>"
    house = House(MemorySource(the_run=some_run(name=name, script=name), call_rows=[some_call(1, name)]))
    for path in ("/", "/timeline", "/calls", "/calls/1"):
        assert "<img src=x" not in get(path, house).text


def test_only_the_control_visitor_gets_the_csrf_value() -> None:
    house = House()
    assert house.tokens.csrf in get("/", house).text
    assert house.tokens.csrf not in get("/", house, token=house.tokens.read).text
    assert get("/api/v1/session", house).json()["csrf"] == house.tokens.csrf
    session = get("/api/v1/session", house, token=house.tokens.read).json()
    assert session == {"scope": "read", "may_control": False, "csrf": None}


def test_no_page_or_answer_holds_a_token() -> None:
    house = House()
    secrets = (house.tokens.read, house.tokens.control, house.tokens.read_session, house.tokens.control_session)
    for path in ("/", "/calls", "/api/v1/session", "/api/v1/runs", "/openapi.json", "/nothing", "/api/v1/nothing"):
        text = get(path, house).text
        assert not any(secret in text for secret in secrets)


def test_plotly_is_served_compressed_and_for_ever() -> None:
    house = House()
    name = house.app.state.context.files.plotly_name
    assert re.fullmatch(r"plotly-\d[\w.]*-[0-9a-f]{12}\.min\.js", name)
    response = get(f"/static/{name}", house, token="", headers={"Accept-Encoding": "gzip"})
    assert response.status_code == 200
    assert response.headers["content-encoding"] == "gzip"
    assert "immutable" in response.headers["cache-control"]
    assert int(response.headers["content-length"]) < 2_000_000 < len(response.content)
    assert f"/static/{name}" in get("/timeline", house).text


def test_a_file_of_ours_is_asked_for_again_unless_its_url_has_its_version() -> None:
    house = House()
    version = house.app.state.context.files.version
    first = get("/static/js/shell.js", house, token="")
    assert first.headers["cache-control"] == "public, no-cache"
    again = get("/static/js/shell.js", house, token="", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "immutable" in get(f"/static/js/shell.js?v={version}", house, token="").headers["cache-control"]


# Sealing


def test_every_answer_carries_the_security_headers_also_a_refusal() -> None:
    house = House()
    for path, token in (("/", None), ("/api/v1/runs", None), ("/api/v1/runs", ""), ("/healthz", ""), ("/none", None)):
        headers = get(path, house, token=house.tokens.read if token is None else token).headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "camera=()" in headers["permissions-policy"]
        assert not [name for name in headers if name.startswith("access-control-")]
        assert headers["cache-control"] == "no-store"


def test_the_token_in_the_url_becomes_a_strict_cookie_that_reads() -> None:
    house = House()
    response = get(f"/?step=2&token={house.tokens.read}", house, token="")
    assert (response.status_code, response.headers["location"]) == (303, "/?step=2")
    cookie = response.headers["set-cookie"]
    assert cookie == f"podium_{PORT}={house.tokens.read_session}; Path=/; HttpOnly; SameSite=Strict"
    page = get("/", house, token="", headers={"Cookie": cookie.partition(";")[0]})
    assert page.status_code == 200


def test_health_says_ok_and_nothing_else_without_a_token() -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        response = get(path, token="")
        assert (response.status_code, response.text) == (200, "ok")


def test_a_record_that_is_behind_is_not_ready() -> None:
    check_problem(get("/readyz", House(MemorySource(lag_ms=6000.0)), token=""), 503, "not-ready")


def test_head_answers_like_get_without_a_body() -> None:
    response = answer(House(), "HEAD", "/api/v1/runs")
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) > 0


def test_docs_that_load_from_elsewhere_are_off() -> None:
    for path in ("/docs", "/redoc"):
        assert get(path).status_code == 404


def test_openapi_names_every_operation_once() -> None:
    document = get("/openapi.json").json()
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))
    assert {"pause_pool", "list_calls", "get_timeline", "stream"} <= set(ids)


# Allow lists


def test_every_route_that_is_not_for_reading_depends_on_control() -> None:
    routes = [route for route in House().app.routes if isinstance(route, APIRoute)]
    mutations = [route for route in routes if (route.methods or set()) - {"GET", "HEAD"}]
    assert mutations
    for route in mutations:
        assert require_control in [dependency.call for dependency in route.dependant.dependencies], route.path


def test_every_route_but_the_open_ones_needs_a_token() -> None:
    house = House()
    for route in house.app.routes:
        path = re.sub(r"\{[^}]*\}", "1", getattr(route, "path", "/"))
        for method in getattr(route, "methods", None) or {"GET"}:
            expected = {200} if path in {"/healthz", "/livez", "/readyz"} else {401}
            if path.startswith("/static/"):
                expected = {404}
            assert answer(house, method, path, token="").status_code in expected, (method, path)


def test_reading_everything_changes_nothing() -> None:
    house = House()
    assert house.plane is not None
    before = (house.plane.pools(), dict(house.plane.by_id), len(house.audit.entries))
    for path in house.app.openapi()["paths"]:
        if path != "/api/v1/stream":
            get(re.sub(r"\{[^}]*\}", "pool", path), house)
    assert (house.plane.pools(), dict(house.plane.by_id), len(house.audit.entries)) == before


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def test_a_pickle_from_outside_is_never_opened(tmp_path: Path) -> None:
    target, house = tmp_path / "touched", House()
    bomb = pickle.dumps(Bomb(str(target)))
    for path in (PAUSE, RESUME, "/api/v1/operations/1/cancel", "/", "/api/v1/calls"):
        for kind in ("application/json", "application/octet-stream", "application/x-pickle"):
            for method in ("POST", "PUT"):
                response = answer(house, method, path, content=bomb, headers={"Content-Type": kind})
                assert 400 <= response.status_code < 500
    assert not target.exists()


def test_the_http_side_knows_no_way_to_run_what_it_is_sent() -> None:
    forbidden = re.compile(r"\b(pickle|cloudpickle|marshal|eval|exec|import_module|__import__|subprocess)\b")
    for path in (Path(__file__).parents[2] / "app" / "api").glob("*.py"):
        assert not forbidden.search(path.read_text(encoding="utf-8")), path


# Steering


def test_a_pool_with_a_slash_in_its_name_is_read_and_steered() -> None:
    house = House()
    assert house.plane is not None
    house.plane.by_name["team/a"] = replace(house.plane.by_name["pool"], name="team/a")
    assert get("/api/v1/resource-pools/team%2Fa", house).json()["name"] == "team/a"
    assert post(house, "/api/v1/resource-pools/team%2Fa/pause").json()["pool"] == "team/a"
    assert house.plane.pool("team/a").state == "paused"


def test_a_pause_is_accepted_as_an_operation() -> None:
    house = House()
    response = post(house, PAUSE)
    assert response.status_code == 202
    operation = response.json()
    assert response.headers["location"] == f"/api/v1/operations/{operation['id']}"
    assert (operation["kind"], operation["pool"], operation["state"], operation["done"]) == (
        "pause",
        "pool",
        "succeeded",
        True,
    )
    assert (operation["created_at"], operation["created_ms"]) == ("2026-01-02T03:04:07.178+00:00", 1500.0)
    assert get(response.headers["location"], house).json() == operation
    pool = get("/api/v1/resource-pools/pool", house)
    assert (pool.json()["state"], pool.headers["etag"]) == ("paused", '"g3"')
    assert post(house, RESUME).status_code == 202


def test_the_generation_may_be_named_in_header_or_body() -> None:
    for body, headers in (({"expected_generation": 3}, {}), ({}, {"If-Match": '"g3"'}), ({}, {"If-Match": "*"})):
        assert post(House(), PAUSE, body, **headers).status_code == 202


def test_a_stale_generation_is_refused_and_changes_nothing() -> None:
    for body, headers in (({"expected_generation": 2}, {}), ({}, {"If-Match": '"g2"'})):
        house = House()
        check_problem(post(house, PAUSE, body, **headers), 412, "stale-generation")
        assert get("/api/v1/resource-pools/pool", house).json()["state"] == "active"


def test_what_the_state_forbids_is_a_conflict() -> None:
    check_problem(post(House(), RESUME), 409, "state-forbids")


def test_an_unknown_pool_or_operation_is_not_found() -> None:
    house = House()
    check_problem(post(house, "/api/v1/resource-pools/none/pause"), 404, "unknown-name")
    check_problem(post(house, "/api/v1/operations/none/cancel"), 404, "unknown-name")
    check_problem(get("/api/v1/operations/none", house), 404, "not-found")
    check_problem(get("/api/v1/resource-pools/none", house), 404, "unknown-name")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"expected_generation": -1}, {}),
        ({"expected_generation": "3"}, {}),
        ({"expected_generation": True}, {}),
        ({"generation": 3}, {}),
        ({"deadline_s": 0}, {}),
        ([], {}),
        ("pause", {}),
        ({}, {"If-Match": "g3"}),
        ({}, {"If-Match": 'W/"g3"'}),
        ({"expected_generation": 3}, {"If-Match": '"g4"'}),
        ({}, {"Idempotency-Key": "x" * 129}),
        ({}, {"Idempotency-Key": "a b"}),
    ],
)
def test_a_command_that_does_not_fit_is_refused(body: object, headers: dict[str, str]) -> None:
    house = House()
    check_problem(post(house, PAUSE, body, **headers), 422, "invalid-request")
    assert get("/api/v1/resource-pools/pool", house).json()["state"] == "active"


def test_json_that_is_none_is_refused() -> None:
    response = answer(House(), "POST", PAUSE, content=b"{", headers={"Content-Type": "application/json"})
    check_problem(response, 422, "invalid-request")


def test_an_empty_body_says_nothing_and_is_fine() -> None:
    assert answer(House(), "POST", PAUSE, headers={"Content-Type": "application/json"}).status_code == 202


def test_the_same_key_and_request_is_the_same_operation() -> None:
    house = House()
    first = post(house, PAUSE, **{"Idempotency-Key": "k1"})
    again = post(house, PAUSE, **{"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    other = post(house, RESUME, **{"Idempotency-Key": "k1"})
    check_problem(other, 422, "key-reused")


def test_an_operation_that_is_done_cannot_be_cancelled_and_one_that_waits_can() -> None:
    house = House()
    assert house.plane is not None
    operation_id = post(house, PAUSE).json()["id"]
    check_problem(post(house, f"/api/v1/operations/{operation_id}/cancel"), 409, "state-forbids")
    waiting = replace(house.plane.by_id[operation_id], state=OperationState.WAITING_FOR_SAFE_POINT)
    house.plane.by_id[operation_id] = waiting
    cancelled = post(house, f"/api/v1/operations/{operation_id}/cancel").json()
    assert (cancelled["state"], cancelled["done"]) == ("cancelled", True)


def test_a_read_only_run_refuses_and_names_the_flag() -> None:
    for house in (House(control=False), House(plane=None)):
        response = answer(house, "POST", PAUSE, token=house.tokens.read, json={})
        assert "--control" in check_problem(response, 403, "read-only")["detail"]


def test_a_read_token_does_not_control() -> None:
    house = House()
    check_problem(answer(house, "POST", PAUSE, token=house.tokens.read, json={}), 403, "scope")


def test_a_run_that_is_over_cannot_be_steered() -> None:
    house = House()
    has = house.app.state.context
    house.app.state.context = replace(has, is_over=lambda: True)
    check_problem(post(house, PAUSE), 409, "run-over")
    assert get("/api/v1/session", house).json()["may_control"] is False


def test_operations_come_from_the_record_when_no_plane_knows_them() -> None:
    known = rows.Operation("op-9", "pause", "pool", "failed", "control", 1000.0, 2000.0, "active", "", "too late")
    for plane in (None, House().plane):
        house = House(MemorySource(ops=[known]), plane=plane)
        found = get("/api/v1/operations/op-9", house, token=house.tokens.read).json()
        assert (found["state"], found["done"], found["error"]["detail"], found["created_at"]) == (
            "failed",
            True,
            "too late",
            "2026-01-02T03:04:06.678+00:00",
        )
        listed = get("/api/v1/operations", house, token=house.tokens.read).json()
        assert listed["items"] == [found]


# Bounds


def test_a_body_over_the_limit_is_too_large_however_it_is_sent() -> None:
    async def chunks() -> Any:
        for _ in range(70):
            yield b" " * 1024

    def big() -> Coroutine[Any, Any, None]:
        async def send() -> None:
            house = House()
            async with house.controller(**{"Content-Type": "application/json"}) as client:
                for content in (b" " * 65_537, chunks()):
                    check_problem(await client.post(PAUSE, content=content), 413, "too-large")
                assert (await client.post(PAUSE, content=b"{}" + b" " * 65_534)).status_code == 202

        return send()

    asyncio.run(big())


def test_more_than_the_rate_is_refused_with_a_time_to_come_back() -> None:
    async def send() -> list[int]:
        house = House(limits=Limits(requests_per_s=0.001))
        async with house.visitor() as client, house.controller() as other:
            found = [await client.get("/api/v1/session") for _ in range(60)]
            assert found[-1].headers["retry-after"] == "1"
            check_problem(found[-1], 429, "too-many")
            assert (await other.get("/api/v1/session")).status_code == 200
            assert (await client.get("/static/js/shell.js")).status_code == 200
            return [one.status_code for one in found]

    statuses = asyncio.run(send())
    assert statuses == [200] * 40 + [429] * 20


def test_a_right_credential_is_counted_on_its_own_whatever_strangers_do() -> None:
    async def send() -> None:
        house = House(limits=Limits(requests_per_s=0.001, stranger_delay_s=0.0))
        async with house.visitor("") as stranger, house.visitor() as reader:
            while (await stranger.get("/api/v1/runs")).status_code != 429:
                pass
            assert (await stranger.get("/static/js/shell.js")).status_code == 429
            for token, location in ((house.tokens.read, "/"), (house.tokens.control, "/")):
                entered = await stranger.get(f"/?token={token}")
                assert (entered.status_code, entered.headers["location"]) == (303, location)
            assert (await stranger.get("/?token=wrong")).status_code == 429
            for path in ("/livez", "/healthz", "/readyz"):
                assert {(await stranger.get(path)).status_code for _ in range(60)} == {200}
            assert {(await reader.get("/static/js/shell.js")).status_code for _ in range(60)} == {200}
            assert (await reader.post(PAUSE, json={})).status_code == 403

    asyncio.run(send())


def test_a_refused_change_counts_for_the_token_it_came_with() -> None:
    async def send() -> None:
        house = House(limits=Limits(requests_per_s=0.001, stranger_delay_s=0.0))
        async with house.visitor() as reader, house.visitor("") as stranger, house.controller() as controller:
            while (await reader.post(PAUSE, json={})).status_code != 429:
                pass
            assert (await stranger.get("/api/v1/runs")).status_code == 401
            assert (await controller.get("/api/v1/runs")).status_code == 200

    asyncio.run(send())


def test_a_stranger_over_the_rate_is_answered_late_and_nobody_else() -> None:
    async def send() -> list[float]:
        house = House(limits=Limits(requests_per_s=0.001, n_burst=2, stranger_delay_s=0.2))
        async with house.visitor("") as stranger, house.visitor() as reader:
            for client in (stranger, reader):
                began_s = time.monotonic()
                while (await client.get("/api/v1/session")).status_code != 429:
                    pass
                took_s.append(time.monotonic() - began_s)
        return took_s

    took_s: list[float] = []
    stranger_s, _ = asyncio.run(send())
    assert stranger_s >= 0.2


def test_files_without_a_token_take_no_place_of_a_question() -> None:
    async def send() -> None:
        house = House()
        name = house.app.state.context.files.plotly_name
        async with house.visitor("") as stranger, house.visitor() as reader:
            asked = [asyncio.create_task(stranger.get(f"/static/{name}")) for _ in range(60)]
            await asyncio.sleep(0)
            assert (await reader.get("/api/v1/runs")).status_code == 200
            assert {(await one).status_code for one in asked} == {200}

    asyncio.run(send())


def test_strangers_ask_the_record_at_most_once_a_second() -> None:
    class Counting(MemorySource):
        asked = 0

        def recorder(self) -> rows.RecorderState:
            self.asked += 1
            return super().recorder()

    async def send() -> None:
        async with House(source).visitor("") as stranger:
            answers = await asyncio.gather(*(stranger.get("/readyz") for _ in range(100)))
            assert {one.status_code for one in answers} == {200}

    source = Counting()
    asyncio.run(send())
    assert source.asked == 1


def test_a_body_with_a_key_twice_does_not_fit() -> None:
    house = House()
    body = b'{"deadline_s": 5.0, "expected_generation": 3, "deadline_s": 6.0}'
    refused = answer(house, "POST", PAUSE, content=body, headers={"Content-Type": "application/json"})
    assert "'deadline_s' appears twice" in check_problem(refused, 422, "invalid-request")["detail"]
    deep = b"[" * 30_000 + b"]" * 30_000
    assert answer(house, "POST", PAUSE, content=deep, headers={"Content-Type": "application/json"}).status_code < 500


# Audit


def test_every_attempt_to_change_something_is_audited_before_and_after() -> None:
    house = House()
    post(house, PAUSE, {"expected_generation": 3})
    asked, done = house.audit.entries
    assert (asked.outcome, done.outcome, done.detail) == ("asked", "accepted", "202")
    assert asked.request_id == done.request_id
    assert (asked.operation_id, done.operation_id) == ("", "op-1")
    assert (asked.actor, asked.action, asked.target, asked.expected_generation) == ("control", "POST", PAUSE, 3)
    assert asked.remote == "127.0.0.1"
    assert asked.user_agent.startswith("python-httpx")


def test_refused_attempts_are_audited_too() -> None:
    audit = MemoryAudit()
    house = House(audit=audit)
    post(house, PAUSE, **{"If-Match": '"g1"'})
    answer(House(audit=audit), "POST", PAUSE, token="wrong", json={})
    answer(house, "DELETE", PAUSE, token=house.tokens.read, json={})
    answer(House(audit=audit), "POST", PAUSE, json={}, headers={"Origin": "http://evil.org"})
    answer(house, "POST", PAUSE, content=b"{}")
    found = [(one.actor, one.outcome, one.detail) for one in audit.entries]
    assert found == [
        ("control", "asked", ""),
        ("control", "refused", "412"),
        ("nobody", "unauthorised", "401 no-token"),
        ("read", "refused", "403 scope"),
        ("nobody", "refused", "403 wrong-origin"),
        ("control", "refused", "415 not-json"),
    ]
    assert house.audit.entries[0].expected_generation == 1


def test_a_flood_of_refused_attempts_is_one_audit_entry_a_second_with_their_number() -> None:
    def counts() -> list[int]:
        found = [re.search(r"; (\d+) requests refused", one.detail) for one in house.audit.entries]
        return [int(one[1]) if one else 1 for one in found]

    async def send() -> None:
        async with house.visitor("wrong") as client:
            for _ in range(200):
                await client.post(PAUSE, json={})
            while sum(counts()) < 200:
                await asyncio.sleep(0.02)

    house = House(limits=Limits(stranger_delay_s=0.0))
    began_s = time.monotonic()
    asyncio.run(send())
    assert sum(counts()) == 200
    assert len(counts()) <= 2 + (time.monotonic() - began_s)
    assert house.audit.entries[0].detail == "401 no-token"


def test_no_audit_entry_holds_a_token() -> None:
    house = House()
    post(house, PAUSE)
    answer(house, "POST", f"/?token={house.tokens.control}", token="", json={})
    assert house.tokens.control not in json.dumps([str(one) for one in house.audit.entries])


def test_an_audit_log_that_fails_does_not_fail_the_request(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def audit(self, entry: object) -> bool:
            raise OSError("disk full")

    house = House(audit=Broken())  # type: ignore[arg-type]
    assert post(house, PAUSE).status_code == 202
    assert "failed to record the audit entry" in caplog.text


def test_the_host_check_stands_before_everything() -> None:
    response = get("/openapi.json", token="", headers={"Host": "evil.org"})
    check_problem(response, 421, "wrong-host")
    assert get("/openapi.json", token="", headers={"Host": HOST}).status_code == 401
