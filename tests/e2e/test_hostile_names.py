"""Names and errors that are markup: text in a real Chromium on every page, plot, tooltip, dialog and export."""

from __future__ import annotations

import contextlib
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import app
from app.server import RunServer
from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register, steps
from core.dispatch import Dispatch
from tests.e2e.pages import Watched, watch
from web.registry import PAGES

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make test-slow"),
]
# A pool's name has 100 characters at most.
EVIL = '<img src=x onerror="window.pwned=1">\'"><svg onload=pwned=2><script>pwned=3</script>{{7*7}}'
_HARMED = """() => [
  window.pwned,
  ...document.querySelectorAll("img[src=x], [onerror], [onload], svg script, body script:not([src]):not([type])"),
].filter((found) => found !== undefined).map(String)"""


def _tell(_self: Worker, wrong: bool) -> int:
    if wrong:
        raise ValueError(EVIL)
    return 1


class Teller(Worker):
    """A worker whose method has a hostile name."""


setattr(Teller, EVIL, register(dispatch_mode=Dispatch.ONE_TO_ALL)(_tell))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunServer]:
    """A driver in which everything that can be named is named by an enemy."""
    folder = tmp_path_factory.mktemp("runs")
    with (
        Controller.local(),
        app.serve(folder, control=True, name=EVIL, script=EVIL) as running,
        RayResourcePool([2], name_prefix=EVIL) as pool,
    ):
        assert running._reader is not None
        running._reader._pool._deadline_s = 10.0
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Teller), name_prefix=EVIL)
        for step in steps(3):
            step.log(**{EVIL: 1.0, f"{EVIL}2": 2.0})
            for wrong in (False, True):
                with contextlib.suppress(Exception):
                    getattr(group, EVIL)(wrong)
        yield running


@pytest.fixture(scope="module")
def visit(server: RunServer, browser: Browser) -> Iterator[Watched]:
    """A browser with the control token."""
    watched = watch(browser)
    watched.page.set_default_timeout(30_000)
    watched.page.goto(server.control_url)
    yield watched
    watched.page.context.close()


def check(visit: Watched, where: str) -> None:
    """Check that nothing ran, nothing became an element, nothing was asked of another origin, and no policy was hit."""
    assert visit.page.evaluate(_HARMED) == [], where
    # A plan that would lose a group's state is refused, and the dialog shows why.
    complaints = [one for one in visit.complaints if not one.endswith("status of 409 (Conflict)")]
    assert complaints == [], where


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), "/calls/1", "/calls/2", "/pools?at=start"])
def test_a_page_shows_them_as_text_also_under_the_pointer(visit: Watched, server: RunServer, path: str) -> None:
    page = visit.page
    visit.complaints.clear()
    page.goto(server.address.rstrip("/") + path)
    page.wait_for_timeout(1500)
    check(visit, path)
    for plot in page.locator(".js-plotly-plot").all():
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        for x in range(1, 12):
            for y in (0.3, 0.5, 0.7):
                page.mouse.move(box["x"] + box["width"] * x / 12, box["y"] + box["height"] * y)
        check(visit, f"{path}: a plot")
    for element in page.locator("[title], summary").all()[:40]:
        with contextlib.suppress(Exception):
            element.hover(timeout=300)
    check(visit, f"{path}: tooltips")
    assert visit.strangers(server.address.rstrip("/")) == []


def test_dialogs_show_them_as_text(visit: Watched, server: RunServer) -> None:
    page = visit.page
    visit.complaints.clear()
    page.goto(f"{server.address}pools")
    page.locator("[data-open-pool]").first.click()
    page.locator("#drawer").wait_for()
    check(visit, "the drawer")
    for change in page.locator("#drawer [data-change]").all():
        if change.is_enabled():
            change.click()
            page.wait_for_timeout(1000)
            check(visit, "a dialog")
            assert "<img src=x" in page.locator("#change").inner_text() + page.locator("#drawer").inner_text()
            page.keyboard.press("Escape")
    page.keyboard.press("?")
    check(visit, "help")


def test_an_address_that_is_not_there_shows_itself_as_text(visit: Watched, server: RunServer) -> None:
    for path in (
        f"nowhere/{EVIL}",
        f"calls?group={EVIL}&method={EVIL}&status={EVIL}",
        f"heatmap?method={EVIL}&last={EVIL}",
    ):
        visit.page.goto(server.address + path)
        assert visit.page.evaluate(_HARMED) == [], path


def test_exports_are_files_that_do_nothing(server: RunServer, browser: Browser, tmp_path: Path) -> None:
    for name in ("report.html", "calls.csv", "trace.json"):
        request = urllib.request.Request(f"{server.address}export/{name}")
        request.add_header("Authorization", f"Bearer {server.token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-disposition"].startswith("attachment")
            (tmp_path / name).write_bytes(answer.read())
    watched = watch(browser)
    watched.page.goto((tmp_path / "report.html").as_uri())
    check(watched, "the report")
    assert "<img src=x" in watched.page.locator("body").inner_text()
    assert watched.strangers("file://") == []
    watched.page.context.close()
