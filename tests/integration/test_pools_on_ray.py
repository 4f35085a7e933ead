"""Pools on a real Ray: devices of merged pools, placement groups in the user's hands, groups led by workers."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from core import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    create_colocated_worker_cls,
    merge_resource_pool,
    register,
)
from core.runtime import Runtime
from core.testing import RecordingObserver
from tests.group_workers import Rows

pytestmark = [pytest.mark.integration, pytest.mark.warm_workers]

Watched = tuple[Runtime, RecordingObserver]


class Outer(Worker):
    """A worker that leads a group of its own."""

    def __init__(self) -> None:
        """Start the group."""
        super().__init__()
        self.led = RayWorkerGroup([1], RayClassWithInitArgs(Rows), use_gpu=False, name_prefix=f"led_{self.rank}_")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def lead(self, value: int) -> list[Any]:
        """Return what the group answers."""
        answer: list[Any] = self.led.execute_all_sync("unregistered", value)
        return answer


def test_workers_on_a_merged_pool_see_the_devices_of_both_and_its_parts_their_own(ray_runtime: Watched) -> None:
    led = RayClassWithInitArgs(Rows)
    with (
        RayResourcePool([2], max_colocate_count=2, name_prefix="rm") as rm,
        RayResourcePool([2], max_colocate_count=2, name_prefix="ref") as ref,
    ):
        both, part = RayWorkerGroup(merge_resource_pool(rm, ref), led), RayWorkerGroup(ref, led)
        devices = both.execute_all_sync("get_cuda_visible_devices")
        assert devices == ["0", "1", "2", "3"]
        assert part.execute_all_sync("get_cuda_visible_devices") == devices[2:]
        part.close()
        both.close()


def test_the_user_may_remove_the_placement_groups_and_closing_then_is_quiet(
    ray_runtime: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    for group in pool.get_placement_groups():
        ray.util.remove_placement_group(group)
    pool.close()
    assert caplog.text == ""


def test_a_role_whose_worker_leads_a_group_of_its_own_works(ray_runtime: Watched) -> None:
    roles = {"outer": RayClassWithInitArgs(Outer)}
    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
    with pool, RayWorkerGroup(pool, create_colocated_worker_cls(roles)) as whole:
        assert whole.spawn(roles)["outer"].lead(5) == [[(0, 5)]]
