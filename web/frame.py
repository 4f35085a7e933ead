"""What every page has around its content: the request's ``Frame``, and the templates with their ways to say numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from web import units
from web.pill import N_OPERATIONS, pill_of
from web.source import RunSource

_TEMPLATES_DIR = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a page must know besides the run.

    ``page`` is the name of the page, such as overview or pools; ``params`` are the URL's query. ``live`` says that the
    run is still going on and ``/api/v1/stream`` speaks; ``controllable`` that this reader may change the pools, with
    ``csrf`` as proof; else ``control_hint`` says which flag turns control on. ``asset_version`` changes with the files.
    ``root`` is the path the app is mounted at, without a slash at its end.
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

    def asset(self, path: str) -> str:
        """Return the URL of a static file, which changes with its content."""
        return f"{self.root}/static/{path}?v={self.asset_version}"

    def url(self, path: str, **params: object) -> str:
        """Return the URL of a page of ours with a query of those parameters that are not empty."""
        given = {name: str(value) for name, value in params.items() if value not in ("", None)}
        query = urlencode(given, errors="replace")
        return f"{self.root}{path}?{query}" if query else f"{self.root}{path}"


def render(template: str, frame: Frame, source: RunSource, **content: object) -> str:
    """Return a page of the run: its template with ``content``, the state pill and the recorder strip."""
    run = source.run()
    pill = pill_of(run, source.pools(), source.operations(N_OPERATIONS, None))
    return _ENVIRONMENT.get_template(template).render(
        frame=frame, run=run, pill=pill, recorder=source.recorder(), **content
    )


def render_without_run(template: str, frame: Frame, **content: object) -> str:
    """Return a page that asks nothing of the run, so that it can always be shown."""
    return _ENVIRONMENT.get_template(template).render(frame=frame, run=None, recorder=None, **content)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES_DIR),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    says = (
        units.duration,
        units.since_start,
        units.count,
        units.bytes_size,
        units.percent,
        units.rate,
        units.metric,
    )
    environment.filters.update({say.__name__: _or_as_it_is(say) for say in says})
    return environment


def _or_as_it_is(say: Callable[[Any], str]) -> Callable[[object], str]:
    """Return ``say`` for what is no such number, as it is: SQLite keeps a text in a column of numbers."""

    def said(value: object) -> str:
        try:
            return say(value)
        except (TypeError, ValueError, OverflowError):
            return str(value)

    return said


_ENVIRONMENT = _environment()
