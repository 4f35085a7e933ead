"""The files that docs/extending.md lists for each kind of extension are the files that it takes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from core.events import event_classes
from web.registry import PAGES, Page

_ROOT = Path(__file__).parents[2]
_SECTIONS = re.split(r"^## ", (_ROOT / "docs/extending.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
_COMMANDS = {"Pause": "pool", "Resume": "pool", "Resize": "pool", "Split": "pool", "Merge": "pools", "Move": "group"}
# What treats single commands in a way of their own: gate moves, a merge's generations, the driver's own methods.
_OF_ONE_COMMAND = {
    "core/control/plane.py",
    "core/control/pausing.py",
    "core/control/executor.py",
    "core/controller.py",
    "app/api/routes/submit.py",
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


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_a_control_command_is_named_in_no_file_that_is_not_listed(name: str) -> None:
    verb = name.lower()
    names = {name, f"{name}Request", f"{verb}_{_COMMANDS[name]}", f"plan_{verb}"}
    found = naming(names, "core", "app", "web") - _OF_ONE_COMMAND
    assert found <= listed("A control command")
