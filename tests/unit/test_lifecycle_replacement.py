"""Slots whose node died are waited for: on the local cluster, which has one node and cannot move them."""

from __future__ import annotations

import pytest

from core import RayResourcePool
from core.controller import Controller
from core.errors import PlacementError
from core.lifecycle import replacement
from core.testing import RecordingObserver


def test_slots_on_nodes_that_live_stay_as_they_are(local: tuple[Controller, RecordingObserver]) -> None:
    pool = RayResourcePool([2])
    pool.get_placement_groups()
    before, generation = pool.placement_now, pool.generation
    assert replacement.slots_after(pool, {"10.0.0.9"}) == before
    assert pool.generation == generation


def test_slots_that_find_no_other_place_are_an_error_with_node_and_number(
    local: tuple[Controller, RecordingObserver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "MOVED_S", -1.0)
    pool = RayResourcePool([2], name_prefix="gone")
    pool.get_placement_groups()
    (node,) = {slot.node for slot in pool.placement_now.slots}
    with pytest.raises(PlacementError, match=f"2 of the 2 slots of pool gone were on a node that died \\({node}\\)"):
        replacement.slots_after(pool, {node})


def test_slots_at_the_address_of_a_node_that_came_back_are_taken_once_the_death_must_be_known(
    local: tuple[Controller, RecordingObserver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "NOTICED_S", 0.0)
    pool = RayResourcePool([2])
    pool.get_placement_groups()
    before, generation = pool.placement_now, pool.generation
    assert replacement.slots_after(pool, {slot.node for slot in before.slots}) == before
    assert pool.generation == generation
