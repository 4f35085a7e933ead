"""Detached workers on a real Ray, led by this driver and by another one in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import ray

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, get
from core.errors import UnknownNameError
from core.runtime import Runtime
from core.testing import RecordingObserver
from tests.group_workers import Rows

pytestmark = [pytest.mark.integration, pytest.mark.warm_workers]

ROOT = Path(__file__).resolve().parents[2]
Watched = tuple[Runtime, RecordingObserver]

OTHER_DRIVER = """
    import sys
    import torch
    import core
    from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, broadcast
    from tests.group_workers import Rows

    core.init(namespace=sys.argv[1])
    led = RayClassWithInitArgs(Rows)
    found = RayWorkerGroup.from_detached(worker_names=sys.argv[2:], ray_cls_with_init=led, name_prefix="other")
    batch = DataProto.from_dict({"id": torch.arange(5.0).reshape(5, 1)}, auto_padding=True)
    print("PIDS", *found.nap(0.0))
    print("ROWS", *found.act(batch, broadcast("add column")).batch["y"].flatten().int().tolist())
    print("MASTER", found.master_address, found.master_port)
    print("NODES", *[slot.node for slot in found.resource_pool.placement_now.slots])
    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1, detached=True, name_prefix="by_other")
    kept = RayWorkerGroup(pool, led, name_prefix="kept_", detached=True)
    print("KEPT", *kept.worker_names, *kept.nap(0.0))
"""


def other_driver(*names: str) -> dict[str, list[str]]:
    """Run the other driver and return what it printed, by the first word of each line."""
    context = ray.get_runtime_context()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OTHER_DRIVER), context.namespace, *names],
        env={**os.environ, "RAY_ADDRESS": context.gcs_address, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.split()[:1]}


def keep_finding(runtime: Runtime, name: str, timeout_s: float = 20) -> None:
    """Look for a worker that was ended until Ray knows that it is gone, and raise what it then raises."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        runtime.cluster.find(name)
        time.sleep(0.05)


def test_detached_workers_are_led_by_another_driver_and_outlive_it(ray_runtime: Watched) -> None:
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1, detached=True, name_prefix="detached")
    made = RayWorkerGroup(pool, RayClassWithInitArgs(Rows), name_prefix="mine_", detached=True)
    pids = made.nap(0.0)
    said = other_driver(*made.worker_names)
    assert said["PIDS"] == [str(pid) for pid in pids]
    assert said["ROWS"] == ["0", "2", "4", "6", "8"]
    assert said["MASTER"] == [made.master_address, made.master_port]
    assert said["NODES"] == [slot.node for slot in pool.placement_now.slots]
    assert made.nap(0.0) == pids, "the other driver's end must not end them"

    name, pid = said["KEPT"]
    kept = RayWorkerGroup.from_detached(worker_names=[name], ray_cls_with_init=RayClassWithInitArgs(Rows))
    assert kept.nap(0.0) == [int(pid)], "what the other driver left detached lives on"
    kept.close()
    pool.close()
    for gone in (name, *made.worker_names):
        with pytest.raises(UnknownNameError, match="namespace"):
            keep_finding(ray_runtime[0], gone)
    for entry in ray.util.placement_group_table().values():
        if entry["name"] == "by_other_0" and entry["state"] == "CREATED":
            ray.util.remove_placement_group(ray.util.get_placement_group("by_other_0"))


def test_one_worker_shares_node_and_devices_of_another(ray_runtime: Watched) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1"}
    first_of, beside_of = RayClassWithInitArgs(Rows), RayClassWithInitArgs(Rows)
    for one in (first_of, beside_of):
        one.update_options({"runtime_env": {"env_vars": env}})
    with RayResourcePool([2], max_colocate_count=1) as pool:
        (group,) = pool.get_placement_groups()
        first = first_of(group, 1, num_gpus=0.5)
        beside = beside_of(group, 0, sharing_with=first)
        devices = [get(one.get_cuda_visible_devices.remote()) for one in (first, beside)]
        assert devices[0] == devices[1] != "not set"
        cluster = ray_runtime[0].cluster
        assert cluster.node_of(first) == cluster.node_of(beside) == pool.placement_now.slots[0].node
        led = RayWorkerGroup.from_detached(worker_handles=[first, beside], ray_cls_with_init=first_of)
        assert led.echo(7) == [7, 7]
        led.close()
