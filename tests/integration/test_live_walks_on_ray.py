"""Random lives of drivers on a real Ray: commands, calls and deaths of processes, after each of which all must add up.

``PODIUM_LIVE_SEQUENCES`` says how many, ``PODIUM_LIVE_FIRST`` from where on. The number in a test's name is its seed,
so one is replayed by its name:
``PODIUM_LIVE_SEQUENCES=200 pytest "tests/integration/test_live_walks_on_ray.py::test_a_random_life[17]"``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import ray
from ray.util import list_named_actors
from ray.util.placement_group import placement_group_table

from core import RayWorkerGroup
from core.controller import Controller
from core.group.worker_group import state_of
from core.runtime import Runtime
from core.testing import RecordingObserver
from tests.live_walk import Walk, eventually
from tests.live_workers import Plain, Ring, Stateless, Staying

pytestmark = [pytest.mark.integration, pytest.mark.warm_workers]

_SEEDS = range(int(os.environ.get("PODIUM_LIVE_FIRST", "0")), int(os.environ.get("PODIUM_LIVE_SEQUENCES", "0")))
_KINDS: dict[str, type[Plain]] = {"counting": Ring, "stateless": Stateless, "staying": Staying}


class OnRay:
    """Processes that can be killed, and what Ray has."""

    def __init__(self) -> None:
        """Remember what is free when nothing of ours is there."""
        self.free = self._free()
        self.processes: dict[int, str] = {}
        """When each process began: another one may have its number later."""

    def assassin(self, group: RayWorkerGroup, rank: int) -> Callable[[], None]:
        """Return what kills a worker's process; a descriptor does not come to mean another one."""
        try:
            process = os.pidfd_open(state_of(group).started.identities[rank].pid)
        except ProcessLookupError:  # It is dead already.
            return lambda: None

        def strike() -> None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)

        return strike

    def seen(self, group: RayWorkerGroup) -> None:
        """Take note of a group's processes."""
        for identity in state_of(group).started.identities:
            self.processes[identity.pid] = _fields_of(identity.pid).get("began", "")

    def leftovers(self) -> list[str]:
        """Return actors, placement groups and processes that are left, and what is not free."""
        groups = [
            f"placement group {entry['name']} is {entry['state']}"
            for entry in placement_group_table().values()
            if entry["state"] != "REMOVED"
        ]
        now = {pid: _fields_of(pid) for pid in self.processes}
        processes = [
            f"process {pid} lives: {fields}"
            for pid, fields in now.items()
            # One that has ended stands there until its parent has asked how.
            if fields and fields["began"] == self.processes[pid] and fields["state"] not in {"Z", "X"}
        ]
        free = [] if self._free() == self.free else [f"free is {self._free()} of {self.free}"]
        return [*groups, *(f"actor {name} lives" for name in list_named_actors()), *processes, *free]

    @staticmethod
    def _free() -> dict[str, float]:
        resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        return {name: resources.get(name, 0.0) for name in ("CPU", "GPU")}


def _fields_of(pid: int) -> dict[str, str]:
    """Return a process's name, its state, and when it began; empty when there is none."""
    try:
        name, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)
    except OSError:
        return {}
    fields = rest.split()
    return {"name": name.partition("(")[2], "state": fields[0], "began": fields[19]}


@pytest.fixture(scope="module")
def terrain(ray_runtime: tuple[Runtime, RecordingObserver]) -> OnRay:
    """The Ray of the module, with nothing on it."""
    assert eventually(lambda: ray.available_resources().get("GPU") == 8.0)  # type: ignore[no-untyped-call]
    return OnRay()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_random_life(terrain: OnRay, ray_runtime: tuple[Runtime, RecordingObserver], seed: int) -> None:
    Walk(seed, Controller.current(), ray_runtime[1], terrain, _KINDS, nap_s=0.6).go()
