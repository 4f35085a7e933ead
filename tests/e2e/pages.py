"""Podium's pages in a browser, and everything that happened in it on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from tests.e2e.commands import PATIENCE_S, until

WIDTH_PX, HEIGHT_PX = 1360, 850

_LONGEST_BAR = """() => {
  const gd = document.querySelector("#timeline"), { xaxis, yaxis } = gd._fullLayout;
  const { figure } = podium.timeline, box = gd.getBoundingClientRect();
  let best = null;
  figure.points.forEach((points, k) => Array.isArray(points) && points.forEach((point, i) => {
    if (point?.kind !== "span" || (best && best.ms >= point.ms)) return;
    const trace = figure.traces[k];
    best = {
      call: point.call, ms: point.ms, group: point.lane.group,
      x: box.left + xaxis._offset + xaxis.l2p(trace.base[i] + trace.x[i] / 2),
      y: box.top + yaxis._offset + yaxis.l2p(trace.y[i]),
    };
  }));
  return best;
}"""


@dataclass
class Watched:
    """A page, what its console complained of, and every URL it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def until(self, script: str, what: str) -> Any:
        """Wait until ``script`` is true in the page; its policy forbids Playwright's own way."""
        return until(lambda: self.page.evaluate(script), what)

    def strangers(self, origin: str) -> list[str]:
        """Return the requests that went elsewhere than to ``origin``; data and blobs go nowhere."""
        return [url for url in self.requested if not url.startswith((f"{origin}/", "data:", "blob:"))]

    def lanes(self) -> list[str]:
        """Return the timeline's lanes from top to bottom."""
        return [str(lane.get_attribute("data-lane")) for lane in self.page.query_selector_all("#lanes [data-lane]")]

    def click_longest_bar(self) -> int:
        """Click the longest bar of a rank that is drawn and return its call."""
        bar = self.until(_LONGEST_BAR, "a bar")
        # plotly opens what the pointer is over, so it has to arrive first.
        self.page.mouse.move(bar["x"] - 3, bar["y"])
        self.page.mouse.move(bar["x"], bar["y"])
        self.until("document.querySelector('#timeline')._hoverdata?.length > 0", "plotly to see the pointer")
        self.page.mouse.click(bar["x"], bar["y"])
        return int(bar["call"])


def watch(browser: Browser, dark: bool = False, javascript: bool = True) -> Watched:
    """Return a new page in a context of its own, watched from the start."""
    context: BrowserContext = browser.new_context(
        viewport={"width": WIDTH_PX, "height": HEIGHT_PX},
        color_scheme="dark" if dark else "light",
        java_script_enabled=javascript,
    )
    context.set_default_timeout(PATIENCE_S * 1000)
    watched = Watched(context.new_page())

    def hear(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            watched.complaints.append(f"{message.type}: {message.text}")

    def note(request: Request) -> None:
        watched.requested.append(request.url)

    watched.page.on("console", hear)
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    context.on("request", note)
    return watched
