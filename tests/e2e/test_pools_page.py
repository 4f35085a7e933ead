"""A person splits and merges the pools of a running driver on the Pools page, and somebody else is faster once.

One driver on the in-process cluster serves the whole module; it makes calls on a thread of its own all the while, as a
change is made at the border of its next call. The tests are in the order of its life.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator

import app
from app.client import Client
from app.server import RunServer
from app.store.reader import Reader
from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from tests.e2e.accessibility import violations
from tests.e2e.commands import until
from tests.e2e.pages import Watched, watch
from tests.live_workers import Faults, Stateless
from web import units

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@dataclass
class Driver:
    """A driver that calls both groups again and again, and how many ranks answered last."""

    server: RunServer
    groups: dict[str, RayWorkerGroup]
    sizes: dict[str, int] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Make calls until told to stop."""
        while not self.stop.is_set():
            for name, group in self.groups.items():
                self.sizes[name] = len(group.sleep(0.02))

    def operations(self) -> list[tuple[str, str]]:
        """Return kind and state of all operations in the record, oldest first."""
        reader = Reader(self.server.db_path)
        try:
            return [(one.kind, one.state) for one in reader.operations(100, None)][::-1]
        finally:
            reader.close()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The driver, with control on."""
    folder: Path = tmp_path_factory.mktemp("pools")
    with Controller.local(), app.serve(folder, control=True) as server:
        # Two cores that others work on too: a question may wait longer than its 250 ms for one, and is told as a 503.
        assert server._reader is not None
        server._reader._pool._deadline_s = 10.0
        pool = RayResourcePool([4], name_prefix="all")
        groups = {
            name: RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix=name)
            for name in ("actor", "rollout")
        }
        driver = Driver(server, groups)
        thread = threading.Thread(target=driver.run, daemon=True)
        thread.start()
        yield driver
        driver.stop.set()
        thread.join(20)


@pytest.fixture(scope="module")
def visit(driver: Driver, browser: Browser) -> Iterator[Watched]:
    """A browser that followed the URL with the control token."""
    watched = watch(browser)
    watched.page.set_default_timeout(30_000)
    watched.page.goto(driver.server.control_url)
    yield watched
    watched.page.context.close()


def go(visit: Watched, driver: Driver, path: str) -> None:
    visit.page.goto(driver.server.address.rstrip("/") + path)


def opened(visit: Watched, pool: str, change: str) -> Locator:
    """Open a pool's drawer and in it the dialog of a change; return the dialog when it has its plan."""
    page = visit.page
    page.locator(f"[data-open-pool='{pool}']").click()
    page.locator(f"#drawer [data-change={change}]").click()
    page.locator("#change .plan-note").wait_for()
    return page.locator("#change")


