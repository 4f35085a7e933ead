"""The pools as they were: changes are taken back one by one."""

from __future__ import annotations

import re

from tests.unit.web_sample import SampleRun
from web import pool_map
from web.frame import Frame
from web.operations import operation_rows
from web.pool_history import START, as_of, moments
from web.rendering import render_page
from web.rows import Operation, Pool, PoolGeneration, Slot, Worker

NOW_MS = 150_000.0


def change(
    number: int, kind: str, before: dict[str, list[int]], after: dict[str, list[int]], moves: list[tuple[str, str, str]]
) -> Operation:
    """Return a change that was asked for at ``number`` seconds and took a tenth of one."""
    names = sorted({*before, *after})
    pools = [
        {"pool": name, "before": before.get(name, []), "after": after.get(name, []), "generation": 0} for name in names
    ]
    groups = [
        {"group": g, "from_pool": a, "to_pool": b, "world_size_before": 2, "world_size_after": 1, "how": "state"}
        for g, a, b in moves
    ]
    plan = {"kind": kind, "pools": pools, "groups": groups}
    at_ms = number * 1000.0
    return Operation(f"op-{number}", kind, names[0], "succeeded", "me", at_ms, at_ms + 100, "", "", "", plan=plan)


def life(group: str, rank: int, pool: str, pid: int, from_ms: float, to_ms: float | None) -> Worker:
    """Return a worker."""
    state = "alive" if to_ms is None else "ended"
    return Worker(group, pool, rank, rank, f"{group}-{rank}", pid, "node-0", "a", "", state, from_ms, to_ms)


def slots(*indices: int) -> tuple[Slot, ...]:
    """Return slots of one node."""
    return tuple(Slot(i, "node-0", index) for i, index in enumerate(indices))


SPLIT = change(10, "split", {"all": [2]}, {"left": [1], "right": [1]}, [("a", "all", "left"), ("b", "all", "right")])
GROWN = change(20, "resize", {"left": [1]}, {"left": [2]}, [("a", "left", "left")])
CHANGES = operation_rows((GROWN, SPLIT), ())
POOLS = (Pool("left", "active", 1, (2,), 2, ("a",)), Pool("right", "active", 0, (1,), 1, ("b",)))
WORKERS = (
    life("a", 0, "left", 1, 0.0, 20_050.0),
    life("a", 0, "left", 11, 20_010.0, None),
    life("a", 1, "all", 2, 0.0, 10_050.0),
    life("a", 1, "left", 12, 20_010.0, None),
    life("b", 0, "right", 3, 0.0, None),
    life("b", 1, "all", 4, 0.0, 10_050.0),
)
GENERATIONS = (
    PoolGeneration("all", 0, 1.0, (2,), slots(0, 1)),
    PoolGeneration("left", 0, 10_050.0, (1,), slots(0), "op-10"),
    PoolGeneration("left", 1, 20_050.0, (2,), slots(0, 7), "op-20"),
    PoolGeneration("right", 0, 10_050.0, (1,), slots(1), "op-10"),
)


def drawn(at: int) -> dict[str, list[list[tuple[str, int]]]]:
    """Return for each pool of a moment who is on its slots, by group and pid."""
    past = as_of(moments(CHANGES)[at], CHANGES, POOLS, WORKERS, GENERATIONS)
    rows = pool_map.pool_map(past.pools, past.workers, past.generations, ()).rows
    return {
        row.pool.name: [[(one.worker.group, one.worker.pid) for one in cell.occupants] for cell in row.cells]
        for row in rows
    }


def test_every_change_has_a_moment_after_it_and_the_last_one_is_now() -> None:
    line = moments(CHANGES)
    assert [one.id for one in line] == [START, "op-10", ""]
    assert [one.label for one in line] == [
        "initial",
        "after split of all",
        "after resize of left",
    ]
    assert moments(()) == ()


def test_the_map_goes_back_to_the_pools_that_a_change_was_made_of() -> None:
    assert drawn(2) == {"left": [[("a", 11)], [("a", 12)]], "right": [[("b", 3)]]}
    assert drawn(1) == {"left": [[("a", 1)]], "right": [[("b", 3)]]}
    assert drawn(0) == {"all": [[("a", 1), ("b", 3)], [("a", 2), ("b", 4)]]}


def test_the_generation_of_then_and_no_later_one_is_shown() -> None:
    past = as_of(moments(CHANGES)[1], CHANGES, POOLS, WORKERS, GENERATIONS)
    assert {(pool.name, pool.generation, pool.process_on_nodes) for pool in past.pools} == {
        ("left", 0, (1,)),
        ("right", 0, (1,)),
    }


def test_the_page_shows_a_moment_that_the_url_names_and_offers_no_change_of_the_past() -> None:
    source = SampleRun(NOW_MS)
    now = render_page("pools", source, Frame("pools", controllable=True))
    assert 'data-moments="[&#34;start&#34;, &#34;&#34;]"' in now
    assert 'href="/pools?at=start"' in now
    then = render_page("pools", source, Frame("pools", params={"at": "start"}, controllable=True))
    assert "<b>initial</b>, 1 of 2" in then
    assert (len(re.findall(r'<div class="slot ', now)), len(re.findall(r'<div class="slot ', then))) == (6, 4)
    assert "data-change" not in then
    assert "data-open-pool" not in then
    odd = render_page("pools", source, Frame("pools", params={"at": "op-99"}))
    assert "1 of 2" not in odd
