"""Fixtures that several tiers share: a local controller, a short folder, a Ray of one's own."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from core import runtime as runtimes
from core.controller import Controller
from core.runtime import Runtime, connect_to_ray
from core.testing import RecordingObserver, local_controller
from tests.longest_first import turn
from tests.processes import reset_signals
from tests.warm_workers import ray_starts_with, warm_python

reset_signals()

# How long an example takes says more about the machine than about the code.
settings.register_profile("podium", deadline=None)
settings.load_profile("podium")


def pytest_configure(config: pytest.Config) -> None:
    """Let ``--dist loadfile`` take the files in our order: its own is by the number of tests in a file."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first where several processes share the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.path))


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
def ray_python(request: pytest.FixtureRequest) -> Iterator[str]:
    """The interpreter that ``ray_runtime`` starts its processes with: Ray's own choice, or as ``warm_workers`` says."""
    if request.node.get_closest_marker("warm_workers") is None:
        yield sys.executable
        return
    with warm_python() as command:
        yield command


@pytest.fixture(scope="module", autouse=True)
def no_ray_of_another_module() -> None:
    """End a Ray that an earlier module left in this process, with its SIGTERM handler."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
    if (getattr(signal.getsignal(signal.SIGTERM), "__module__", "") or "").startswith("ray."):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(scope="module")
def ray_runtime(short_dir: Path, ray_python: str) -> Iterator[tuple[Runtime, RecordingObserver]]:
    """A Ray of 16 CPUs and 8 logical GPUs for one module, the runtime on it, and the observer that recorded it."""
    import ray  # here, so that the quick tiers do not pay for it

    with ray_starts_with(ray_python):
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
