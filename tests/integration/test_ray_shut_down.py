"""A driver that shuts Ray down too early: an error in words, and no second cluster started behind its back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import clean_environment

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]

_DRIVER = """
import ray
from core.cluster import ReserveRequest
from core.cluster.on_ray import RayCluster
from core.errors import ClusterUnreachableError

cluster = RayCluster(started_here=False)
asks = (
    lambda: cluster.ask(object(), "method", (), {}),
    lambda: cluster.submit(object(), "method", (), {}),
    lambda: cluster.reserve(ReserveRequest("pool", (1,), {"CPU": 1.0}), 1.0),
)
for ask in asks:
    try:
        ask()
    except ClusterUnreachableError as error:
        print(error)
assert not ray.is_initialized()
"""


def test_without_ray_nothing_is_asked_and_no_other_ray_is_started() -> None:
    done = subprocess.run([sys.executable, "-c", _DRIVER], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Ray was shut down while this driver still used it") == 3


def test_a_temporary_folder_that_is_too_deep_for_rays_sockets_is_named_with_the_way_out(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text("from core.cluster.on_ray import RayCluster\nRayCluster.connect(num_cpus=1)\n", encoding="utf-8")
    environment = {**clean_environment(), "TMPDIR": str(tmp_path / ("deep" * 25)), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert "ClusterUnreachableError: Ray cannot be started here" in done.stderr
    assert "set RAY_TMPDIR=/tmp" in done.stderr
