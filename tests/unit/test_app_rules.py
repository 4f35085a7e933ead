from __future__ import annotations

from dataclasses import replace

import pytest

from app.api.rules import Entry, Head, Refusal, Rules, Visitor, allowed_hosts, judge
from app.api.tokens import Scope, Tokens

TOKENS = Tokens.make(control=True)
HOST = "127.0.0.1:4321"
JSON = {"content-type": "application/json"}


def rules(control: bool = True) -> Rules:
    hosts = allowed_hosts("127.0.0.1", 4321)
    origins = frozenset(f"http://{host}" for host in hosts)
    return Rules(hosts=hosts, origins=origins, cookie="podium_4321", control=control, tokens=TOKENS)


def head(method: str = "GET", path: str = "/api/v1/runs", query: str = "", **headers: str) -> Head:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Head(method, path, query, {"host": HOST, **named}, "127.0.0.1")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def status(head_: Head, control: bool = True) -> int:
    verdict = judge(head_, rules(control))
    return verdict.problem.status if isinstance(verdict, Refusal) else 200


def slug(head_: Head, control: bool = True) -> str:
    verdict = judge(head_, rules(control))
    assert isinstance(verdict, Refusal)
    return verdict.problem.slug


@pytest.mark.parametrize("host", [HOST, "localhost:4321", "[::1]:4321", "LOCALHOST:4321"])
def test_our_own_names_are_served(host: str) -> None:
    assert status(head(host=host, **bearer(TOKENS.read))) == 200