def test_the_map_shows_both_groups_stacked_on_every_slot(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/pools")
    slots = visit.page.locator("tr[data-pool=all] .slot").all_inner_texts()
    assert len(slots) == 4
    assert all("actor" in text and "rollout" in text for text in slots)


def test_a_call_that_hangs_is_shown_with_its_ranks_and_their_stacks(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/")
    page = visit.page
    Faults.gate.clear()
    try:
        driver.groups["actor"].wait_later()
        item = page.locator("#now .now-item", has_text="wait_later")
        item.get_by_text("4 of 4 pending").wait_for()
        before = item.locator(".now-for").inner_text()
        until(lambda: item.locator(".now-for").inner_text() != before, "the seconds to go on", 10)
        item.get_by_role("button", name="Stacks of pending ranks").click()
        page.locator("#stacks pre").first.wait_for()
        assert "rank 3" in page.locator("#stacks").inner_text()
        page.keyboard.press("Escape")
    finally:
        Faults.gate.set()
    item.wait_for(state="detached")
    assert visit.complaints == []


def test_a_split_shows_its_plan_asks_for_the_name_and_a_double_click_makes_one(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/pools")
    page = visit.page
    dialog = opened(visit, "all", "split")
    dialog.locator("[name=part-name]").nth(0).fill("train")
    dialog.locator("[name=part-size]").nth(0).fill("3")
    assert "add up to 3 + 2 = 5, but all has 4 slots" in dialog.locator(".cannot").inner_text()
    dialog.locator("[name=part-size]").nth(1).fill("1")
    dialog.locator(".plan-side", has_text="After").get_by_text("train", exact=True).wait_for()
    assert violations(page) == []
    said = dialog.locator(".preview").inner_text()
    assert "4 → 3 ranks" in said
    assert "rebuilt without state" in said
    submit = dialog.locator("[type=submit]")
    assert submit.is_disabled()
    dialog.locator("[name=confirm]").fill("al")
    assert submit.is_disabled()
    dialog.locator("[name=confirm]").fill("all")
    submit.dblclick()
    dialog.locator(".way .past[data-step=succeeded]").wait_for()
    assert "Downtime:" in dialog.locator(".way-note").inner_text()
    dialog.locator("[data-close]").click()

    page.locator("tr[data-pool=train] .slot").nth(2).wait_for()
    page.locator("[data-open-pool=train]").click()
    page.locator("#drawer-close").click()
    page.locator("#drawer").wait_for(state="hidden")
    assert page.locator("tr[data-pool=all]").count() == 0
    assert page.locator("tr[data-pool=rollout] .slot").count() == 1
    until(lambda: driver.sizes == {"actor": 3, "rollout": 1}, "calls on the new sizes", 20)
    assert driver.operations() == [("split", "succeeded")]


def test_who_was_slower_is_told_who_changed_what_and_looks_again(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/pools")
    dialog = opened(visit, "train", "merge")
    dialog.locator("[name=confirm]").fill("train")
    other = Client(driver.server.address, driver.server.control_token)
    other.wait(other.resize("rollout", [2]), timeout_s=60)
    dialog.locator("[type=submit]").click()
    dialog.get_by_text("The pool was changed in the meantime.").wait_for()
    assert "Last change by control: resize of rollout" in dialog.locator(".cannot").first.inner_text()
    dialog.locator(".plan-note").wait_for()
    assert dialog.locator("[type=submit]").is_disabled()
    dialog.locator("[name=confirm]").fill("train")
    dialog.locator("[name=name]").fill("whole")
    dialog.locator(".plan-side", has_text="After").get_by_text("whole", exact=True).wait_for()
    dialog.locator("[type=submit]").click()
    dialog.locator(".way .past[data-step=succeeded]").wait_for()
    dialog.locator("[data-close]").click()
    visit.page.locator("tr[data-pool=whole] .slot").nth(4).wait_for()
    until(lambda: driver.sizes == {"actor": 5, "rollout": 5}, "calls on the merged pool", 20)
    # The browser itself writes a line when a request is refused; nothing else may have been complained of.
    assert [one for one in visit.complaints if "412" not in one] == []


def test_every_change_and_every_attempt_is_on_the_operations_page(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/operations")
    lines = visit.page.locator("#content [data-operation] summary").all_inner_texts()
    assert [line.split("\n")[1].split()[0] for line in lines] == ["merge", "resize", "split"]
    outcomes = visit.page.locator("[data-outcome]").all_inner_texts()
    assert sum("merge" in line for line in outcomes) >= 2
    visit.page.locator("#content [data-operation] summary").first.click()
    visit.page.locator("#content .plan-maps").first.wait_for(state="visible")


def test_the_slider_goes_back_through_the_changes_and_forth_to_now(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/pools")
    page = visit.page
    slider = page.locator("#moment")
    slider.press("Home")
    page.locator("tr[data-pool=all] .slot").nth(3).wait_for()
    assert "at=start" in page.url
    assert page.locator("tr[data-pool]").count() == 1
    slots = page.locator("tr[data-pool=all] .slot").all_inner_texts()
    assert all("actor" in text and "rollout" in text for text in slots)
    assert page.locator("[data-open-pool]").count() == 0
    for shape in ({"train": 3, "rollout": 1}, {"train": 3, "rollout": 2}, {"whole": 5}):
        slider.press("ArrowRight")
        until(lambda shape=shape: _shape(visit) == shape, f"the map of {shape}", 20)  # type: ignore[misc]
        assert "free" not in page.locator(".pool-map").inner_text()
    assert "at=" not in page.url
    assert page.locator("[data-open-pool=whole]").count() == 1
    assert [one for one in visit.complaints if "412" not in one] == []


def _shape(visit: Watched) -> dict[str, int]:
    """Return how many slots each pool of the map has."""
    found: dict[str, int] = visit.page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('tr[data-pool]')]"
        ".map((row) => [row.dataset.pool, row.querySelectorAll('.slot').length]))"
    )
    return found


def test_the_bar_of_every_page_says_when_the_run_is_held(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/calls")
    pill = visit.page.locator(".bar [data-state-pill]")
    other = Client(driver.server.address, driver.server.control_token)
    other.wait(other.pause("whole"), timeout_s=60)
    until(lambda: pill.inner_text() == "paused", "the bar to say paused", 20)
    go(visit, driver, "/data")
    assert pill.inner_text() == "paused"
    other.wait(other.resume("whole"), timeout_s=60)
    until(lambda: pill.inner_text() == "running", "the bar to say running", 20)


def test_the_bar_follows_the_run_also_while_there_is_no_stream(driver: Driver, visit: Watched) -> None:
    page, heard = visit.page, len(visit.complaints)
    other = Client(driver.server.address, driver.server.control_token)
    page.route("**/api/v1/stream", lambda route: route.fulfill(status=503))
    try:
        go(visit, driver, "/timeline")
        pill = page.locator(".bar [data-state-pill]")
        other.wait(other.pause("whole"), timeout_s=60)
        until(lambda: pill.inner_text() == "paused", "the bar to say paused", 20)
    finally:
        page.unroute_all()
    other.wait(other.resume("whole"), timeout_s=60)
    until(lambda: pill.inner_text() == "running", "the bar to say running", 20)
    # The browser complains of the stream that was refused.
    del visit.complaints[heard:]


_FORMATS = """async (values) => {
  const { count, duration, percent, sinceStart } = await import("/static/js/format.js");
  return values.map((x) => [duration(x), sinceStart(x), percent(x / 1e4), count(Math.round(x))]);
}"""


def test_a_number_reads_the_same_from_the_server_and_in_a_chart(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/timeline")
    values = [0, 0.004, 0.4249, 3.2, 9.994, 12.34, 99.96, 512.3, 999.6, 9_994.2, 12_345.6, 59_960.1, 3_725_000.4, 9e7]
    assert visit.page.evaluate(_FORMATS, values) == [
        [units.duration(x), units.since_start(x), units.percent(x / 1e4), units.count(round(x))] for x in values
    ]


_READER = """() => {
  const row = document.querySelectorAll("[data-live-part=calls] tr")[5], link = row.querySelector("a");
  link.focus();
  getSelection().selectAllChildren(row.querySelector("code"));
  scrollTo(0, 300);
  document.querySelector("#filters [name=step]").value = "77";
  const top = document.querySelector("[data-live-part=calls] tr").dataset.key;
  window.before = { link, text: String(getSelection()), top };
}"""
_STILL = """() => ({
  moved: document.querySelector("[data-live-part=calls] tr").dataset.key !== before.top,
  focus: document.activeElement === before.link && before.link.isConnected,
  selected: before.text !== "" && String(getSelection()) === before.text,
  scrolled: scrollY > 200,
  typed: document.querySelector("#filters [name=step]").value === "77",
})"""


def test_what_a_reader_does_survives_that_the_page_follows_the_run(driver: Driver, visit: Watched) -> None:
    go(visit, driver, "/calls")
    visit.page.evaluate(_READER)
    until(lambda: visit.page.evaluate(_STILL)["moved"], "newer calls in the list", 20)
    assert visit.page.evaluate(_STILL) == dict.fromkeys(("moved", "focus", "selected", "scrolled", "typed"), True)
    go(visit, driver, "/operations")
    visit.page.locator("details.fold > summary").first.click()
    visit.page.evaluate("window.opened = document.querySelector('details[open]')")
    other = Client(driver.server.address, driver.server.control_token)
    other.wait(other.pause("whole"), timeout_s=60)
    other.wait(other.resume("whole"), timeout_s=60)
    until(lambda: "resume" in visit.page.locator(".op-what").first.inner_text(), "the new operations", 20)
    assert (
        visit.page.evaluate("opened.isConnected && opened.open && document.querySelectorAll('details[open]').length")
        == 1
    )


@pytest.mark.parametrize(
    ("path", "link", "name"),
    [
        ("/", "Report", "podium-report.html"),
        ("/calls?min_ms=1", "CSV", "podium-calls.csv"),
        ("/timeline?last=5", "Perfetto", "podium-trace.json"),
    ],
)
def test_what_a_page_shows_can_be_taken_along(
    driver: Driver, visit: Watched, path: str, link: str, name: str, tmp_path: Path
) -> None:
    go(visit, driver, path)
    if link == "Perfetto":
        visit.until("document.querySelector('#trace').search.includes('from=')", "the window in the link")
    with visit.page.expect_download() as coming:
        visit.page.get_by_role("link", name=link, exact=True).click()
    assert coming.value.suggested_filename == name
    coming.value.save_as(tmp_path / name)
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert "rollout" in text
    assert "actor" in text
    if link == "Perfetto":
        assert {"X", "M"} <= {event["ph"] for event in json.loads(text)["traceEvents"]}


def test_a_reader_sees_the_map_and_how_to_turn_control_on_but_no_button(driver: Driver, browser: Browser) -> None:
    watched = watch(browser)
    watched.page.goto(f"{driver.server.address}?token={driver.server.token}")
    go(watched, driver, "/pools?pool=whole")
    watched.page.locator("#drawer [data-sheet=whole]").wait_for()
    assert watched.page.locator("[data-change]").count() == 0
    assert "control token" in watched.page.locator("[data-control-hint]").inner_text()
    watched.page.context.close()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/timeline",
        "/calls?method=wait_later",
        "/heatmap",
        "/stragglers",
        "/data",
        "/compare?a=1-2&b=3-4",
        "/pools",
        "/pools?at=start",
        "/workers",
        "/operations",
        "/postmortem",
    ],
)
def test_no_page_complains_asks_elsewhere_scrolls_sideways_on_a_phone_or_shuts_anybody_out(
    driver: Driver, visit: Watched, path: str
) -> None:
    visit.complaints.clear()
    visit.page.set_viewport_size({"width": 360, "height": 800})
    go(visit, driver, path)
    visit.page.locator("h1").wait_for(state="attached")
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    for scheme in SCHEMES if path in {"/", "/pools", "/postmortem"} else SCHEMES[:1]:
        # A row that has just come fades in: its colours are judged when it is there.
        visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert violations(visit.page) == [], scheme
    assert visit.complaints == []
    assert visit.strangers(driver.server.address.rstrip("/")) == []
