"""The main job, as a person meets it: the demo's driver runs, the browser shows it, a person steers it, it ends.

One run serves the whole module; its tests are in the order of its life, and each also works alone. With
``PODIUM_SCREENSHOTS=1`` the run is longer, and the pictures in docs/images are made from it::

    PODIUM_SCREENSHOTS=1 pytest tests/e2e/test_demo_in_browser.py
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.e2e.commands import Command
from tests.e2e.pages import HEIGHT_PX, WIDTH_PX, Watched, watch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WITH_SCREENSHOTS = os.environ.get("PODIUM_SCREENSHOTS") == "1"
LENGTH = ["--steps", "24"] if WITH_SCREENSHOTS else ["--short"]
N_STEPS = 24 if WITH_SCREENSHOTS else 15
LEAST_RISE = 0.1
RANKS = {f"{group}/{rank}" for group in ("actor", "reference", "rollout") for rank in (0, 1)}
LEAST_PAUSE_MS = 1500.0
LOW_PX = 650


@pytest.fixture(scope="module")
def demo(short_dir: Path) -> Iterator[Command]:
    """The demo's driver with the dashboard on."""
    with Command(short_dir, "demo", "--exit", "--control", "--runs-dir", "runs", *LENGTH) as command:
        yield command


@pytest.fixture(scope="module")
def visit(browser: Browser, demo: Command) -> Iterator[Watched]:
    """A browser that came with the control token while the run goes on."""
    watched = watch(browser)
    watched.page.goto(demo.control_url)
    yield watched
    watched.page.context.close()


@pytest.fixture(scope="module")
def ended(demo: Command) -> Command:
    """The demo when its driver is done."""
    assert demo.wait(400) == 0, demo.err.text
    return demo


@pytest.fixture(scope="module")
def viewer(ended: Command, browser: Browser) -> Iterator[tuple[Command, Watched]]:
    """The command that the run named at its end, and a browser that followed its URL."""
    printed = shlex.split(ended.said(r"to view it again: podium (view \S+)$")[1])
    with Command(ended.folder, *printed) as command:
        watched = watch(browser)
        watched.page.goto(command.url)
        yield command, watched
        watched.page.context.close()


def progress(demo: Command) -> int:
    return demo.out.count(r"(?m)^(lesson|step) \d")


def test_the_url_is_printed_once_and_its_token_leaves_the_address_bar(demo: Command, visit: Watched) -> None:
    assert demo.err.count(r"token=") == 1
    assert demo.out.count(r"token=") == 0
    assert visit.page.url == f"{demo.origin}/"


def test_the_overview_shows_a_running_run_and_fills_by_itself(demo: Command, visit: Watched) -> None:
    page = visit.page
    page.goto(f"{demo.origin}/")
    assert page.locator(".bar [data-state-pill]").inner_text() == "running"
    page.locator("[data-pool=generators] [data-pool-action=pause]").wait_for()
    page.locator("[data-pool=trainers] .names code", has_text="reference").wait_for()
    visit.until("Number(document.querySelector('[data-kpi=n_alive]').textContent) === 6", "six workers alive")


def test_the_timeline_grows_while_the_driver_trains(demo: Command, visit: Watched) -> None:
    page = visit.page
    demo.said(r"^lesson 1:", demo.out)
    page.goto(f"{demo.origin}/timeline?last=all")
    visit.until("podium.timeline.draws > 0 && podium.timeline.data.bars.lane.length > 0", "the first bars")
    assert visit.lanes()[0] == "driver"
    assert set(visit.lanes()[1:]) == RANKS
    before = page.evaluate("podium.timeline.data.bars.lane.length")
    visit.until(f"podium.timeline.data.bars.lane.length > {before}", "more bars without a reload")
    assert any(url.endswith("/api/v1/stream") for url in visit.requested)


