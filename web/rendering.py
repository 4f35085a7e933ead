"""Pages as HTML text: a template of ``templates/`` filled with what its page loaded, around it the shared frame.

Every number is in the page itself, so that it can be read with JavaScript off. A page that follows the run fetches
itself again and takes in what changed (``static/js/live_page.js``); JavaScript draws only charts and dialogs. Names of
methods, ranks and errors are text: autoescape is on, and nothing is marked safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from web import units
from web.frame import Content, Frame
from web.pages import load_call
from web.pill import N_OPERATIONS, pill_of
from web.plans import plan_view
from web.registry import PAGES, page_named
from web.report import load_report
from web.source import RunSource

_TEMPLATES_DIR = Path(__file__).parent / "templates"


def render_page(name: str, source: RunSource, frame: Frame) -> str:
    """Return the registered page called ``name``."""
    page = page_named(name)
    return _render(page.template, frame, source, page.load(source, frame))


def render_call(source: RunSource, frame: Frame, call_id: int) -> str | None:
    """Return the page of one call, or None when the run has no such call."""
    content = load_call(source, call_id)
    return None if content is None else _render("call.html", frame, source, content)


def render_frame(source: RunSource, frame: Frame) -> str:
    """Return only what is around every page and changes: the state pill and the recorder strip."""
    return _render("parts_layout.html", frame, source, {})


def render_report(source: RunSource, frame: Frame, now: datetime | None = None) -> str:
    """Return the report as of ``now``: one HTML file that needs no server and no other file."""
    return _render("report.html", frame, source, load_report(source, now))


def render_plan(plan: Mapping[str, object]) -> str:
    """Return the preview of a plan for the dialog of a change.

    Raises:
        ValueError: It is not a plan.
    """
    view = plan_view(plan)
    if view is None:
        raise ValueError("not a plan: pools and groups are needed")
    return _ENVIRONMENT.get_template("plan_preview.html").render(plan=view)


def render_home(frame: Frame, content: Content, folder: str, url_of: Callable[..., str]) -> str:
    """Return the list of the runs in ``folder``; ``url_of`` returns the URL of a run file's page."""
    return _ENVIRONMENT.get_template("home.html").render(
        frame=frame, pages=(), run=None, recorder=None, folder=folder, url_of=url_of, **content
    )


def render_problem(frame: Frame, status: int, title: str, detail: str = "", trace_id: str = "") -> str:
    """Return the page that says what went wrong; it asks nothing of the run, so that it can always be shown."""
    return _ENVIRONMENT.get_template("problem.html").render(
        frame=frame, pages=PAGES, run=None, recorder=None, status=status, title=title, detail=detail, trace_id=trace_id
    )


def _render(template: str, frame: Frame, source: RunSource, content: Content) -> str:
    run = source.run()
    pill = pill_of(run, source.pools(), source.operations(N_OPERATIONS, None))
    return _ENVIRONMENT.get_template(template).render(
        frame=frame, pages=PAGES, run=run, pill=pill, recorder=source.recorder(), **content
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES_DIR),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (
        units.duration,
        units.since_start,
        units.count,
        units.bytes_size,
        units.percent,
        units.rate,
        units.metric,
    )
    environment.filters.update({one.__name__: _or_as_it_is(one) for one in formats})
    return environment


def _or_as_it_is(to_text: Callable[[Any], str]) -> Callable[[object], str]:
    """Return ``to_text`` that leaves alone what is not such a number: SQLite keeps a text in a column of numbers."""

    def text_of(value: object) -> str:
        try:
            return to_text(value)
        except (TypeError, ValueError, OverflowError):
            return str(value)

    return text_of


_ENVIRONMENT = _environment()
