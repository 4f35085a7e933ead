"""The dashboard's pages, one entry each: routes, navigation and the test of docs/dashboard.md are made from it.

To add a page: write a ``load_*`` function and a template, and add an entry here and a row to docs/dashboard.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from web.compare import load_compare
from web.frame import Content, Frame
from web.heatmap import load_heatmap
from web.operations import load_operations
from web.overview import load_overview
from web.padding import load_data
from web.pages import load_calls, load_timeline
from web.pool_map import load_pools
from web.postmortem import load_postmortem
from web.source import RunSource
from web.stragglers import load_stragglers
from web.workers import load_workers


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard.

    ``group`` is its group in the navigation; pages of one group stand together. ``load`` returns what ``template`` is
    filled with. ``details`` are pages of single items that count as this one in the navigation.
    """

    name: str
    path: str
    title: str
    group: str
    template: str
    load: Callable[[RunSource, Frame], Content]
    details: tuple[str, ...] = ()

    def is_current(self, frame: Frame) -> bool:
        """Return whether the navigation marks this page."""
        return frame.page == self.name or frame.page in self.details


PAGES: tuple[Page, ...] = (
    Page("overview", "/", "Overview", "run", "overview.html", load_overview),
    Page("timeline", "/timeline", "Timeline", "run", "timeline.html", load_timeline),
    Page("calls", "/calls", "Calls", "run", "calls.html", load_calls, details=("call",)),
    Page("heatmap", "/heatmap", "Latency", "performance", "heatmap.html", load_heatmap),
    Page("stragglers", "/stragglers", "Stragglers", "performance", "stragglers.html", load_stragglers),
    Page("data", "/data", "Data", "performance", "data.html", load_data),
    Page("compare", "/compare", "Compare", "performance", "compare.html", load_compare),
    Page("pools", "/pools", "Pools", "cluster", "pools.html", load_pools),
    Page("workers", "/workers", "Workers", "cluster", "workers.html", load_workers),
    Page("operations", "/operations", "Operations", "cluster", "operations.html", load_operations),
    Page("postmortem", "/postmortem", "Post-mortem", "end", "postmortem.html", load_postmortem),
)


_BY_NAME = {page.name: page for page in PAGES}


def page_named(name: str) -> Page:
    """Return the page called ``name``.

    Raises:
        KeyError: There is no such page.
    """
    return _BY_NAME[name]
