"""Plans from made-up worlds: several nodes, unequal ones, shared placement groups; no pool, no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from core.control import Merge, Move, Part, Resize, Split
from core.control.estimate import Experience
from core.control.layout import NodeTarget
from core.control.plans import Change, Mode, plan_change
from core.control.snapshot import GroupView, PoolView, SlotView, Snapshot
from core.errors import LiveStateError, PlacementError, UsageError
from core.pool import PoolState
from core.worker import StatePolicy


class Capacity:
    """Says that there is capacity for so many more slots in all, and so many on each node."""

    def __init__(self, n_free: int, **on_node: int) -> None:
        self.n_free = n_free
        self.on_node = on_node
        self.asked: list[tuple[tuple[NodeTarget, ...], tuple[int, ...]]] = []

    def shortage(self, pool: str, extras: Sequence[NodeTarget], without: Sequence[int]) -> PlacementError | None:
        self.asked.append((tuple(extras), tuple(without)))
        back = 4 * len(without)
        fits = sum(entry.extra for entry in extras) <= self.n_free + back and all(
            entry.extra <= self.on_node.get(entry.node, self.n_free) + back for entry in extras if entry.node
        )
        return None if fits else PlacementError("no capacity", pool=pool)


def pool(
    name: str,
    sizes: Sequence[int],
    groups: Sequence[GroupView] = (),
    *,
    native: Sequence[int] | None = None,
    colocate: int = 4,
    shared: frozenset[int] = frozenset(),
    spare: Sequence[SlotView] = (),
    runtime_id: int = 0,
) -> PoolView:
    """Make a pool of a native group per node, numbered from 1, on nodes a, b, ..."""
    natives = native or list(range(1, len(sizes) + 1))
    slots = [
        SlotView((natives[node], bundle), "abcdef"[node], node)
        for node, size in enumerate(sizes)
        for bundle in range(size)
    ]
    return PoolView(
        name=name,
        state=PoolState.ACTIVE,
        generation=1,
        sizes=tuple(sizes),
        slots=tuple(slots),
        groups=tuple(groups),
        max_colocate_count=colocate,
        shared=shared,
        spare=tuple(spare),
        runtime_id=runtime_id,
    )


def group(name: str, world_size: int, kept: StatePolicy = StatePolicy.STATE, **more: object) -> GroupView:
    can_save_state = kept is StatePolicy.STATE
    return GroupView(name, "Actor", world_size, kept, **{"can_save_state": can_save_state, "start_s": 2.0, **more})  # type: ignore[arg-type]


def snapshot(*pools: PoolView) -> Snapshot:
    occupied = {
        slot.key: frozenset(one.name for one in each.groups) for each in pools for slot in each.slots if each.groups
    }
    return Snapshot({each.name: each for each in pools}, occupied)


def plan(command: Resize | Split | Merge | Move, capacity: Capacity, *pools: PoolView) -> Change:
    return plan_change(command, snapshot(*pools), capacity, Experience())


def entries(change: Change) -> list[tuple[int, int, str]]:
    """Return, per node of the first target, slots kept, slots wanted, and where."""
    return [(len(entry.keep), entry.extra, entry.node) for entry in change.targets[0].entries]


def test_unequal_nodes_grow_and_shrink_each_on_its_own() -> None:
    change = plan(Resize("p", "x", (3, 3, 1)), Capacity(8), pool("p", [1, 3], [group("g", 4)]))
    assert entries(change) == [(1, 2, "a"), (3, 0, ""), (0, 1, "")]
    assert (change.mode, change.before, change.after) == (Mode.PREPARED, "[1, 3]", "[3, 3, 1]")


def test_a_node_without_room_for_more_has_all_slots_made_anew() -> None:
    change = plan(Resize("p", "x", (4,)), Capacity(8, a=1), pool("p", [2], [group("g", 2)]))
    assert entries(change) == [(0, 4, "")]
    assert change.mode is Mode.PREPARED


def test_full_slots_that_can_be_extended_are_the_third_choice() -> None:
    change = plan(Resize("p", "x", (4,)), Capacity(3, a=3), pool("p", [2], [group("g", 2)], colocate=1))
    assert entries(change) == [(2, 2, "a")]
    assert change.mode is Mode.RESERVED
    assert "max_colocate_count=1" in change.plan.not_prepared_reason


def test_without_room_the_old_slots_are_given_back_first() -> None:
    capacity = Capacity(0)
    change = plan(Resize("p", "x", (2,)), capacity, pool("p", [4], [group("g", 4)]))
    assert entries(change) == [(0, 2, "")]
    assert change.mode is Mode.RELEASED
    assert capacity.asked[-1][1] == (1,)
    with pytest.raises(PlacementError, match="no capacity"):
        plan(Resize("p", "x", (9,)), Capacity(0), pool("p", [4], [group("g", 4)]))


def test_whole_native_groups_are_given_back_where_the_sizes_allow() -> None:
    grown = pool("p", [4], [group("g", 4)])
    slots = tuple(SlotView((1 + index // 2, index % 2), "a", 0) for index in range(4))
    change = plan(Resize("p", "x", (2,)), Capacity(0), replace(grown, slots=slots))
    assert entries(change) == [(2, 0, "")]
    assert change.mode is Mode.PREPARED
    assert change.plan.lost_state == ()


def test_a_part_of_a_native_group_that_is_shared_stays_as_spare_and_is_taken_again() -> None:
    part = pool("p", [2], [group("g", 2)], shared=frozenset({1}))
    change = plan(Resize("p", "x", (1,)), Capacity(0), part)
    assert entries(change) == [(1, 0, "")]
    assert "1 slots stay reserved" in change.plan.lost_state[0]
    spare = SlotView((1, 7), "a")
    change = plan(
        Resize("p", "x", (4,)), Capacity(1), pool("p", [2], [group("g", 2)], shared=frozenset({1}), spare=[spare])
    )
    assert entries(change) == [(3, 1, "a")]
    assert spare.key in change.targets[0].kept


def test_slots_on_one_node_meet_in_one_entry_whatever_pool_they_come_from() -> None:
    one, other = pool("p", [2], [group("g", 2)]), pool("q", [1, 2], [group("h", 3)], native=[2, 3])
    change = plan(Merge(("p", "q"), "all", "x"), Capacity(0), one, other)
    assert [target.sizes for target in change.targets] == [(3, 2)]
    assert (change.before, change.after) == ("p [2], q [1, 2]", "all [3, 2]")
    assert [(move.group, move.world_size_after) for move in change.plan.groups] == [("g", 5), ("h", 5)]


def test_a_split_over_a_node_border_counts_each_part_by_node() -> None:
    change = plan(
        Split("p", "x", (Part("s", 3, ("g",)), Part("t", 3))), Capacity(0), pool("p", [2, 4], [group("g", 6)])
    )
    assert [target.sizes for target in change.targets] == [(2, 1), (3,)]


def test_processes_that_stay_need_no_second_seat() -> None:
    staying = group("g", 4, StatePolicy.RECONFIGURE)
    change = plan(
        Split("p", "x", (Part("s", 1, ("g",)), Part("t", 3))), Capacity(0), pool("p", [4], [staying], colocate=1)
    )
    assert change.mode is Mode.PREPARED
    assert [move.how for move in change.plan.groups] == ["reconfigure"]


def test_processes_that_can_only_stay_are_not_moved_to_other_slots() -> None:
    staying = group("g", 4, StatePolicy.RECONFIGURE)
    change = plan(Resize("p", "x", (2,)), Capacity(8), pool("p", [4], [staying]))
    assert entries(change) == [(2, 0, "")]
    assert "2 slots stay reserved" in change.plan.lost_state[-1]
    with pytest.raises(LiveStateError):
        plan(Move("g", "q", "x"), Capacity(0), pool("p", [4], [staying]), pool("q", [1], native=[2]))
    both = group("g", 4, StatePolicy.RECONFIGURE, can_save_state=True)
    change = plan(Resize("p", "x", (2,)), Capacity(8), pool("p", [4], [both]))
    assert [move.how for move in change.plan.groups] == ["state"]


def test_a_rendezvous_of_ones_own_is_held_by_the_old_workers() -> None:
    own = group("g", 2, rendezvous="10.0.0.1:29500")
    change = plan(Resize("p", "x", (3,)), Capacity(8), pool("p", [2], [own]))
    assert change.mode is Mode.RESERVED
    assert "g has its own rendezvous, 10.0.0.1:29500" in change.plan.not_prepared_reason
    assert change.plan.downtime_s >= 2.0


def test_pools_on_two_clusters_have_nothing_to_exchange() -> None:
    one, other = pool("p", [2], [group("g", 2)]), pool("q", [2], native=[2], runtime_id=7)
    for command in (Merge(("p", "q"), "all", "x"), Move("g", "q", "x")):
        with pytest.raises(UsageError, match="are on different clusters"):
            plan(command, Capacity(0), one, other)
