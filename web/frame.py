"""What every page knows besides the run: the request's ``Frame``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlencode

from web.rows import CallInFlight

# What a page's template is filled with, by name.
Content: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Frame:
    """What a page must know besides the run.

    ``page`` is the name of the page, such as overview or pools; ``params`` are the URL's query. ``live`` says that the
    run is still going on and ``/api/v1/stream`` is open; ``controllable`` that this reader may change the pools, with
    ``csrf`` as proof; else ``control_hint`` says which flag turns control on. ``asset_version`` changes with the files.
    ``root`` is the path the app is mounted at, without a slash at its end; ``home`` is the URL of the list of runs, if
    this is one of several. ``parts_only`` leaves out what a page that
    follows the run has already: navigation, help and scripts. ``in_flight`` asks the driver itself for its calls in
    flight; it is None where only the file is there to ask.
    """

    page: str
    params: Mapping[str, str] = field(default_factory=dict)
    live: bool = False
    controllable: bool = False
    csrf: str = ""
    asset_version: str = "dev"
    plotly_url: str = ""
    control_hint: str = "Read-only."
    root: str = ""
    home: str = ""
    parts_only: bool = False
    in_flight: Callable[[], tuple[CallInFlight, ...]] | None = None

    @property
    def layout(self) -> str:
        """Return the template that a page's template extends."""
        return "parts_layout.html" if self.parts_only else "base.html"

    def asset(self, path: str) -> str:
        """Return the URL of a static file, which changes with its content."""
        return f"{self.root}/static/{path}?v={self.asset_version}"

    def url(self, path: str, **params: object) -> str:
        """Return the URL of a page of ours with a query of those parameters that are not empty."""
        given = {name: str(value) for name, value in params.items() if value not in ("", None)}
        query = urlencode(given, errors="replace")
        return f"{self.root}{path}?{query}" if query else f"{self.root}{path}"
