"""The rooms of the house, and what may not be anywhere in it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "app", "web")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 400
STILL_LONGER = {
    "core/cluster/on_ray.py": 460,
}
"""Modules that have not been split yet, and what they must not grow beyond; one that fits again goes from here."""
LAZY_PACKAGES = ["app/__init__.py", "core/__init__.py", "core/control/__init__.py"]
"""Packages that import what they offer when it is first asked for."""


def name_of(path: Path) -> str:
    """Return a module's path within the repository."""
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[str]:
    """Yield the top-level names a module imports, at whatever depth."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_there_are_modules_to_look_at() -> None:
    assert len(MODULES) > 50


def test_a_room_imports_only_lower_rooms() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_ray_is_imported_in_one_file() -> None:
    assert [name_of(path) for path in MODULES if "ray" in imported(path)] == ["core/cluster/on_ray.py"]


def narrows_a_type(check: ast.expr) -> bool:
    """Tell whether a condition only tells the type checker what the code around it knows already."""
    if isinstance(check, ast.Call):
        return isinstance(check.func, ast.Name) and check.func.id == "isinstance"
    return isinstance(check, ast.Compare) and isinstance(check.ops[0], ast.IsNot)


def asserts_on_input(path: Path) -> Iterator[int]:
    """Yield the lines of asserts that are more than a type narrowed, or that look at a function's argument."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            continue
        arguments = set()
        if not isinstance(function, ast.Module):
            given = function.args
            arguments = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self", "cls"}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
                if not narrows_a_type(node.test) or names & arguments:
                    yield node.lineno


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_fault_69_no_module_asserts_what_comes_from_outside(path: Path) -> None:
    lines = sorted(set(asserts_on_input(path)))
    assert not lines, f"assert is gone under python -O, raise a typed error instead: lines {lines}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_fits_in_the_head(path: Path) -> None:
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert n_lines <= STILL_LONGER.get(name_of(path), MAX_LINES)


@pytest.mark.parametrize("name", STILL_LONGER)
def test_the_list_of_modules_that_are_too_long_names_no_other(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) > MAX_LINES


def test_own_packages_are_imported_by_name_alone_in_the_lazy_packages() -> None:
    by_name = [name_of(path) for path in MODULES if "import_module" in path.read_text(encoding="utf-8")]
    assert by_name == LAZY_PACKAGES


@pytest.mark.parametrize("package", ["core", "web"])
def test_importing_a_package_starts_no_ray_and_loads_no_other_package(package: str) -> None:
    foreign = {"ray", *PACKAGES} - {package}
    code = f"import {package}, sys; print(sorted({foreign!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_of_core_is_there() -> None:
    import core

    assert [name for name in core.__all__ if not hasattr(core, name)] == []
    assert len(set(core.__all__)) == len(core.__all__)


NAMES_NOT_USED = {
    "crew": "worker_set, live",
    "deal": "split, dispatch",
    "told": "(what it is: recorded, reported, error)",
    "said": "(what it is: text, reason)",
    "lookout": "node_watcher",
    "posts": "node_watchers",
    "desk": "investigator",
    "keeper": "raylet, owner",
    "seats": "occupied",
    "newcomers": "staged",
    "undertaking": "executor",
    "dealt": "split",
    "landing": "join_buffer",
    "landed": "copied",
    "loans": "borrowed",
    "lent": "borrowed",
    "tell": "emit, report",
    "places": "indices, sources",
    "ledger": "(the thing's own name)",
    "settle": "(what it does)",
    "anew": "(what it is)",
}


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names that a module gives to things: itself, classes, functions, arguments, variables, attributes."""
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


@pytest.mark.parametrize("path", [path for path in MODULES if path.is_relative_to(ROOT / "core")], ids=name_of)
def test_names_are_the_fields_words(path: Path) -> None:
    found = [
        f"line {line}: {name} (say {NAMES_NOT_USED[word]})"
        for line, name in names_in(path)
        for word in name.strip("_").lower().split("_")
        if word in NAMES_NOT_USED
    ]
    assert not found
