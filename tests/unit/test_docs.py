"""Every route, command and event is described, and the README's first program is a program."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from pathlib import Path
from typing import get_args

import pytest
from fastapi.routing import APIRoute
from typer.main import get_command

import core
from app.api.write_openapi import document, with_commands
from app.cli.program import program
from core.events import Event
from tests.app_doubles import House
from web.registry import PAGES

_ROOT = Path(__file__).parents[2]
_REST = (_ROOT / "docs/rest.md").read_text(encoding="utf-8")
_EVENTS = (_ROOT / "docs/events.md").read_text(encoding="utf-8")
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_DASHBOARD = (_ROOT / "docs/dashboard.md").read_text(encoding="utf-8")


def test_every_route_is_described() -> None:
    pages = {page.path for page in PAGES}  # described in docs/dashboard.md, which the next test checks
    routes = [route for route in House().app.routes if isinstance(route, APIRoute) and route.path not in pages]
    assert len(routes) > 20
    missing = [
        f"{method} {route.path}"
        for route in routes
        for method in sorted((route.methods or set()) - {"HEAD"})
        if f"`{method} {re.sub(r':path}', '}', route.path)}`" not in _REST
    ]
    assert not missing


def test_every_test_that_proves_a_security_rule_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (_ROOT / "docs/security.md").read_text(encoding="utf-8"))
    assert len(named) > 25
    assert not [
        f"{path}::{name}" for path, name in named if f"\ndef {name}(" not in (_ROOT / path).read_text(encoding="utf-8")
    ]


def test_every_page_of_the_dashboard_is_described_and_has_a_route() -> None:
    paths = {getattr(route, "path", "") for route in House().app.routes}
    assert not [page.name for page in PAGES if page.path not in paths]
    assert not [page.name for page in PAGES if not re.search(rf"\| {page.title} `{page.path}[`?]?", _DASHBOARD)]


def test_the_written_openapi_document_is_what_the_server_gives() -> None:
    pins = dict(line.split("==") for line in (_ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    if any(importlib.metadata.version(name) != pins[name] for name in ("fastapi", "pydantic")):
        pytest.skip("other versions word the document in another way")
    assert (_ROOT / "docs/openapi.json").read_text(encoding="utf-8") == document(), "run make openapi"


def test_the_table_of_commands_is_made_from_their_definitions() -> None:
    assert with_commands(_REST) == _REST, "run make openapi"
    assert _REST.count("`POST /api/v1/resource-pools/{name}/resize`") == 1


@pytest.mark.parametrize("event", [kind.__name__ for kind in get_args(Event)])
def test_every_event_is_described(event: str) -> None:
    assert f"`{event}`" in _EVENTS


def test_every_command_is_in_the_readme() -> None:
    command = get_command(program())
    names = list(getattr(command, "commands", {}))
    assert names
    missing = [name for name in names if f"podium {name}" not in _README and f"`{name}`" not in _README]
    assert not missing


def test_every_document_that_the_readme_links_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", _README) if "://" not in link]
    assert links
    assert not [link for link in links if not (_ROOT / link).exists()]


def test_the_first_program_has_at_most_twenty_lines_and_compiles() -> None:
    first = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)[0]
    ast.parse(first)
    assert len([line for line in first.splitlines() if line.strip()]) <= 20


def test_what_the_architecture_page_names_is_there() -> None:
    named = re.findall(r"`((?:core|app|web)/[\w/]+\.py)(?::(\w+))?`", _page("architecture"))
    assert len(named) > 25
    sources = {path: (_ROOT / path).read_text(encoding="utf-8") for path, _ in named}
    assert not [
        f"{path}:{name}"
        for path, name in named
        if name and not re.search(rf"^(class|def) {name}\b", sources[path], re.M)
    ]


def test_the_reference_has_every_public_name_of_core() -> None:
    reference = _page("reference")
    public = {name: getattr(core, name) for name in core.__all__ if not name.startswith("_")}
    missing = [
        name
        for name, value in public.items()
        if callable(value)
        and f"::: {getattr(value, '__module__', '')}.{getattr(value, '__name__', name)}\n" not in reference
    ]
    assert not missing


def _page(name: str) -> str:
    return (_ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
