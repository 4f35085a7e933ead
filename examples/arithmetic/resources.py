"""What the demo asks of a Ray cluster, in one place: the example, docker-compose.yml and its test go by this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_COLOCATE_COUNT = 6
"""Groups per slot: three at work, and room for the three that a live change starts beside them."""
SPARE_FACTOR = 2
"""Slots offered for each slot that the pools take at the start, so that a pool can grow while the training runs."""
N_POOLS = 2


@dataclass(frozen=True)
class Stage:
    """The demo's pools at one time: each pool's processes per node."""

    after: str
    pools: Mapping[str, tuple[int, ...]]


def logical_resources(nproc: int) -> tuple[int, int]:
    """Return the CPUs and GPUs to declare to a Ray that the example starts by itself, for groups of ``nproc`` ranks."""
    n_slots = SPARE_FACTOR * N_POOLS * nproc
    return n_slots * MAX_COLOCATE_COUNT, n_slots


COMPOSE_STAGES = (
    Stage("the start", {"trainers": (2,), "generators": (2,)}),
    Stage("merge trainers generators --name all", {"all": (2, 2)}),
    Stage("resize all 2", {"all": (2,)}),
    Stage("resize all 2 2", {"all": (2, 2)}),
    Stage("split all train=2:actor,reference answers=2:rollout", {"train": (2,), "answers": (2,)}),
    Stage("resize train 3", {"train": (3,), "answers": (2,)}),
)
"""The changes that docs/docker.md walks through with ``podium pools``; they fit on the compose file's two workers."""
