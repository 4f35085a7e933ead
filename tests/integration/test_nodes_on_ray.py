"""Two unequal nodes, started on this one machine by Ray's own ``Cluster``: where ranks are, and why a pool is not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ray.util.placement_group import placement_group_table

from core import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    Worker,
    merge_resource_pool,
    register,
    sort_placement_group_by_node_ip,
    split_resource_pool,
)
from core.errors import PlacementError, PoolSpecError
from core.runtime import Runtime
from tests.ray_nodes import nodes_of_ray
from tests.warm_workers import warm_workers

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

SMALL, LARGE = "127.0.0.2", "127.0.0.10"
"""A head of one GPU, and a node of three whose address is larger as numbers go and smaller as text goes."""


class Placed(Worker):
    """A worker that says where it is."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int, int, int, str, str]:
        """Return rank, world size, both on the node, the address of the rendezvous and the visible devices."""
        facts = self._facts
        return (
            self.rank,
            self.world_size,
            facts.local_rank_on_node,
            facts.local_world_size,
            facts.master_addr,
            self.get_cuda_visible_devices(),
        )


PLACED = RayClassWithInitArgs(Placed)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """A runtime on a Ray of two nodes."""
    head = {"num_cpus": 2, "num_gpus": 1, "node_ip_address": SMALL}
    others = [{"num_cpus": 6, "num_gpus": 3, "node_ip_address": LARGE}]
    with warm_workers(), nodes_of_ray(head, others) as nodes:
        yield nodes.runtime


@pytest.fixture(scope="module")
def pool(runtime: Runtime) -> Iterator[RayResourcePool]:
    """All four GPUs; the larger node is asked for first."""
    with RayResourcePool([3, 1], max_colocate_count=2, name_prefix="both") as pool:
        yield pool


def nodes_of(pool: RayResourcePool) -> list[str]:
    """Return the address of each rank's node, reserving the slots on first use."""
    return [slot.node for slot in pool.placement_or_reserved().slots]


def pending() -> list[str]:
    """Return the names of placement groups that wait for room."""
    return [entry["name"] for entry in placement_group_table().values() if entry["state"] == "PENDING"]


def test_ranks_follow_the_nodes_addresses_and_are_the_same_when_made_again(runtime: Runtime) -> None:
    for processes in ([3, 1], [1, 3]):
        with RayResourcePool(processes, max_colocate_count=1) as pool:
            assert nodes_of(pool) == [SMALL, LARGE, LARGE, LARGE]
            assert pool.store == [1, 3]
            assert pool.local_rank_list() == [0, 0, 1, 2]
            groups = pool.get_placement_groups()
            assert sort_placement_group_by_node_ip(groups[::-1]) == groups


def test_h8_every_worker_of_unequal_nodes_is_where_its_rank_says(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, PLACED, name_prefix="all") as group:
        assert group.place() == [
            (0, 4, 0, 1, SMALL, "0"),
            (1, 4, 0, 3, SMALL, "0"),
            (2, 4, 1, 3, SMALL, "1"),
            (3, 4, 2, 3, SMALL, "2"),
        ]
        assert [name.split("_")[-1] for name in group.worker_names] == ["0:0", "1:0", "1:1", "1:2"]
        cluster = pool.runtime.cluster
        assert [cluster.node_of(actor) for actor in group.workers] == nodes_of(pool)


def test_a_part_over_the_border_of_two_nodes_has_its_own_ranks_on_its_own_slots(pool: RayResourcePool) -> None:
    over, behind = split_resource_pool(pool, [2, 2])
    assert (nodes_of(over), nodes_of(behind)) == ([SMALL, LARGE], [LARGE, LARGE])
    with RayWorkerGroup(over, PLACED, name_prefix="over") as group:
        assert [one[:4] for one in group.place()] == [(0, 2, 0, 1), (1, 2, 0, 1)]
        cluster = pool.runtime.cluster
        assert [cluster.node_of(actor) for actor in group.workers] == [SMALL, LARGE]
    assert nodes_of(merge_resource_pool(behind, over)) == nodes_of(pool)


def test_who_holds_the_rest_is_said_for_each_node(pool: RayResourcePool) -> None:
    nodes_of(pool)
    began = time.monotonic()
    with pytest.raises(PlacementError) as caught:
        RayResourcePool([2], max_colocate_count=1, name_prefix="late", timeout_s=1).get_placement_groups()
    assert time.monotonic() - began < 5
    text = str(caught.value)
    assert f"node {SMALL}: 0 CPUs, 0 GPUs free, room for 0 of these bundles; held by both_1 (1 bundles)" in text
    assert f"node {LARGE}: 0 CPUs, 0 GPUs free, room for 0 of these bundles; held by both_0 (3 bundles)" in text
    assert pending() == []
    pool.close()


def test_fault_57_a_total_that_fits_while_no_node_does_is_told_node_by_node(runtime: Runtime) -> None:
    with pytest.raises(PlacementError) as caught:
        RayResourcePool([4], max_colocate_count=1, name_prefix="wide", timeout_s=1).get_placement_groups()
    text = str(caught.value)
    assert "4 bundles of 1 CPU, 1 GPU need 4 CPUs, 4 GPUs, 8 CPUs, 4 GPUs available" in text
    assert f"node {SMALL}: 2 CPUs, 1 GPU free, room for 1 of these bundles" in text
    assert f"node {LARGE}: 6 CPUs, 3 GPUs free, room for 3 of these bundles" in text
    assert "the node with the most room takes 3" in text
    assert pending() == []
    with pytest.raises(PoolSpecError, match=f"node {LARGE}"):
        ResourcePoolManager({"wide": [4]}, {"actor": "wide"}, max_colocate_count=1).create_resource_pool()
    ResourcePoolManager({"small": [1], "large": [3]}, {"actor": "large"}, 1).create_resource_pool()


def test_pools_of_two_nodes_are_merged_in_the_order_of_their_addresses(runtime: Runtime) -> None:
    with (
        RayResourcePool([3], max_colocate_count=2, name_prefix="three") as three,
        RayResourcePool([1], max_colocate_count=2, name_prefix="one") as one,
    ):
        assert nodes_of(three) == [LARGE] * 3
        merged = merge_resource_pool(three, one)
        assert nodes_of(merged) == [SMALL, LARGE, LARGE, LARGE]
        assert merged.store == [1, 3]