def test_a_click_on_a_bar_opens_its_call_with_its_ranks(demo: Command, visit: Watched) -> None:
    page = visit.page
    demo.said(r"^lesson 2:", demo.out)
    page.goto(f"{demo.origin}/timeline?last=all")
    visit.until("podium.timeline.data?.bars.lane.length > 0", "bars")
    page.locator("#live").click()  # hold the picture still, as a person would
    call = visit.click_longest_bar()
    article = page.locator("#drawer #call")
    article.wait_for()
    assert article.get_attribute("data-call") == str(call)
    assert len(article.locator("table.ranks tbody tr").all()) == 2
    assert f"sel=call%3A{call}" in page.url or f"sel=call:{call}" in page.url
    page.locator("#drawer-page").click()
    page.locator("main #call").wait_for()
    assert page.url == f"{demo.origin}/calls/{call}"
    assert f"#{call}" in page.title()


def test_pausing_on_the_page_holds_the_driver_and_resuming_over_http_lets_it_go_on(
    demo: Command, visit: Watched
) -> None:
    page = visit.page
    demo.said(r"^lesson 2:", demo.out)
    page.goto(f"{demo.origin}/")
    line = page.locator("[data-pool=generators]")
    line.locator("[data-pool-action=pause]").click()
    line.locator("[data-pool-action=resume]:enabled").wait_for()
    paused_s = time.monotonic()
    pool = demo.get("/resource-pools/generators")
    assert (pool["state"], pool["n_calls_in_flight"]) == ("paused", 0)
    assert demo.get("/resource-pools/trainers")["state"] == "active"

    last = demo.until(lambda: _quiet_for(demo, LEAST_PAUSE_MS / 1000), "the driver came to the gate")
    gone_on = progress(demo)
    assert gone_on == last["progress"]
    token = next(demo.folder.glob("runs/*.control-token")).read_text(encoding="utf-8").strip()
    held_ms = (time.monotonic() - paused_s) * 1000
    operation = demo.post("/resource-pools/generators/resume", token)
    assert (operation["kind"], operation["who"]) == ("resume", "control")

    demo.until(lambda: progress(demo) > gone_on, "progress after the pause")
    assert demo.get("/resource-pools/generators")["state"] == "active"
    line.locator("[data-pool-action=pause]:enabled").wait_for()
    held = demo.until(lambda: _held_call(demo, last["n_calls"]), "the call that waited in the record")
    assert LEAST_PAUSE_MS <= held["gate_ms"] <= held_ms + 2000
    page.goto(f"{demo.origin}/calls/{held['call']['id']}")
    assert "rollout." in page.locator("h1").inner_text()
    assert page.locator("#call .ph-gate").count() > 0


def _quiet_for(demo: Command, seconds: float) -> dict[str, int] | None:
    """Return the run's progress when none was made for so long, also not in calls."""
    before = {"progress": progress(demo), "n_calls": int(demo.get("/runs/current")["n_calls"])}
    time.sleep(seconds)
    after = {"progress": progress(demo), "n_calls": int(demo.get("/runs/current")["n_calls"])}
    return after if after == before else None


def _held_call(demo: Command, n_before: int) -> dict[str, Any] | None:
    """Return the first call made after ``n_before`` others, when the record has it whole."""
    if demo.get("/runs/current")["n_calls"] <= n_before:
        return None
    found: dict[str, Any] = demo.get(f"/calls/{n_before + 1}")
    return found


@pytest.mark.skipif(not WITH_SCREENSHOTS, reason="pictures are made with PODIUM_SCREENSHOTS=1 only")
def test_pictures_of_the_pages_while_the_run_goes_on(demo: Command, browser: Browser) -> None:
    demo.said(rf"^step {N_STEPS - 8}/", demo.out)
    IMAGES.mkdir(exist_ok=True)
    for dark in (False, True):
        watched = watch(browser, dark=dark)
        page = watched.page
        page.goto(demo.control_url)
        page.set_viewport_size({"width": WIDTH_PX, "height": LOW_PX})
        page.goto(f"{demo.origin}/timeline?last=12")
        watched.until("podium.timeline.draws > 2 && podium.timeline.data.bars.lane.length > 0", "bars")
        page.screenshot(path=IMAGES / ("timeline-dark.png" if dark else "timeline.png"))
        if not dark:
            update = demo.get("/calls?group=actor&method=update&status=ok")["items"][0]["id"]
            page.goto(f"{demo.origin}/calls/{update}")
            page.screenshot(path=IMAGES / "call.png")
            page.set_viewport_size({"width": WIDTH_PX, "height": HEIGHT_PX})
            page.goto(f"{demo.origin}/")
            watched.until("document.querySelector('#metrics .main-svg') !== null", "the metrics' figure")
            page.screenshot(path=IMAGES / "overview.png")
        page.context.close()


