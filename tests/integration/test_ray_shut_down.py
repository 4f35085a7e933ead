"""A driver that shuts Ray down too early: an error in words, and no second cluster started behind its back."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

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
