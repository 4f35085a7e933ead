"""The public names: each resolves, and the type checker's imports are those that happen."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import core


@pytest.mark.parametrize("name", sorted(core.__all__))
def test_a_public_name_resolves(name: str) -> None:
    assert getattr(core, name) is not None


def test_what_type_checkers_import_is_what_happens() -> None:
    tree = ast.parse(Path(core.__file__).read_text(encoding="utf-8"))
    checked = {
        alias.asname or alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: home for home, names in core._HOMES.items() for name in names}
    assert checked == homes
    assert set(homes) | {"__version__"} == set(core.__all__)


def test_a_name_that_core_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nothing_like_it'"):
        import_module("core").nothing_like_it  # noqa: B018


def test_importing_core_and_its_controller_loads_neither_torch_nor_ray() -> None:
    code = "import sys, core, core.controller; print('torch' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
