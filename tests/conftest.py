"""Fixtures that several tiers share: a local controller, a short folder, a Ray of one's own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from core import runtime as runtimes
from core.controller import Controller
from core.runtime import Runtime, connect_to_ray
from core.testing import RecordingObserver, local_controller
from tests.processes import reset_signals

reset_signals()

# How long an example takes says more about the machine than about the code.
settings.register_profile("podium", deadline=None)
settings.load_profile("podium")


@pytest.fixture
def local() -> Iterator[tuple[Controller, RecordingObserver]]:
    """A controller on the cluster inside this process, and what it told its observer."""
    with local_controller() as both:
        yield both


@pytest.fixture(scope="module")
def short_dir() -> Iterator[Path]:
    """A folder with a short path: Ray puts Unix sockets below it, whose paths may have some 100 characters."""
    folder = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def ray_runtime(short_dir: Path) -> Iterator[tuple[Runtime, RecordingObserver]]:
    """A Ray of 16 CPUs and 8 logical GPUs for one module, the runtime on it, and what it told its observer."""
    import ray  # here, so that the quick tiers do not pay for it

    ray.init(
        address="local",
        num_cpus=16,
        num_gpus=8,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(short_dir),
    )
    runtime = Runtime(connect_to_ray)
    seen = RecordingObserver()
    runtime.bus.subscribe(seen)
    before = runtimes.install(runtime)
    yield runtime, seen
    runtime.close()
    runtimes.install(before)
    ray.shutdown()
