"""The patches of examples/extensions apply to the code as it is, and what they add works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PATCHES = _ROOT / "examples/extensions"
# Run beside the patched packages. A process of its own: this one has the packages as they are.
_USE = """
import json
import core
from pathlib import Path
from core.control import Level
from core.events import CheckpointReached
from core.testing import local_controller

assert Path(core.__file__).is_relative_to(Path.cwd())
with local_controller() as (controller, seen):
    pool = core.RayResourcePool([3, 1], name_prefix="all")
    group = core.RayWorkerGroup(pool, core.RayClassWithInitArgs(type("W", (core.Worker,), {"stateless": True})))
    assert controller.plane.plan(Level(pool.name, "me")).pools[0].after == (2, 2)
    controller.plane.execute(Level(pool.name, "me"))
    assert tuple(pool.store) == (2, 2)
    controller.checkpoint()
    (event,) = seen.of(CheckpointReached)

from app.store.event_reducer import EventReducer
batch = EventReducer(event.at_ns).take([event])
assert (batch.n_events, batch.n_refused) == (1, 0)
assert "checkpoint outside of steps" in str(batch.statements)

from app.api.write_openapi import document
level = json.loads(document())["paths"]["/api/v1/resource-pools/{name}/level"]["post"]
assert level["operationId"] == "level_pool"

from typer.main import get_command
from app.cli.program import program
assert "level" in get_command(program()).commands["pools"].commands

from tests.unit.web_sample import SampleRun
from web.frame import Frame
from web.rendering import render_page
assert "<h1>Nodes</h1>" in render_page("nodes", SampleRun(150_000.0), Frame("nodes"))
pools = render_page("pools", SampleRun(150_000.0), Frame("pools", controllable=True))
assert 'data-change="level"' in pools
assert "Spreads its processes evenly" in pools
print("extended")
"""


def patched(name: str) -> set[str]:
    """Return the files that a patch of the examples changes or adds."""
    return set(re.findall(r"^\+\+\+ b/(.*)$", (_PATCHES / name).read_text(encoding="utf-8"), flags=re.MULTILINE))


@pytest.mark.parametrize(("name", "n_files"), [("control_command", 5), ("event", 5), ("page", 4)])
def test_an_extension_changes_no_more_files_than_it_needs(name: str, n_files: int) -> None:
    assert len(patched(f"{name}.patch")) == n_files


def test_the_patches_apply_and_what_they_add_works(tmp_path: Path) -> None:
    for room in ("core", "app", "web", "docs", "migrations"):
        shutil.copytree(_ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__", "images"))
    for patch in sorted(_PATCHES.glob("*.patch")):
        done = subprocess.run(
            ["git", "apply", "-C1", str(patch)], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
        )
        assert done.returncode == 0, f"{patch.name} does not apply; make it anew\n{done.stderr}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(_ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", _USE], cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout) == (0, "extended\n"), done.stderr
