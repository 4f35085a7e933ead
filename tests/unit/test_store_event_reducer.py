"""Events in, rows out."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any, get_args

import pytest

from app.store.codes import SAID_END, SAID_START, STATUSES
from app.store.event_reducer import Batch, EventReducer
from app.store.facts import AuditFacts
from app.store.models import Pool, Worker, WorkerGroup
from app.store.sql import column_names
from core.events import (
    CallAwaited,
    DeathReport,
    ErrorFacts,
    Event,
    GroupClosed,
    GroupRebuilt,
    Notice,
    OperationChanged,
    PoolStateChanged,
    StepFinished,
    StepStarted,
    WorkerEnded,
    WorkerStarted,
    event_classes,
)
from tests.store_scene import MS, START_NS, at, finished, one_call, people, silent_span, span, started


def rows(batch: Batch, table: str) -> list[dict[str, Any]]:
    """Return the rows that a batch puts into a table, by column."""
    found: list[dict[str, Any]] = []
    for statement, values in batch.statements:
        if statement.split(" ")[:2] == ["INSERT", "INTO"] or statement.startswith("INSERT OR IGNORE"):
            name = statement.split("INTO ")[1].split(" ")[0]
            columns = statement.split("(")[1].split(")")[0].replace('"', "").split(", ")
            if name == table:
                found += [dict(zip(columns, row, strict=True)) for row in values]
    return found


def lanes(*events: Event) -> dict[int, dict[str, Any]]:
    """Return the lanes by rank after ``events``, taken at once and closed."""
    batch = EventReducer(START_NS).take([*people(3), *events], closing=True)
    return {row["rank"]: row for row in rows(batch, "lane")}


def test_a_call_that_ends_within_the_batch_is_one_row() -> None:
    batch = EventReducer(START_NS).take([*people(), *one_call(1, 10)])
    (row,) = rows(batch, "call")
    assert (row["id"], STATUSES[row["status"]], row["started_ns"], row["ended_ns"]) == (1, "ok", 10 * MS, 22 * MS)


def test_a_call_in_flight_is_a_row_that_says_running() -> None:
    batch = EventReducer(START_NS).take([*people(), started(1, 10, step=3)])
    (row,) = rows(batch, "call")
    assert (STATUSES[row["status"]], row["ended_ns"], row["step"]) == ("running", None, 3)


def test_a_call_that_ends_in_a_later_batch_is_written_whole() -> None:
    reducer = EventReducer(START_NS)
    reducer.take([*people(), started(1, 10, step=3)])
    (row,) = rows(reducer.take([finished(1, 22)]), "call")
    assert (row["id"], STATUSES[row["status"]], row["step"], row["shard_sizes"]) == (1, "ok", 3, "4,4")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("apart", [False, True])
def test_totals_are_the_same_in_whatever_order_spans_and_end_of_a_call_come(
    order: tuple[int, ...], apart: bool
) -> None:
    events: list[Event] = [span(1, 0, 13, 19), span(1, 1, 13, 21), finished(1, 22)]
    reducer = EventReducer(START_NS)
    batches = [reducer.take([*people(), started(1, 10)])]
    shuffled = [events[i] for i in order]
    batches += [reducer.take([event]) for event in shuffled] if apart else [reducer.take(shuffled)]
    batches.append(reducer.take([], closing=True))
    last = {row["rank"]: row for batch in batches for row in rows(batch, "lane")}
    assert (last[0]["n_calls"], last[0]["busy_ns"], last[0]["lost_ns"]) == (1, 6 * MS, 0)
    assert (last[1]["n_calls"], last[1]["busy_ns"], last[1]["lost_ns"], last[1]["n_slowest"]) == (1, 8 * MS, MS, 1)
    methods = {row["name"]: row for batch in batches for row in rows(batch, "method")}
    assert (methods["update"]["n_calls"], methods["update"]["total_ns"]) == (1, 12 * MS)
    spans = [row for batch in batches for row in rows(batch, "rank_span")]
    assert {row["method_id"] for row in spans} == {methods["update"]["id"]}
    busy = [row for batch in batches for row in rows(batch, "roll") if row["level"] == 5]
    assert {lane: sum(row["busy_ns"] for row in busy if row["lane_id"] == lane) for lane in (0, 1, 2)} == {
        0: 12 * MS,
        1: 6 * MS,
        2: 8 * MS,
    }


def test_lost_time_is_above_the_median_of_the_ranks() -> None:
    by_rank = lanes(*one_call(1, 10, (5.0, 6.0, 9.0)), *one_call(2, 30, (7.0, 6.0, 8.0)))
    assert [by_rank[rank]["lost_ns"] for rank in range(3)] == [0, 0, 4 * MS]
    assert [by_rank[rank]["n_slowest"] for rank in range(3)] == [0, 0, 2]


def test_a_rank_that_never_said_when_it_ran_makes_nobody_a_straggler() -> None:
    events: list[Event] = [
        started(1, 10),
        span(1, 0, 13, 14),
        silent_span(1, 1, 13, 90),
        finished(1, 100, status="died"),
    ]
    by_rank = lanes(*events)
    assert [by_rank[rank]["lost_ns"] for rank in (0, 1)] == [0, 0]
    assert [by_rank[rank]["n_slowest"] for rank in (0, 1)] == [0, 0]


def test_a_silent_rank_is_drawn_from_submission_to_readiness_and_marked() -> None:
    batch = EventReducer(START_NS).take([*people(), started(1, 10), silent_span(1, 0, 13, 20), span(1, 1, 13, 20)])
    silent, told = rows(batch, "rank_span")
    assert (silent["began_ns"], silent["ended_ns"], silent["said"]) == (silent["submitted_ns"], silent["ready_ns"], 0)
    assert (told["began_ns"], told["ended_ns"], told["said"]) == (13 * MS, 20 * MS, SAID_START | SAID_END)


def test_a_call_to_one_rank_is_settled_when_its_time_is_up() -> None:
    reducer = EventReducer(START_NS)
    reducer.take([*people(3), started(1, 10), span(1, 0, 13, 19), span(1, 1, 13, 25), finished(1, 26)])
    assert not rows(reducer.take([], now_ns=at(5_000)), "lane")
    settled = {row["rank"]: row["n_slowest"] for row in rows(reducer.take([], now_ns=at(11_000)), "lane")}
    assert settled == {0: 0, 1: 1}


def test_a_future_is_added_up_when_its_value_is_asked_for_after_the_call_ended() -> None:
    reducer = EventReducer(START_NS)
    reducer.take([*people(), started(1, 10, blocking=False), finished(1, 22)])
    batch = reducer.take([CallAwaited(1, at(50), 7 * MS, 2 * MS, 3 * MS)])
    (method,) = rows(batch, "method")
    assert (method["wait_ns"], method["collect_ns"], method["unpad_ns"]) == (10 * MS, 6 * MS, 8 * MS)
    driver = [row for row in rows(batch, "roll") if row["level"] == 0]
    assert [(row["lane_id"], row["busy_ns"], row["n"]) for row in driver] == [(0, 12 * MS, 0)]


def test_a_future_asked_for_before_its_call_ended_keeps_what_it_cost() -> None:
    reducer = EventReducer(START_NS)
    reducer.take([*people(), started(1, 10, blocking=False)])
    reducer.take([CallAwaited(1, at(12), 7 * MS, 2 * MS, 3 * MS)])
    (row,) = rows(reducer.take([finished(1, 22)]), "call")
    assert (row["awaited_ns"], row["wait_ns"], row["collect_ns"], row["unpad_ns"]) == (12 * MS, 7 * MS, 2 * MS, 3 * MS)


@pytest.mark.parametrize("awaited_first", [False, True])
def test_a_call_whose_value_could_not_be_unpadded_failed_once(awaited_first: bool) -> None:
    asked = CallAwaited(1, at(50), 1, 1, 1, ErrorFacts("RowIdentityError", "7 rows came back as 9"))
    tail: list[Event] = [asked, finished(1, 60)] if awaited_first else [finished(1, 40), asked]
    batch = EventReducer(START_NS).take([*people(), started(1, 10, blocking=False), *tail])
    assert batch.n_failed_calls == 1
    assert rows(batch, "method")[0]["n_failed"] == 1
    assert [row["kind"] for row in rows(batch, "event")].count("call") == 1


def test_an_error_becomes_columns_of_the_call_and_a_line_among_the_events() -> None:
    error = ErrorFacts("ValueError", "bad shape\nin detail", "Traceback ...", 1)
    batch = EventReducer(START_NS).take(
        [*people(), started(1, 10), finished(1, 20, status="error")._replace(error=error)]
    )
    (row,) = rows(batch, "call")
    assert (row["error_type"], row["error_message"], row["error_traceback"], row["error_rank"]) == (
        "ValueError",
        "bad shape\nin detail",
        "Traceback ...",
        1,
    )
    assert rows(batch, "event")[-1]["text"] == "call 1 actor.update error on rank 1: ValueError: bad shape"
    assert batch.n_failed_calls == 1


def test_texts_of_the_user_s_code_are_left_out_when_asked() -> None:
    error = ErrorFacts("ValueError", "bad secret", "Traceback with a secret", 1)
    report = DeathReport("actor", "w", "a", "killed by signal 9", log_tail=("a secret",))
    events = [
        *people(),
        started(1, 10),
        finished(1, 20, status="error")._replace(error=error),
        started(2, 30, blocking=False),
        finished(2, 40),
        CallAwaited(2, at(50), 1, 1, 1, error),
        WorkerEnded(at(60), "actor", 0, True, "gone", report=report),
        OperationChanged(at(70), "op", "resize", "train", "failed", "me", None, error="load_state said a secret"),
    ]
    batch = EventReducer(START_NS, tracebacks=False).take(events)
    assert "secret" not in str(batch.statements)
    assert "ValueError" in str(batch.statements)
    assert str(EventReducer(START_NS).take(events).statements).count("secret") >= 7


def test_an_end_without_a_start_is_refused_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "podium.store"):
        batch = EventReducer(START_NS).take([finished(99, 10), StepFinished(at(1), 4, ())])
    assert (batch.n_events, batch.n_refused) == (2, 2)
    assert not rows(batch, "call")


def test_every_event_of_core_has_its_place_in_the_record() -> None:
    assert set(get_args(Event)) <= EventReducer(START_NS)._on.keys()


def test_something_nobody_knows_does_not_stop_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "podium.store"):
        batch = EventReducer(START_NS).take([object(), *people(), *one_call(1, 10)])
    assert batch.n_refused == 1
    assert len(rows(batch, "call")) == 1


def test_a_span_of_a_group_that_nobody_announced_still_finds_a_lane() -> None:
    batch = EventReducer(START_NS).take([span(5, 3, 1, 2)._replace(group="late")])
    assert rows(batch, "lane")[0]["rank"] == 3
    assert rows(batch, "worker_group")[0]["name"] == "late"
    assert rows(batch, "rank_span")[0]["method_id"] == 0


def test_rows_come_after_the_rows_they_refer_to() -> None:
    batch = EventReducer(START_NS).take([*people(), *one_call(1, 10)])
    order = [statement.split("INTO ")[1].split(" ")[0] for statement, _ in batch.statements]
    for before, after in itertools.pairwise(["pool", "worker_group", "lane", "worker"]):
        assert order.index(before) < order.index(after)
    assert order.index("word") < order.index("method")


def test_a_worker_told_of_twice_is_one_row_and_another_process_on_its_rank_is_a_second() -> None:
    reducer = EventReducer(START_NS)
    first = people(1)
    assert len(rows(reducer.take([*first, *first]), "worker")) == 1
    assert isinstance(first[1], WorkerStarted)
    restarted = replace(first[1], pid=7777, at_ns=at(500))
    both = rows(reducer.take([restarted]), "worker")
    assert [(row["pid"], row["state"]) for row in both] == [(1000, "ended"), (7777, "alive")]


def test_a_worker_that_died_says_so_and_a_closed_group_ends_the_others() -> None:
    reducer = EventReducer(START_NS)
    reducer.take(people())
    batch = reducer.take(
        [
            WorkerEnded(at(50), "actor", 1, True, "SIGKILL", 1001, "10.0.0.1", "update", 7),
            GroupClosed(at(60), "actor", "train"),
        ]
    )
    states = {row["name"]: (row["state"], row["ended_ns"], row["reason"]) for row in rows(batch, "worker")}
    assert states["actor-1"] == ("died", 50 * MS, "SIGKILL")
    assert states["actor-0"][:2] == ("ended", 60 * MS)
    assert any(
        "rank 1 of actor (pid 1001 on 10.0.0.1) died during update (call 7): SIGKILL" in row["text"]
        for row in rows(batch, "event")
    )


def test_steps_keep_their_metrics_and_a_number_used_twice_is_two_steps() -> None:
    reducer = EventReducer(START_NS)
    events = [
        StepStarted(at(1), 1, 2),
        StepFinished(at(2), 1, (("reward", 0.5),)),
        StepStarted(at(3), 1, 2),
        StepFinished(at(4), 1, (("reward", 0.7), ("loss", 2))),
    ]
    batch = reducer.take(events)
    assert [(row["id"], row["number"], row["ended_ns"]) for row in rows(batch, "step")] == [
        (1, 1, 2 * MS),
        (2, 1, 4 * MS),
    ]
    assert [(row["step_id"], row["name"], row["value"]) for row in rows(batch, "step_metric")] == [
        (1, "reward", 0.5),
        (2, "reward", 0.7),
        (2, "loss", 2.0),
    ]


def test_operations_and_audit_entries_ask_for_a_commit_that_survives_a_power_cut() -> None:
    reducer = EventReducer(START_NS)
    assert not reducer.take([Notice(at(1), "info", "hello")]).durable
    assert reducer.take([OperationChanged(at(1), "op", "pause", "train", "pending", "ada", None)]).durable
    assert reducer.take([AuditFacts(at(2), "ada", "::1", "curl", "r1", "pause", "train", 3, "asked")]).durable
    assert not reducer.take([Notice(at(3), "info", "hello")]).durable


def test_an_operation_keeps_when_it_was_made_and_what_was_before() -> None:
    reducer = EventReducer(START_NS)
    reducer.take([OperationChanged(at(1), "op", "pause", "train", "pending", "ada", 3, before="active")])
    (row,) = rows(
        reducer.take([OperationChanged(at(9), "op", "pause", "train", "succeeded", "ada", 3, after="paused")]),
        "operation",
    )
    assert (row["created_ns"], row["updated_ns"], row["before"], row["after"]) == (MS, 9 * MS, "active", "paused")


@pytest.mark.parametrize("model", [Pool, WorkerGroup, Worker])
def test_rows_of_places_have_a_value_for_every_column(model: type[Any]) -> None:
    batch = EventReducer(START_NS).take(people())
    for row in rows(batch, str(model.__tablename__)):
        assert tuple(row) == column_names(model)


def test_a_text_of_megabytes_is_cut_in_every_table_with_how_much() -> None:
    long = "x" * 1_000_000
    report = DeathReport("Actor", "w", "id", long, evidence=(long, long), log_tail=(long, f"{long}the end"))
    told = [
        *people(),
        Notice(at(1), "error", long),
        PoolStateChanged(at(1), "train", "failed", 2, long),
        GroupRebuilt(at(1), "actor", "train", 2, 1, long),
        WorkerEnded(at(2), "actor", 1, True, long, report=report),
        OperationChanged(at(3), "op-1", "resize", "train", "failed", "ada", None, error=long, progress=long),
        StepStarted(at(4), 1, 2),
        StepFinished(at(5), 1, ((long, 1.0),)),
        started(1, 6),
        finished(1, 7, status="error")._replace(error=ErrorFacts("ValueError", long, long)),
        AuditFacts(at(8), "control", "", "", "", "pause", "train", None, "refused", detail=long),
    ]
    batch = EventReducer(START_NS).take(told, closing=True)
    texts = [value for _, values in batch.statements for row in values for value in row if isinstance(value, str)]
    cut = [text for text in texts if "characters were cut)" in text]
    assert max(map(len, texts)) < 70_000
    for table in (
        "event",
        "pool",
        "group_generation",
        "worker",
        "death",
        "operation",
        "step_metric",
        "call",
        "audit_entry",
    ):
        assert any(value in cut for row in rows(batch, table) for value in row.values()), table
    (death,) = rows(batch, "death")
    assert death["log_tail"].endswith("the end")
    assert death["cause"].endswith("(996,000 more characters were cut)")


def test_every_event_has_a_handler() -> None:
    assert set(event_classes()) - set(EventReducer(0)._on) == set()