@pytest.mark.parametrize(
    "host",
    ["", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:43210", "evil.org:4321", "www.127.0.0.1:4321", f"{HOST}, evil.org"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_any_other_host_is_misdirected_whatever_the_method_and_the_token(host: str, method: str) -> None:
    for path in ("/api/v1/runs", "/api/v1/stream", "/static/x.js", "/metrics", "/"):
        assert status(head(method, path, host=host, **bearer(TOKENS.control))) == 421


# Case 20 of the field (behind_proxy).
@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz"])
@pytest.mark.parametrize("host", ["10.244.0.5:8080", "[fd00::5]:8080", "podium.default.svc", ""])
def test_behind_proxy_a_probe_is_answered_whatever_it_calls_the_server(path: str, host: str) -> None:
    assert status(head(path=path, host=host, origin="http://evil.org")) == 200
    assert status(head("HEAD", path, host=host)) == 200
    assert status(head("POST", path, host=host, **bearer(TOKENS.control))) == 421
    assert status(head(path=f"{path}/../api/v1/runs", host=host)) == 421


def test_a_request_without_a_host_is_misdirected() -> None:
    assert status(Head("GET", "/", "", bearer(TOKENS.read), "")) == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.org", "null", "", "http://127.0.0.1", f"https://{HOST}", "http://localhost:4321"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_any_other_origin_is_refused(origin: str, method: str) -> None:
    assert slug(head(method, origin=origin, **bearer(TOKENS.control), **JSON)) == "wrong-origin"


def test_our_own_origin_is_served() -> None:
    assert status(head("POST", origin=f"http://{HOST}", **bearer(TOKENS.control), **JSON)) == 200


def test_static_files_are_served_to_any_origin_but_only_for_reading() -> None:
    assert status(head("GET", "/static/x.js", origin="http://evil.org")) == 200
    assert status(head("POST", "/static/x.js", origin="http://evil.org")) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_a_fetch_from_another_site_is_refused(site: str) -> None:
    for method in ("GET", "POST"):
        assert (
            slug(head(method, sec_fetch_site=site, sec_fetch_mode="cors", **bearer(TOKENS.control), **JSON))
            == "cross-site"
        )


def test_a_link_from_another_site_may_navigate_here_but_a_form_may_not() -> None:
    navigation = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert status(head("GET", "/", **navigation, **bearer(TOKENS.read))) == 200
    assert status(head("POST", "/", **navigation, **bearer(TOKENS.control), **JSON)) == 403
    assert status(head("GET", "/", **{**navigation, "sec-fetch-dest": "iframe"}, **bearer(TOKENS.read))) == 403


@pytest.mark.parametrize(
    "given",
    ["", "x", TOKENS.read[:-1], TOKENS.read + "x", TOKENS.csrf, TOKENS.read_session, "ä"],
    ids=["none", "short", "one less", "one more", "csrf", "session", "no ascii"],
)
def test_a_wrong_token_is_nobody(given: str) -> None:
    assert status(head(**bearer(given))) == 401


def test_basic_authorisation_is_nobody_even_beside_a_good_cookie() -> None:
    cookie = f"podium_4321={TOKENS.read_session}"
    assert status(head(authorization=f"Basic {TOKENS.read}", cookie=cookie)) == 401


def test_a_cookie_reads_and_is_not_the_token() -> None:
    assert status(head(cookie=f"other=1; podium_4321={TOKENS.read_session}")) == 200
    assert status(head(cookie=f"podium_4321={TOKENS.read}")) == 401
    assert status(head(cookie=f"podium_9999={TOKENS.read_session}")) == 401


def test_odd_cookies_of_other_programs_do_not_lock_us_out() -> None:
    odd = '{"a": [1, 2]}; =x; y; "; podium_432=no'
    assert status(head(cookie=f"{odd}; podium_4321={TOKENS.read_session}; z=1")) == 200


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/static/js/shell.js"])
def test_only_health_and_static_files_are_open(path: str) -> None:
    assert judge(head(path=path), rules()) == Visitor(Scope.NOBODY)
    assert status(head("POST", path)) == 401


@pytest.mark.parametrize(
    "path", ["/", "/timeline", "/openapi.json", "/api/v1/stream", "/nothing", "/static", "/healthz/"]
)
def test_everything_else_needs_a_token(path: str) -> None:
    assert status(head(path=path)) == 401


def test_a_token_in_the_url_is_traded_for_a_cookie_and_leaves_the_url() -> None:
    verdict = judge(head(path="/", query=f"step=3&token={TOKENS.read}&x=a%20b"), rules())
    assert verdict == Entry(TOKENS.read_session, "/?step=3&x=a+b", "read")
    assert judge(head(path="/", query=f"token={TOKENS.control}"), rules()) == Entry(
        TOKENS.control_session, "/", "control"
    )


@pytest.mark.parametrize(
    "query", ["token=", "token=wrong", f"token={TOKENS.read}&token={TOKENS.read}"], ids=["none", "wrong", "twice"]
)
def test_a_wrong_token_in_the_url_opens_nothing(query: str) -> None:
    assert status(head(path="/", query=query, cookie=f"podium_4321={TOKENS.read_session}")) == 401


def test_a_token_in_the_url_of_another_path_counts_for_nothing() -> None:
    assert status(head(path="/api/v1/runs", query=f"token={TOKENS.control}")) == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_every_method_but_get_and_head_needs_control(method: str) -> None:
    assert slug(head(method, **bearer(TOKENS.read), **JSON)) == "scope"
    assert slug(head(method, **bearer(TOKENS.control), **JSON), control=False) == "read-only"
    verdict = judge(head(method, **bearer(TOKENS.control), **JSON), rules())
    assert verdict == Visitor(Scope.CONTROL, may_control=True)


def test_reading_with_the_control_token_gives_no_leave_to_control() -> None:
    assert judge(head(**bearer(TOKENS.control)), rules()) == Visitor(Scope.CONTROL)


def test_a_read_only_refusal_names_the_flag() -> None:
    verdict = judge(head("POST", **bearer(TOKENS.read), **JSON), rules(control=False))
    assert isinstance(verdict, Refusal)
    assert "--control" in verdict.problem.detail


@pytest.mark.parametrize("csrf", [{}, {"x-csrf": ""}, {"x-csrf": "wrong"}, {"x-csrf": TOKENS.control_session}])
def test_a_cookie_alone_changes_nothing(csrf: dict[str, str]) -> None:
    cookie = f"podium_4321={TOKENS.control_session}"
    assert slug(head("POST", cookie=cookie, **csrf, **JSON)) == "csrf"


def test_a_cookie_with_the_pages_value_controls() -> None:
    cookie = f"podium_4321={TOKENS.control_session}"
    verdict = judge(head("POST", cookie=cookie, x_csrf=TOKENS.csrf, **JSON), rules())
    assert verdict == Visitor(Scope.CONTROL, may_control=True)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "text/json"]
)
def test_anything_but_json_is_refused(kind: str) -> None:
    assert status(head("POST", content_type=kind, **bearer(TOKENS.control))) == 415


