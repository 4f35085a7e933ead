"""The files that docs/extending.md lists for each kind of extension are the files that it takes."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from functools import cache
from pathlib import Path

import pytest

from app.api.bodies import request_model
from core.control.commands import COMMAND_CLASSES
from core.events import event_classes
from web.commands import BY_KIND, Kind
from web.registry import PAGES, Page

_ROOT = Path(__file__).parents[2]
_SECTIONS = re.split(r"^## ", (_ROOT / "docs/extending.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
# What treats single commands in a way of their own: gate moves, a merge's generations, methods of the driver and the
# client for the commands that everybody uses.
_OF_ONE_COMMAND = {
    "core/control/plane.py",
    "core/control/pausing.py",
    "core/control/executor.py",
    "core/controller.py",
    "app/api/routes/submit.py",
    "app/client/client.py",
}


def listed(title: str) -> set[str]:
    """Return the files in the first column of a section's table."""
    section = next(text for text in _SECTIONS if text.startswith(title))
    return set(re.findall(r"^\| `(\w+/[\w/.]+)`", section, flags=re.MULTILINE))


@cache
def identifiers(path: Path) -> set[str]:
    """Return the names that a module defines, imports and uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias)):
            found.add(node.name)
    return found


def naming(names: set[str], *rooms: str) -> set[str]:
    """Return the modules of ``rooms`` that name one of ``names``."""
    return {
        path.relative_to(_ROOT).as_posix()
        for room in rooms
        for path in (_ROOT / room).rglob("*.py")
        if identifiers(path) & names
    }


@pytest.mark.parametrize("title", ["A dispatch mode", "A page", "An event", "A control command"])
def test_every_file_that_is_listed_exists(title: str) -> None:
    assert not [name for name in listed(title) if not (_ROOT / name).exists()]


def test_an_event_is_named_in_the_files_that_are_listed_and_in_no_list_of_events_elsewhere() -> None:
    names = {kind.__name__ for kind in event_classes()}
    for name in sorted(names):
        missing = [path for path in listed("An event") if name not in (_ROOT / path).read_text(encoding="utf-8")]
        assert not missing, name
    for path in ("core/events/bus.py", "app/recorder.py", "app/store/writer.py"):
        assert not identifiers(_ROOT / path) & names, path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_its_module_its_template_and_one_entry(page: Page) -> None:
    names = {page.load.__name__}
    assert naming(names, "web", "app") == {page.load.__module__.replace(".", "/") + ".py", "web/registry.py"}


@pytest.mark.parametrize("kind", sorted(COMMAND_CLASSES))
def test_a_control_command_is_named_in_no_file_that_is_not_listed(kind: str) -> None:
    name = COMMAND_CLASSES[kind].__name__
    defined = re.compile(
        rf"from core\.control[.\w]* import [^)\n]*(\([^)]*)?\b{name}\b|class {name}\(_CommandOptions\)"
    )
    paths = [path for room in ("core", "app", "web") for path in (_ROOT / room).rglob("*.py")]
    found = {
        path.relative_to(_ROOT).as_posix() for path in paths if defined.search(path.read_text(encoding="utf-8"))
    } - _OF_ONE_COMMAND
    assert found <= listed("A control command")
    assert "core/control/plans.py" in found
    assert f'kind="{kind}"' in (_ROOT / "web/commands.py").read_text(encoding="utf-8")


def test_every_command_has_a_definition_with_the_fields_of_its_class() -> None:
    assert sorted(BY_KIND) == sorted(COMMAND_CLASSES)
    for kind, definition in BY_KIND.items():
        options = {"who", "expected_generation", "deadline_s"}
        fields = {one.name for one in dataclasses.fields(COMMAND_CLASSES[kind])} - options
        assert {one.name for one in definition.parameters} == fields, kind
        assert set(definition.in_path) <= fields, kind


def test_the_dialog_and_the_requests_know_every_kind_of_parameter() -> None:
    forms = (_ROOT / "web/static/js/change_forms.js").read_text(encoding="utf-8")
    drawn = set(re.findall(r'^  "?([\w-]+)"?: {', forms.partition("const KINDS = {")[2], flags=re.MULTILINE))
    assert drawn == {kind.value for kind in Kind}
    for definition in BY_KIND.values():
        assert request_model(definition).model_validate_json(json.dumps(definition.example))
