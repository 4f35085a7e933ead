"""The driver written for verl, as ``port_from_verl.md`` shows it, runs with its imports changed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from core.testing import local_controller

_TEXT = (Path(__file__).parents[2] / "examples/port_from_verl.md").read_text(encoding="utf-8")
BEFORE, AFTER, BODY = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)


def imported(code: str) -> list[tuple[str, str]]:
    """Return module and name of everything that a block imports, line by line."""
    names = []
    for node in ast.parse(code).body:
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        names += [(module, alias.name) for alias in node.names]
    return names


def test_only_the_modules_that_names_come_from_differ() -> None:
    before, after = imported(BEFORE), imported(AFTER)
    assert [name for _, name in before] == [name for _, name in after]
    changed = {(old, new) for (old, _), (new, _) in zip(before, after, strict=True) if old != new}
    assert {new for _, new in changed} == {"core"}
    assert {old.split(".")[0] for old, _ in changed} == {"verl"}
    assert "core" not in BODY


def test_the_driver_runs_and_gives_what_it_should() -> None:
    driver: dict[str, Any] = {"__name__": "driver"}
    exec(compile(AFTER + BODY, "driver.py", "exec"), driver)  # noqa: S102 - the example's own code is what is tested
    with local_controller({"CPU": 16, "GPU": 4}):
        history, saved, batch = driver["main"]({"weight": 2.0, "n": 2, "total_steps": 3})
    assert history == [{"actor/loss": 1.0, "actor/rows": 6.0}] * 3
    assert saved == "rank 0 would write checkpoints/last"
    assert batch.batch["responses"].tolist() == [(row + 2.0) * 0.5 for row in range(6) for _ in range(2)]
    assert batch.non_tensor_batch["uid"].tolist() == [f"prompt {row}" for row in range(6) for _ in range(2)]
