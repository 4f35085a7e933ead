"""Pools made of other pools' slots: split, merged, split again; and the manager of a job's pools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    SubRayResourcePool,
    Worker,
    merge_resource_pool,
    register,
    split_resource_pool,
)
from core.controller import Controller
from core.errors import PlacementError, PoolSpecError, UnknownNameError
from core.testing import local_controller


class Facts(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def facts(self) -> tuple[int, int, int, int]:
        return self.rank, self.world_size, self._facts.local_rank, self._facts.local_world_size


@pytest.fixture
def controller() -> Iterator[Controller]:
    with local_controller({"CPU": 32.0, "GPU": 8.0}) as (controller, _):
        yield controller


def slots(pool: RayResourcePool) -> set[tuple[int, int]]:
    placement = pool.placement_now
    return {(id(placement.native[slot.group_index]), slot.bundle_index) for slot in placement.slots}


def facts(pool: RayResourcePool) -> list[tuple[int, int, int, int]]:
    with RayWorkerGroup(pool, RayClassWithInitArgs(Facts)) as group:
        answer: list[tuple[int, int, int, int]] = group.facts()
        return answer


def test_h9_split_then_merged_is_the_same_slots_none_twice(controller: Controller) -> None:
    # Case H9: verl#4583, #4949
    pool = RayResourcePool([4], max_colocate_count=3)
    halves = split_resource_pool(pool, [2, 2])
    merged = merge_resource_pool(*halves)
    assert merged.world_size == 4
    assert slots(merged) == slots(pool)
    assert len(merged.placement_now.slots) == 4
    assert len(facts(merged)) == 4
    for name in ("max_colocate_count", "use_gpu", "detached", "accelerator_type", "n_gpus_per_node"):
        assert getattr(merged, name) == getattr(pool, name)


def test_each_part_counts_its_ranks_from_zero(controller: Controller) -> None:
    pool = RayResourcePool([4], max_colocate_count=2)
    first, second = split_resource_pool(pool, 2)
    assert facts(first) == facts(second) == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert not slots(first) & slots(second)


def test_a_part_over_a_node_border_has_its_own_local_ranks(controller: Controller) -> None:
    pool = RayResourcePool([4, 4], max_colocate_count=1)
    small, large = split_resource_pool(pool, [2, 6])
    assert facts(small) == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert facts(large) == [(0, 6, 0, 2), (1, 6, 1, 2), (2, 6, 0, 4), (3, 6, 1, 4), (4, 6, 2, 4), (5, 6, 3, 4)]
    assert large.local_rank_list() == [0, 1, 0, 1, 2, 3]
    assert large.store == [2, 4]


def test_a_part_is_split_again(controller: Controller) -> None:
    pool = RayResourcePool([4], max_colocate_count=2)
    quarters = split_resource_pool(split_resource_pool(pool, 2)[1], 1)
    assert [quarter.world_size for quarter in quarters] == [1, 1]
    assert slots(quarters[0]) | slots(quarters[1]) <= slots(pool)


def test_h8_unequal_nodes_have_a_worker_for_every_rank(controller: Controller) -> None:
    # Case H8: verl#725, #1965
    pool = RayResourcePool([1, 3], max_colocate_count=1)
    assert facts(pool) == [(0, 4, 0, 1), (1, 4, 0, 3), (2, 4, 1, 3), (3, 4, 2, 3)]
    assert pool.local_world_size_list() == [1, 3, 3, 3]
    assert pool.local_rank_list() == [0, 0, 1, 2]


@pytest.mark.parametrize("sizes", [3, 0, -2, [2, 3], [4, 0], [5, -1], []])
def test_sizes_that_do_not_add_up_are_refused_with_their_numbers(
    controller: Controller, sizes: int | list[int]
) -> None:
    pool = RayResourcePool([4], max_colocate_count=1)
    with pytest.raises(PoolSpecError, match=r"4"):
        split_resource_pool(pool, sizes)
    assert list(controller.runtime.pools()) == ["pool"]


def test_pools_that_share_a_slot_or_differ_are_not_merged(controller: Controller) -> None:
    pool = RayResourcePool([4], max_colocate_count=1)
    first, _ = split_resource_pool(pool, 2)
    with pytest.raises(PoolSpecError, match="share 2 slots"):
        merge_resource_pool(pool, first)
    other = RayResourcePool([2], max_colocate_count=2)
    with pytest.raises(PoolSpecError, match="max_colocate_count is 1 and 2"):
        merge_resource_pool(pool, other)


def test_groups_are_counted_slot_by_slot_over_all_pools_that_have_it(controller: Controller) -> None:
    pool = RayResourcePool([4], max_colocate_count=2)
    first, second = split_resource_pool(pool, 2)
    whole = RayWorkerGroup(pool, RayClassWithInitArgs(Facts))
    part = RayWorkerGroup(first, RayClassWithInitArgs(Facts))
    with pytest.raises(PlacementError, match="has 2 groups"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Facts))
    assert len(facts(second)) == 2
    part.close()
    assert len(facts(first)) == 2
    whole.close()


def test_the_slots_stay_with_the_pool_they_were_reserved_by(controller: Controller) -> None:
    pool = RayResourcePool([4], max_colocate_count=1)
    first, second = split_resource_pool(pool, 2)
    first.close()
    second.close()
    assert controller.runtime.cluster.free == {"CPU": 28.0, "GPU": 4.0}  # type: ignore[attr-defined]
    pool.close()
    assert controller.runtime.cluster.free == {"CPU": 32.0, "GPU": 8.0}  # type: ignore[attr-defined]


def test_a_sub_pool_is_made_of_placement_groups_by_hand(controller: Controller) -> None:
    pool = RayResourcePool([2, 2], max_colocate_count=1)
    middle = SubRayResourcePool(pool.get_placement_groups(), 1, 2, max_colocate_count=1)
    assert middle.world_size == 2
    assert facts(middle) == [(0, 2, 0, 1), (1, 2, 0, 1)]
    with pytest.raises(PoolSpecError, match="slots 3 to 5 of 4"):
        SubRayResourcePool(pool.get_placement_groups(), 3, 2, max_colocate_count=1)


def test_fault_57_the_manager_looks_at_every_node_before_it_makes_pools(controller: Controller) -> None:
    manager = ResourcePoolManager({"train": [4], "rollout": [8]}, {"actor": "train"})
    with pytest.raises(ValueError, match=r"12 bundles .* need 36 CPU, 12 GPU, free are 32 CPU, 8 GPU"):
        manager.create_resource_pool()
    assert not manager.resource_pool_dict


def test_the_manager_gives_each_role_its_pool(controller: Controller) -> None:
    manager = ResourcePoolManager({"train": [2], "rollout": [2]}, {"actor": "train", "rollout": "rollout"})
    manager.create_resource_pool()
    assert manager.get_n_gpus() == 4
    assert manager.get_resource_pool("actor") is manager.resource_pool_dict["train"]
    with pytest.raises(UnknownNameError, match="role 'critic' has no pool"):
        manager.get_resource_pool("critic")
