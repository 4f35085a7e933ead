"""Some random lives of drivers on the local cluster: those that hundreds of are lived on a real Ray, by the same steps.

``PODIUM_LIVE_WALKS`` sets how many; a few by default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from core import RayWorkerGroup
from core.testing import local_controller
from tests.live_walk import Walk
from tests.live_workers import Enduring, Faults, Plain, Stateless, Staying

_N_WALKS = int(os.environ.get("PODIUM_LIVE_WALKS", "6"))
_KINDS: dict[str, type[Plain]] = {"counting": Enduring, "stateless": Stateless, "staying": Staying}
_RESOURCES = {"CPU": 16.0, "GPU": 8.0}


class Here:
    """Threads, and what this process is told to have."""

    def __init__(self, cluster: Any) -> None:
        """Look at a local cluster."""
        self._cluster = cluster

    def assassin(self, group: RayWorkerGroup, rank: int) -> Callable[[], None]:
        """Return what ends a worker's thread."""
        kill: Callable[[], None] = group.workers[rank].kill
        return kill

    def seen(self, group: RayWorkerGroup) -> None:
        """Do nothing: threads leave nothing behind."""

    def leftovers(self) -> list[str]:
        """Return what is not free."""
        return [] if self._cluster.free == _RESOURCES else [f"free is {self._cluster.free} of {_RESOURCES}"]


@pytest.mark.parametrize("seed", range(_N_WALKS))
def test_a_random_life(seed: int) -> None:
    Faults.stage = ""
    with local_controller(_RESOURCES) as (controller, seen):
        Walk(seed, controller, seen, Here(controller.runtime.cluster), _KINDS, nap_s=0.02).go()
