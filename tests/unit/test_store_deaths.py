"""Deaths, stalls, rebuilt groups, changed pools and clocks on their way into rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.store.deaths import pack_others, unpack_others
from app.store.event_reducer import Batch, EventReducer
from core.events import (
    CallStalled,
    DeathReport,
    GroupRebuilt,
    OperationChanged,
    PoolChanged,
    PoolStateChanged,
    RankState,
    SlotFacts,
    WorkerClock,
    WorkerEnded,
)
from tests.store_scene import MS, START_NS, S, at, finished, one_call, people, span, started

REPORT = DeathReport(
    role="actor",
    worker="actor-1",
    actor_id="a1",
    cause="killed by signal 9 (SIGKILL) from outside",
    signal=9,
    oom=False,
    evidence=("no oom_kill in the cgroup", "Ray: connection error code 2"),
    memory_bytes=300_000_000,
    memory_limit_bytes=1 << 34,
    others=(RankState(0, "in update", 1.25), RankState(2, "answered", 0.5)),
    log_tail=("step 7", "loss 0.3\n"),
    policy="raise",
)
DIED = WorkerEnded(at(50), "actor", 1, True, "killed", 1001, "10.0.0.1", "update", 7, REPORT)


def rows(batch: Batch, table: str) -> list[dict[str, Any]]:
    """Return what ``batch`` puts into ``table``, by column."""
    found = []
    for statement, values in batch.statements:
        head = statement.split("INTO ")[1] if "INTO " in statement else ""
        if head.split(" ")[0] == table:
            names = [name.strip('" ') for name in head.split("(")[1].split(")")[0].split(",")]
            found += [dict(zip(names, row, strict=True)) for row in values]
    return found


def test_a_death_is_a_row_with_all_of_its_report_and_asks_for_a_commit_that_survives_a_power_cut() -> None:
    batch = EventReducer(START_NS).take([*people(), DIED])
    (row,) = rows(batch, "death")
    assert batch.durable
    assert (row["at_ns"], row["rank"], row["pid"], row["node"]) == (50 * MS, 1, 1001, "10.0.0.1")
    assert (row["cause"], row["signal"], row["exit_code"], row["oom"]) == (REPORT.cause, 9, None, False)
    assert row["evidence"].split("\n") == list(REPORT.evidence)
    assert row["log_tail"].split("\n") == ["step 7", "loss 0.3"]
    assert unpack_others(row["others"]) == (((0, 1.25, "in update"), (2, 0.5, "answered")), 0)
    assert (row["policy"], row["method"], row["call_id"]) == ("raise", "update", 7)
    assert row["worker_id"] == rows(batch, "worker")[1]["id"]


def test_a_death_without_a_report_keeps_what_is_known_of_the_worker() -> None:
    (row,) = rows(EventReducer(START_NS).take([*people(), WorkerEnded(at(50), "actor", 0, True, "gone")]), "death")
    assert (row["worker"], row["actor_id"], row["pid"], row["cause"]) == ("actor-0", "a0", 1000, "gone")


def test_a_death_told_twice_is_one_row_and_the_telling_with_a_report_counts() -> None:
    bare = replace(DIED, report=None)
    for events in ([bare, DIED], [DIED, bare]):
        batch = EventReducer(START_NS).take([*people(), *events])
        (row,) = rows(batch, "death")
        assert row["signal"] == 9


def test_a_death_of_a_worker_nobody_announced_is_kept() -> None:
    (row,) = rows(EventReducer(START_NS).take([DIED]), "death")
    assert (row["worker_id"], row["pid"]) == (None, 1001)


def test_a_worker_that_was_closed_on_purpose_is_no_death() -> None:
    batch = EventReducer(START_NS).take([*people(), WorkerEnded(at(50), "actor", 1, False)])
    assert not rows(batch, "death")
    assert not batch.durable


def test_states_with_odd_characters_survive_packing() -> None:
    odd = (RankState(3, "in a\tb\nc", 0.0),)
    assert unpack_others(pack_others(odd)) == (((3, 0.0, "in a\tb c"),), 0)
    assert unpack_others("") == ((), 0)


def test_a_line_that_cannot_be_read_is_counted_and_the_others_are_kept() -> None:
    lines = "0\t1.5\tidle\nx\t1\tidle\n1\tnan\tidle\n2\n\t\t\n3\t2\tdead"
    assert unpack_others(lines) == (((0, 1.5, "idle"), (3, 2.0, "dead")), 4)


def test_a_stall_is_a_line_and_the_last_telling_of_it_is_kept() -> None:
    reducer = EventReducer(START_NS)
    first = CallStalled(at(60_000), 7, "actor", "update", (1, 3), 60.0)
    batch = reducer.take(
        [*people(4), started(7, 0), first, replace(first, at_ns=at(120_000), ranks=(3,), seconds=120.0)]
    )
    assert rows(batch, "stall")[-1] == {"call_id": 7, "at_ns": 120 * S, "seconds": 120.0, "ranks": "3"}
    lines = [row["text"] for row in rows(batch, "event") if row["kind"] == "stall"]
    assert lines[0] == "call 7 actor.update has been in flight for 60 s; no answer yet from rank 1, 3"
    assert len(lines) == 2


def test_a_changed_pool_has_a_generation_more_and_a_rebuilt_group_says_where_it_is() -> None:
    reducer = EventReducer(START_NS)
    reducer.take(people(4))
    slots = (SlotFacts(0, "10.0.0.1", 0, 0), SlotFacts(1, "10.0.0.2", 1, 0))
    batch = reducer.take(
        [
            PoolStateChanged(at(90), "train", "changing", 0),
            PoolChanged(at(100), "train", (1, 1), slots, 1, "op7"),
            PoolStateChanged(at(101), "train", "active", 1),
            GroupRebuilt(at(102), "actor", "train", 2, 1, "resize"),
        ]
    )
    (generation,) = rows(batch, "pool_generation")
    assert (generation["generation"], generation["slots"]) == (1, "10.0.0.1\t0\t0\n10.0.0.2\t1\t0")
    assert generation["operation_uid"] == "op7"
    assert (rows(batch, "pool")[0]["process_on_nodes"], rows(batch, "pool")[0]["generation"]) == ("1,1", 1)
    assert rows(batch, "worker_group")[0]["world_size"] == 2
    (place,) = rows(batch, "group_generation")
    assert (place["generation"], place["world_size"], place["reason"]) == (1, 2, "resize")


def test_a_call_after_a_rebuild_is_settled_by_the_ranks_that_there_are_now() -> None:
    reducer = EventReducer(START_NS)
    reducer.take([*people(4), GroupRebuilt(at(5), "actor", "train", 2, 1, "resize")])
    lanes = {row["rank"]: row["n_slowest"] for row in rows(reducer.take(one_call(1, 10)), "lane")}
    assert lanes == {0: 0, 1: 1}


def test_a_workers_clock_is_kept_with_the_worker() -> None:
    reducer = EventReducer(START_NS)
    reducer.take(people())
    (row,) = rows(reducer.take([WorkerClock(at(5), "actor", 1, 5 * S, 40_000)]), "worker")
    assert (row["clock_offset_ns"], row["clock_error_ns"]) == (5 * S, 40_000)
    assert not reducer.take([WorkerClock(at(5), "nobody", 1, 5, 4)]).n_refused


def test_an_operation_keeps_its_plan_and_how_long_it_waited_and_stood_still() -> None:
    def moved(ms: float, state: str, **more: Any) -> OperationChanged:
        return OperationChanged(at(ms), "op", "resize", "train", state, "ada", 3, **more)

    reducer = EventReducer(START_NS)
    reducer.take([moved(1, "pending", plan='{"moves": []}'), moved(2, "preparing", progress="starting 2 workers")])
    reducer.take([moved(5, "waiting_for_safe_point"), moved(7, "waiting_for_safe_point", progress="call 3 runs")])
    batch = reducer.take([moved(30, "running"), moved(31, "running"), moved(40, "succeeded", downtime_ns=9 * MS)])
    (row,) = rows(batch, "operation")
    assert [line["text"] for line in rows(batch, "event")] == [
        "resize train by ada is running",
        "resize train by ada is succeeded",
    ]
    assert (row["plan"], row["safe_point_ns"], row["stand_still_ns"]) == ('{"moves": []}', 25 * MS, 9 * MS)
    assert (row["progress"], row["state"]) == ("call 3 runs", "succeeded")


def test_what_the_driver_took_to_hand_over_is_kept_per_call_and_per_rank() -> None:
    events = [started(1, 10), span(1, 0, 13, 19)._replace(serialise_ns=5), finished(1, 22)._replace(serialise_ns=11)]
    batch = EventReducer(START_NS).take([*people(), *events])
    assert rows(batch, "call")[0]["serialise_ns"] == 11
    assert rows(batch, "rank_span")[0]["serialise_ns"] == 5


def test_calls_are_counted_by_how_long_they_took_at_every_level() -> None:
    batch = EventReducer(START_NS).take([*people(), *one_call(1, 10), *one_call(2, 5_000), started(3, 5_100)])
    counted = rows(batch, "latency")
    assert {
        row["level"]: sum(other["n"] for other in counted if other["level"] == row["level"]) for row in counted
    } == dict.fromkeys(range(6), 2)
    assert {row["bucket"] for row in counted if row["level"] == 0} == {0, 5}