def test_json_with_a_charset_is_json() -> None:
    assert status(head("POST", content_type="Application/JSON; charset=utf-8", **bearer(TOKENS.control))) == 200


def test_tokens_are_long_different_and_never_shown() -> None:
    tokens = Tokens.make(control=True)
    values = [tokens.read, tokens.control, tokens.read_session, tokens.control_session, tokens.csrf]
    assert len(set(values)) == 5
    assert min(map(len, values)) >= 43
    assert not any(value in repr(tokens) for value in values)


def test_without_control_an_empty_token_controls_nothing() -> None:
    tokens = Tokens.make(control=False)
    assert tokens.scope_of_token("") is Scope.NOBODY
    assert tokens.scope_of_session("") is Scope.NOBODY


def test_a_further_host_may_be_reached_over_tls() -> None:
    hosts = frozenset({"lab.example:443"})
    further = Rules(hosts, frozenset({"https://lab.example:443"}), "c", True, TOKENS)
    asked = head(host="lab.example:443", origin="https://lab.example:443", **bearer(TOKENS.read))
    assert judge(asked, further) == Visitor(Scope.READ)


def doubled(name: str, *, method: str = "GET", **headers: str) -> int:
    asked = head(method, **{**bearer(TOKENS.control), **JSON_AS_NAMES, **headers})
    return status(replace(asked, doubled=frozenset({name})))


JSON_AS_NAMES = {"content_type": "application/json"}
SINGLE = ["authorization", "host", "origin", "content-type", "content-length", "x-csrf", "sec-fetch-site"]


@pytest.mark.parametrize("name", SINGLE)
def test_a_header_that_two_programs_could_read_in_two_ways_is_refused(name: str) -> None:
    assert doubled("accept", method="POST") == 200
    assert doubled(name, method="POST") == 400
    assert doubled(name) == 400


@pytest.mark.parametrize("name", ["if-match", "idempotency-key", "last-event-id"])
def test_a_doubled_header_of_a_command_does_not_fit(name: str) -> None:
    assert doubled(name, method="POST") == 422


def test_a_length_and_chunks_together_are_refused_and_the_connection_is_closed() -> None:
    asked = head("POST", **bearer(TOKENS.control), content_length="2", transfer_encoding="chunked")
    verdict = judge(asked, rules())
    assert isinstance(verdict, Refusal)
    assert (verdict.problem.status, verdict.problem.headers) == (400, (("Connection", "close"),))


@pytest.mark.parametrize("target", ["http://evil.org/", "*", "127.0.0.1:80", ""])
def test_a_target_that_is_not_a_path_is_refused(target: str) -> None:
    assert status(head(path=target, **bearer(TOKENS.control))) == 400


def test_a_query_parameter_that_is_there_twice_does_not_fit() -> None:
    assert status(head(query="limit=1&limit=2", **bearer(TOKENS.read))) == 422
    assert status(head(query="limit=1&cursor=2", **bearer(TOKENS.read))) == 200
    assert status(head("POST", query="dry_run=true&dry_run=0", **JSON_AS_NAMES, **bearer(TOKENS.control))) == 422


def test_a_cookie_of_our_name_that_another_program_set_does_not_hide_ours() -> None:
    cookie = f"podium_4321=theirs; other=1; podium_4321={TOKENS.read_session}; podium_4321=theirs"
    assert judge(head(cookie=cookie), rules()) == Visitor(Scope.READ)
