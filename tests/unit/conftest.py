"""The quick tiers start no Ray: what tries to is refused, and told with its stack."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

import pytest

from core import runtime
from core.cluster.base import Cluster


@pytest.fixture(scope="module", autouse=True)
def no_ray() -> Iterator[None]:
    """Refuse connections to Ray, also those of other threads and finalizers, which could not fail a test."""
    attempts: list[str] = []

    def refuse(*_: object, **__: object) -> Cluster:
        attempts.append("".join(traceback.format_stack()))
        raise AssertionError("a unit test wanted a Ray")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "connect_to_ray", refuse)
        on_ray = sys.modules.get("core.cluster.on_ray")
        if on_ray is not None:
            patch.setattr(on_ray.RayCluster, "connect", refuse)
        yield
    assert not attempts, attempts[0]
