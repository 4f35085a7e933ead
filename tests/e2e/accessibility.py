"""What axe-core finds wrong with a page, by the rules of WCAG 2.2 A and AA; it comes with a package for tests."""

from __future__ import annotations

import importlib.resources

from playwright.sync_api import Page

_RUN = """async () => {
  const { violations } = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"] });
  const where = (one) => one.nodes.slice(0, 3).map((node) => node.html.slice(0, 120)).join(" | ");
  return violations.map((one) => `${one.impact} ${one.id}: ${where(one)}`);
}"""


def violations(page: Page) -> list[str]:
    """Return a line per rule that the page breaks: how bad, which, and where."""
    page.evaluate((importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
    found: list[str] = page.evaluate(_RUN)
    return found
