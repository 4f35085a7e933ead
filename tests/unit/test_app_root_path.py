"""Behind a proxy that shows the server under a path of its own, whether it takes that path off or not."""

from __future__ import annotations

import pytest

from app.settings import ServerSettings, SettingsError
from tests.app_doubles import PORT, House, answer, check_problem, get, post

ROOT = "/team/podium"


@pytest.mark.parametrize("prefix", ["", ROOT])
def test_every_address_that_leaves_the_server_is_below_the_root(prefix: str) -> None:
    house = House(root_path=ROOT)
    page = get(f"{prefix}/", house)
    assert page.status_code == 200
    assert f'data-root="{ROOT}"' in page.text
    links = [part.split('"')[0] for part in page.text.replace('src="', 'href="').split('href="')[1:]]
    own = [link for link in links if link.startswith("/")]
    assert own
    assert all(link.startswith(f"{ROOT}/") for link in own)
    taken = post(house, f"{prefix}/api/v1/resource-pools/pool/pause")
    assert (taken.status_code, taken.headers["location"]) == (202, f"{ROOT}/api/v1/operations/{taken.json()['id']}")
    assert get(taken.headers["location"], house).status_code == 200


@pytest.mark.parametrize("prefix", ["", ROOT])
def test_the_token_in_the_url_leads_to_the_root_and_its_cookie_is_for_it_alone(prefix: str) -> None:
    house = House(root_path=ROOT)
    entered = get(f"{prefix}/?token={house.tokens.read}", house, token="")
    assert (entered.status_code, entered.headers["location"]) == (303, f"{ROOT}/")
    cookie = entered.headers["set-cookie"]
    assert cookie == f"podium_{PORT}={house.tokens.read_session}; Path={ROOT}/; HttpOnly; SameSite=Strict"


def test_what_only_begins_like_the_root_is_not_below_it() -> None:
    house = House(root_path=ROOT)
    check_problem(get(f"{ROOT}s/api/v1/runs", house), 404, "not-found")
    assert get(ROOT, house).status_code == 200
    assert answer(house, "GET", f"{ROOT}/healthz", token="").text == "ok"
    assert get(f"{ROOT}/api/v1/runs", house, token="").status_code == 401
    assert get("/openapi.json", house).json()["servers"] == [{"url": ROOT}]


@pytest.mark.parametrize(
    "root_path", ["podium", "/podium/", "/", "//x", "/a b", "/a?b", "/<b>", "/a;b", "/x/..", "/%2e%2e/x", "/a%0d"]
)
def test_a_root_that_is_no_path_is_refused(root_path: str) -> None:
    with pytest.raises(SettingsError, match="--root-path"):
        ServerSettings(root_path=root_path)


def test_a_socket_takes_the_place_of_host_and_port() -> None:
    with pytest.raises(SettingsError, match="cannot be combined with"):
        ServerSettings(uds="podium.sock", port=80)
    with pytest.raises(SettingsError, match="bytes long"):
        ServerSettings(uds="x" * 110)


USER = "/user/jane@example.org/proxy/8787"
WRITTEN = {
    USER: USER,
    "/user/jane%40example.org/proxy/8787": USER,
    "/user/j\u00e4ne": "/user/j%C3%A4ne",
    "/50%25": "/50%25",
    "/a%20b": "/a%20b",
}


@pytest.mark.parametrize(("given", "written"), WRITTEN.items())
def test_behind_proxy_a_users_name_in_the_root_is_written_as_a_browser_writes_it(given: str, written: str) -> None:
    house = House(root_path=given)
    entered = get(f"{written}/?token={house.tokens.read}", house, token="")
    assert (entered.status_code, entered.headers["location"]) == (303, f"{written}/")
    assert f"; Path={written}/; " in entered.headers["set-cookie"]
    assert f'href="{written}/timeline"' in get(f"{written}/", house).text
    assert get(f"{written}/api/v1/runs", house).status_code == 200


@pytest.mark.parametrize("prefix", ["", USER])
@pytest.mark.parametrize("path", ["/timeline/", "/calls/3/", "/pools/?x=1&y=%20"])
def test_behind_proxy_a_page_with_a_slash_at_its_end_is_the_page_below_the_root(prefix: str, path: str) -> None:
    moved = get(f"{prefix}{path}", House(root_path=USER))
    assert moved.status_code == 308
    assert moved.headers["location"] == USER + path.replace("/?", "?").removesuffix("/")
    assert get(f"{prefix}/api/v1/runs/", House(root_path=USER)).status_code == 404


def test_behind_proxy_what_the_proxy_says_about_itself_is_not_believed() -> None:
    house = House(root_path=USER)
    forged = {"X-Forwarded-Host": "evil.org", "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/evil"}
    forged |= {"X-Forwarded-For": "10.9.8.7", "Forwarded": "for=10.9.8.7;host=evil.org"}
    page = get("/", house, headers=forged)
    moved = get("/timeline/", house, headers=forged)
    taken = post(house, "/api/v1/resource-pools/pool/pause", **forged)
    assert taken.status_code == 202
    assert "evil" not in page.text + moved.headers["location"] + taken.headers["location"]
    assert {one.remote for one in house.audit.entries} == {"127.0.0.1"}
