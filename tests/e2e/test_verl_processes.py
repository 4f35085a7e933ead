"""Every process that Ray starts for a program under ``podium run --verl`` imports Podium's objects as verl's.

A package with verl's folders stands for verl; its own controller and batch cannot be imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not os.environ.get("PODIUM_SLOW"), reason="a Ray of its own: set PODIUM_SLOW=1"),
]

_PROGRAM = """
import json, os, sys
import ray

def theirs():
    os.environ["THEIR_HOOK"] = "ran"

def seen():
    from verl.single_controller.ray import RayWorkerGroup
    import verl
    return [RayWorkerGroup.__module__, verl.DataProto.__module__, os.environ.get("THEIR_HOOK", "")]

@ray.remote
def task():
    return seen()

@ray.remote
class Actor:
    def seen(self):
        return seen()
    def nested(self):
        inner = Actor.options(runtime_env={"env_vars": {"NESTED": "1"}}).remote()
        return ray.get(inner.seen.remote())

ray.init(address="local", num_cpus=4, include_dashboard=False, _temp_dir=os.environ["VERL_START_RAY_FOLDER"],
         runtime_env={"worker_process_setup_hook": theirs, "env_vars": {"A": "1"}})
plain = Actor.remote()
own = Actor.options(runtime_env={"env_vars": {"B": "1"}}).remote()
detached = Actor.options(name="kept", lifetime="detached", runtime_env={"env_vars": {"C": "1"}}).remote()
found = [task.remote(), plain.seen.remote(), own.seen.remote(), own.nested.remote(), detached.seen.remote()]
print(json.dumps([seen()] + ray.get(found)))
"""


@pytest.mark.timeout(200)
def test_tasks_actors_nested_and_detached_ones_get_our_objects(tmp_path: Path) -> None:
    package = tmp_path / "path" / "verl"
    texts = {
        "__init__.py": "from .protocol import DataProto\n",
        "version/version": "0.9.1\n",
        "protocol.py": "raise RuntimeError('verl has its own batch')\n",
        "single_controller/__init__.py": "raise RuntimeError('verl has its own controller')\n",
        "utils/__init__.py": "",
        "utils/transferqueue_utils.py": "def tqbridge(dispatch_mode=None):\n    return lambda method: method\n",
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    (tmp_path / "program.py").write_text(_PROGRAM, encoding="utf-8")
    settings = {
        "PYTHONPATH": str(package.parent),
        "VERL_START_RAY_FOLDER": os.environ.get("RAY_TMPDIR", "/tmp/ray_verl"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "app", "run", "--verl", "--runs-dir", "runs", "program.py"],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    here, *others = json.loads(done.stdout.strip().splitlines()[-1])
    assert here == ["core.group.worker_group", "core.data.proto", ""]
    assert others == [["core.group.worker_group", "core.data.proto", "ran"]] * 5