def test_the_browser_had_nothing_to_complain_of_and_asked_nobody_else(demo: Command, visit: Watched) -> None:
    visit.page.goto(f"{demo.origin}/calls")
    # Away from the run's server before that ends: a lost connection is a line on the console.
    visit.page.goto("about:blank")
    assert visit.complaints == []
    assert visit.strangers(demo.origin) == ["about:blank"] * visit.requested.count("about:blank")
    assert len(visit.requested) > 5


def test_the_driver_ends_well_and_says_what_it_reached(ended: Command) -> None:
    found = re.fullmatch(
        r"held-out exact match: ([\d.]+) before RL, ([\d.]+) after \(([+-][\d.]+)\)", ended.out.lines[-1]
    )
    assert found is not None, ended.out.text
    before, after, rise = map(float, found.groups())
    assert after - before == pytest.approx(rise, abs=0.011)
    assert rise >= LEAST_RISE
    assert ended.out.count(r"(?m)^step \d+/") == N_STEPS
    file = re.fullmatch(r"podium: run file: (runs/\S+\.db); to view it again: podium view \1", ended.err.lines[-1])
    assert file is not None, ended.err.text
    assert (ended.folder / file[1]).is_file()


def test_nothing_of_the_run_is_left_running_and_no_token_on_disk(ended: Command) -> None:
    assert ended.gone()
    assert not list(ended.folder.glob("runs/*token"))


def test_the_ended_run_is_shown_from_its_file_without_ray(ended: Command, viewer: tuple[Command, Watched]) -> None:
    command, watched = viewer
    page = watched.page
    assert page.locator(".bar [data-state-pill]").inner_text() == "ended"
    assert page.locator("[data-pool-action]").count() == 0
    n_lessons = ended.out.count(r"(?m)^lesson \d")
    # Four calls a lesson, seven a step; the actor's weights go to the reference, exact match is taken before and after.
    n_calls = 4 * n_lessons + 7 * N_STEPS + 4
    assert command.get("/runs/current")["n_calls"] == n_calls
    assert page.locator("[data-kpi=n_calls]").inner_text().replace(",", "").replace(" ", "") == str(n_calls)
    assert _listed(command) == list(range(n_calls, 0, -1))
    maps = Path(f"/proc/{command.pid}/maps").read_text(encoding="utf-8")
    assert "_raylet" not in maps
    assert "libtorch" not in maps


def _listed(command: Command) -> list[int]:
    """Return the ids of all calls that the API lists, page by page."""
    ids: list[int] = []
    cursor = ""
    while True:
        found = command.get(f"/calls?limit=100{cursor}")
        ids += [call["id"] for call in found["items"]]
        if found["next_cursor"] is None:
            return ids
        cursor = f"&cursor={found['next_cursor']}"


def test_the_ended_runs_timeline_and_calls_are_all_there(viewer: tuple[Command, Watched]) -> None:
    command, watched = viewer
    page = watched.page
    page.goto(f"{command.origin}/timeline")
    watched.until("podium.timeline.draws > 0 && podium.timeline.data.bars.lane.length > 0", "bars")
    assert watched.lanes()[0] == "driver"
    assert set(watched.lanes()[1:]) == RANKS
    call = watched.click_longest_bar()
    page.locator(f"#drawer #call[data-call='{call}']").wait_for()
    page.goto(f"{command.origin}/calls/{call}")
    assert page.locator("#call").get_attribute("data-status") == "ok"
    assert page.locator("table.ranks tbody tr").count() == 2
    workers = command.get("/workers")["items"]
    assert {f"{one['group']}/{one['rank']}" for one in workers} == RANKS
    assert {one["state"] for one in workers} == {"ended"}
    assert watched.complaints == []
    assert watched.strangers(command.origin) == []


def test_the_viewer_ends_with_ctrl_c(viewer: tuple[Command, Watched]) -> None:
    command, watched = viewer
    watched.page.goto("about:blank")
    assert command.interrupt() == 0
    assert "Traceback" not in command.err.text
