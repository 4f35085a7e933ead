"""The pages Post-mortem, Workers, Pools and Operations: what they conclude from the record, and how they say it."""

from __future__ import annotations

import faulthandler
import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit import web_sample_life
from tests.unit.web_sample import SampleRun
from tests.unit.web_sample_life import CRASH_TEXT
from web import heatmap, operations, padding, pool_map, postmortem, stragglers, units, workers
from web.calls import CallFilter
from web.frame import Frame
from web.plans import load_plan, plan_view
from web.rendering import render_page
from web.rows import CallInFlight, Death, Operation, Pool, PoolGeneration, RankOut, RankTotal, Run, Slot, Worker
from web.verdicts import verdicts

NOW_MS = 150_000.0
MID_CALL_MS = 149_800.0


@pytest.fixture
def dead() -> SampleRun:
    source = SampleRun(NOW_MS)
    source.died = True
    return source


def run(state: str) -> Run:
    return replace(SampleRun(NOW_MS).run(), state=state)


def a_death(policy: str = "abort", at_ms: float = NOW_MS - 500.0) -> Death:
    (death,) = web_sample_life.deaths(SampleRun(NOW_MS).workers()[-1], (), at_ms, evil=False)
    return replace(death, policy=policy)


# Post-mortem


def test_the_page_of_a_killed_run_says_died_when_and_who_was_first(dead: SampleRun) -> None:
    text = render_page("postmortem", dead, Frame("postmortem"))
    assert "The driver died." in text
    assert "at 2:30.000" in text
    assert 'datetime="2026-11-29T22:17:30Z">' in text
    assert "First dead worker: rollout · rank 3" in text
    for said in (
        "killed by signal 9 (SIGKILL): out of memory",
        "15.8 GiB of 16.0 GiB",
        "oom_kill rose from 0 to 1",
        "kv cache grown to 11.2 GiB",
        "Fatal Python error: Aborted",
        "node-1",
        "41323",
        "rank 0",
    ):
        assert said in text, said


def test_the_calls_in_flight_name_the_ranks_that_were_out_and_for_how_long(dead: SampleRun) -> None:
    (call,) = dead.in_flight(10)
    text = render_page("postmortem", dead, Frame("postmortem"))
    assert f'href="/calls/{call.id}"' in text
    assert f"{len(call.out)} of {call.n_ranks} pending:" in text
    assert re.search(r"rank 1 <span class=\"dim\">\d+ ms", text)
    assert f"<b>in {call.group}.{call.method}</b>" in text


def test_a_run_that_ended_well_says_that_nothing_died() -> None:
    class Ended(SampleRun):
        def run(self) -> Run:
            return replace(super().run(), state="ended")

    text = render_page("postmortem", Ended(NOW_MS), Frame("postmortem"))
    assert "The run ended normally. No worker died." in text
    assert "First dead worker" not in text
    assert "Stacks of the driver" not in text


def test_a_run_that_goes_on_says_so_and_shows_what_died_so_far() -> None:
    running = postmortem.verdict(run("running"), (a_death("restart"),), "")
    assert running.headline == "The run is in progress."
    assert running.because.startswith("One worker died so far. First: rollout · rank 3")


@pytest.mark.parametrize(
    ("deaths", "crash_text", "says"),
    [
        ((a_death(),), CRASH_TEXT, "Caused by the death of rollout · rank 3"),
        ((a_death(),), "", "Caused by the death of rollout · rank 3"),
        ((a_death(at_ms=1000.0),), "", "most likely SIGKILL"),
        ((a_death("restart"),), "", "most likely SIGKILL"),
        ((), CRASH_TEXT, "Ended by SIGABRT"),
        ((), "Fatal Python error: Segmentation fault\n\nThread", "Ended by SIGSEGV, a fault in native code"),
        ((a_death(),), "Fatal Python error: Bus error\n", "Ended by SIGBUS"),
        ((), "", "the kernel log of trainer-0"),
    ],
)
def test_why_the_driver_died_is_no_more_than_the_file_can_prove(
    deaths: tuple[Death, ...], crash_text: str, says: str
) -> None:
    assert says in postmortem.verdict(run("died"), deaths, crash_text).because


def test_the_state_pill_and_the_overview_of_a_dead_run_lead_to_the_post_mortem(dead: SampleRun) -> None:
    text = render_page("overview", dead, Frame("overview"))
    assert re.search(r'class="pill-link" href="/postmortem"', text)
    assert text.count('href="/postmortem"') >= 3
    alive = render_page("overview", SampleRun(NOW_MS), Frame("overview"))
    assert "pill-link" not in alive


def test_a_rank_at_the_end_is_in_its_call_or_idle_since_its_last_one(dead: SampleRun) -> None:
    seen = dead.timeline(NOW_MS - 60_000.0, NOW_MS, 1200)
    found = postmortem.ranks_at_end(seen, dead.in_flight(9), dead.workers(), dead.deaths())
    ranks = {(r.lane.group, r.lane.rank): r for r in found}
    (call,) = dead.in_flight(9)
    stuck = ranks[call.group, call.out[0].rank]
    assert (stuck.doing, stuck.call_id, stuck.for_ms) == ("in", call.id, call.out[0].out_ms)
    idle = ranks["rollout", 2]
    assert (idle.doing, idle.state) == ("idle since", "alive")
    assert idle.for_ms is not None
    assert idle.for_ms > 0
    gone = ranks["rollout", 3]
    assert (gone.doing, gone.state, gone.for_ms) == ("dead since", "died", pytest.approx(120.0))


def test_what_could_not_be_recorded_is_told_on_the_post_mortem(dead: SampleRun) -> None:
    text = render_page("postmortem", dead, Frame("postmortem"))
    assert "disk full" in text
    assert "12 events" in text


# Workers


def worker(rank: int, state: str, pid: int, started_ms: float, ended_ms: float | None) -> Worker:
    return Worker(
        "rollout", "gpus", rank, rank, f"w{rank}", pid, "node-0", "a", "0", state, started_ms, ended_ms, "gone"
    )


def test_a_rank_that_died_and_came_back_is_restarted_and_keeps_its_cause() -> None:
    lives = (worker(0, "died", 11, 0.0, 400.0), worker(0, "alive", 12, 500.0, None), worker(1, "died", 13, 0.0, 900.0))
    first, second = workers.worker_lanes(lives, (), 1000.0)
    assert (first.state, first.worker.pid, first.cause) == ("restarted", 12, "gone")
    assert [(life.left, life.width) for life in first.lives] == [(0.0, 40.0), (50.0, 50.0)]
    assert (second.state, second.cause) == ("dead", "gone")


def test_a_worker_that_a_live_change_replaced_is_no_restart() -> None:
    lives = (worker(0, "ended", 11, 0.0, 400.0), worker(0, "alive", 12, 500.0, None))
    (lane,) = workers.worker_lanes(lives, (), 1000.0)
    assert (lane.state, lane.cause) == ("alive", "")


def test_the_workers_page_says_pid_clock_and_cause_and_can_be_narrowed(dead: SampleRun) -> None:
    text = render_page("workers", dead, Frame("workers"))
    assert text.count("data-worker=") == 8
    assert "killed by signal 9 (SIGKILL): out of memory" in text
    assert "−0.20 ms" in text
    assert "± 0.12 ms" in text
    assert '<span data-count="dead">1 dead</span>' in text
    only = render_page("workers", dead, Frame("workers", params={"state": "dead"}))
    assert re.findall(r'data-worker="([^"]+)"', only) == ["rollout/3"]
    none = render_page("workers", dead, Frame("workers", params={"group": "nobody"}))
    assert "No worker matches group <code>nobody</code>" in none
    assert render_page("workers", dead, Frame("workers", params={"state": "odd"})).count("data-worker=") == 8


# Pools


def test_the_map_has_a_column_per_node_and_stacks_what_shares_a_slot() -> None:
    source = SampleRun(NOW_MS)
    found = pool_map.pool_map(source.pools(), source.workers(), source.pool_generations(), ())
    assert found.nodes == ("node-0", "node-2", "node-3")
    train, generation = found.rows
    assert [[(o.worker.group, o.worker.rank) for o in cell.occupants] for cell in train.cells] == [
        [("actor", 0), ("critic", 0)],
        [("actor", 1), ("critic", 1)],
    ]
    assert [len(column) for column in generation.columns] == [0, 2, 2]
    assert found.n_cells("busy") == 6


def test_a_slot_without_a_living_worker_is_free_or_dead() -> None:
    pool = Pool("gpus", "active", 1, (3,), 3, ("rollout",))
    lives = (worker(0, "alive", 11, 0.0, None), worker(1, "died", 12, 0.0, 5.0), worker(2, "ended", 13, 0.0, 5.0))
    (row,) = pool_map.pool_map((pool,), lives, (), ()).rows
    assert [cell.state for cell in row.cells] == ["busy", "dead", "free"]


def test_pools_that_are_closed_are_not_shown_and_nodes_are_in_natural_order() -> None:
    pools = tuple(
        Pool(name, state, 1, (1,), 1, ()) for name, state in (("a", "active"), ("b", "closed"), ("c", "active"))
    )
    made = tuple(PoolGeneration(name, 1, 0.0, (1,), (Slot(0, node, 0),)) for name, node in (("a", "n10"), ("c", "n9")))
    shown = pool_map.standing(pools, ())
    assert [pool.name for pool in shown] == ["a", "c"]
    assert pool_map.pool_map(shown, (), made, ()).nodes == ("n9", "n10")


def _change(number: int, kind: str, before: list[str], after: list[str]) -> Operation:
    pools = [{"pool": name, "before": [1], "after": [], "generation": 1} for name in before]
    pools += [{"pool": name, "before": [], "after": [1], "generation": 0} for name in after]
    plan = {"kind": kind, "pools": pools, "groups": []}
    return Operation(f"op-{number}", kind, before[0], "succeeded", "me", 0.0, 1.0, "", "", "", plan=plan)


def test_a_run_that_is_over_shows_its_pools_as_they_were_at_its_end() -> None:
    pools = tuple(Pool(name, "closed", 1, (1,), 1, ()) for name in ("all", "train", "rollout"))
    split = _change(1, "split", ["all"], ["train", "rollout"])
    merge = _change(2, "merge", ["train", "rollout"], ["all"])
    split_last = operations.operation_rows((split,), ())
    assert [pool.name for pool in pool_map.standing(pools, split_last)] == ["train", "rollout"]
    merge_last = operations.operation_rows((merge, split), ())
    assert [pool.name for pool in pool_map.standing(pools, merge_last)] == ["all"]
    last = replace(worker(0, "ended", 11, 0.0, 9.0), pool="all")
    (row,) = pool_map.pool_map(pools[:1], (last,), (), ()).rows
    assert [(cell.state, cell.occupants[0].worker.pid) for cell in row.cells] == [("ended", 11)]


def test_the_slots_of_a_pool_that_the_record_has_not_yet_come_from_its_shape() -> None:
    pool = Pool("gpus", "active", 2, (1, 2), 3, ("rollout",))
    old = PoolGeneration("gpus", 1, 0.0, (1,), (Slot(0, "node-7", 0),))
    (row,) = pool_map.pool_map((pool,), (worker(0, "alive", 11, 0.0, None),), (old,), ()).rows
    assert [(cell.slot.index, cell.slot.node) for cell in row.cells] == [(0, "node-0"), (1, "node 2"), (2, "node 2")]


def test_actions_are_there_only_for_who_may_take_them() -> None:
    source = SampleRun(NOW_MS)
    may = render_page("pools", source, Frame("pools", controllable=True, csrf="secret-7"))
    assert set(re.findall(r'data-change="(\w+)"', may)) == {"pause", "resize", "split", "merge", "move"}
    may_not = render_page("pools", source, Frame("pools", control_hint="Start with --control."))
    assert "data-change" not in may_not
    assert may_not.count("Start with --control.") >= 3
    source.pool_states["train"] = "paused"
    assert 'data-change="resume"' in render_page("pools", source, Frame("pools", controllable=True))


def test_the_pools_page_shows_the_change_that_made_them_what_they_are() -> None:
    text = render_page("pools", SampleRun(NOW_MS), Frame("pools"))
    history = text[text.index("Change history</h2>") :]
    assert re.findall(r'data-operation="([^"]+)"', history) == ["op-2"]
    assert "rebuilt, state carried over" in history
    assert "2 → 4 ranks" in history
    empty = render_page("pools", SampleRun(NOW_MS, is_empty=True), Frame("pools"))
    assert "Resizes, splits, merges and moves appear here" in empty


# Operations


def test_every_operation_and_every_attempt_has_a_line() -> None:
    text = render_page("operations", SampleRun(NOW_MS), Frame("operations"))
    assert re.findall(r'data-operation="([^"]+)"', text) == ["op-3", "op-2", "op-1"]
    assert re.findall(r'data-outcome="([^"]+)"', text) == ["accepted", "refused", "accepted"]
    for said in ("1.30 s", "740 ms", "no room", "127.0.0.1", "is at generation 2, not 1"):
        assert said in text, said


def test_an_operation_without_a_plan_or_with_one_that_cannot_be_read_shows_none() -> None:
    plain = Operation("op", "pause", "gpus", "succeeded", "driver", 0.0, 1.0, "active", "paused", "")
    for plan in ("", "not json", "[]", "{}", '{"pools": [{"pool": "a"}], "groups": []}', '{"pools": 3, "groups": 4}'):
        (row,) = operations.operation_rows((replace(plain, plan=load_plan(plan)),), ())
        assert row.plan is None or row.plan.before == (), plan


def test_a_plan_is_a_map_before_and_a_map_after() -> None:
    text = json.dumps(
        {
            "kind": "split",
            "pools": [
                {"pool": "all", "before": [4], "after": [], "generation": 3},
                {"pool": "train", "before": [], "after": [2], "generation": 1},
                {"pool": "rollout", "before": [], "after": [2], "generation": 1},
            ],
            "groups": [
                {
                    "group": "actor",
                    "from_pool": "all",
                    "to_pool": "train",
                    "world_size_before": 4,
                    "world_size_after": 2,
                    "how": "state",
                }
            ],
            "prepared": False,
            "why_not_prepared": "no slot is free",
            "drains": ["call 42 actor.update, 3.1 s"],
            "lost": [],
            "stand_still_s": 3.5,
        }
    )
    plan = plan_view(load_plan(text))
    assert plan is not None
    assert [(box.name, box.process_on_nodes, box.groups) for box in plan.before] == [("all", (4,), (("actor", 4),))]
    assert [(box.name, box.groups) for box in plan.after] == [("train", (("actor", 2),)), ("rollout", ())]
    assert (plan.not_prepared_reason, plan.downtime_ms) == ("no slot is free", 3500.0)


def test_older_operations_and_entries_are_a_link_away() -> None:
    text = render_page("operations", SampleRun(NOW_MS), Frame("operations", params={"before": "op-3"}))
    assert re.findall(r'data-operation="([^"]+)"', text) == ["op-2", "op-1"]
    text = render_page("operations", SampleRun(NOW_MS), Frame("operations", params={"audit_before": "2"}))
    assert len(re.findall("data-outcome", text)) == 1
    for nonsense in ("x", "9" * 40, "²", "-1"):
        text = render_page("operations", SampleRun(NOW_MS), Frame("operations", params={"audit_before": nonsense}))
        assert len(re.findall("data-outcome", text)) == 3


# Now


def test_a_call_whose_ranks_have_all_answered_says_so() -> None:
    class Collecting(SampleRun):
        def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
            return (CallInFlight(7, "actor", "train", "update", True, 1.0, 99.0, 2, ()),)

    assert "all 2 ranks returned" in render_page("postmortem", Collecting(NOW_MS), Frame("postmortem"))


def test_many_ranks_that_are_out_are_cut_short() -> None:
    class Wide(SampleRun):
        def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
            out = tuple(RankOut(rank, 10.0) for rank in range(64))
            return (CallInFlight(7, "actor", "train", "update", True, 1.0, 99.0, 64, out),)

    assert "and 48 more" in render_page("postmortem", Wide(NOW_MS), Frame("postmortem"))


def stacks_of_three_threads(folder: Path, dump_from_other: bool) -> str:
    """Return what faulthandler writes of the main thread and two others, one of which may write it."""
    release = threading.Event()
    others = [threading.Thread(target=release.wait, daemon=True) for _ in range(2)]
    with (folder / "stacks").open("w+", encoding="utf-8") as file:
        dumper = threading.Thread(target=faulthandler.dump_traceback, args=(file,))
        for thread in others:
            thread.start()
        if dump_from_other:
            dumper.start()
            dumper.join()
        else:
            faulthandler.dump_traceback(file)
        release.set()
        file.seek(0)
        return "Fatal Python error: Aborted\n\n" + file.read() + "\nExtension modules: numpy (total: 1)\n"


@pytest.mark.parametrize("dump_from_other", [True, False])
def test_the_main_thread_is_the_first_in_the_stacks_of_a_crash(tmp_path: Path, dump_from_other: bool) -> None:
    text = stacks_of_three_threads(tmp_path, dump_from_other)
    shown = postmortem.main_thread_first(text)
    head, main, *rest = shown.split("\n\n")
    assert head == "Fatal Python error: Aborted"
    assert main.startswith("Main thread 0x" if dump_from_other else "Main thread, current 0x")
    assert "in stacks_of_three_threads" in main
    assert not any("in stacks_of_three_threads" in other for other in rest)
    assert sorted(re.findall(r'  File "[^"]+", line .+', shown)) == sorted(re.findall(r'  File "[^"]+", line .+', text))
    assert shown.rstrip().endswith("Extension modules: numpy (total: 1)")


def test_stacks_of_which_the_main_thread_was_cut_stay_as_they_are() -> None:
    cut = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n\n...\n'
    assert postmortem.main_thread_first(cut) == cut
    assert postmortem.main_thread_first("") == ""


# Latency, Stragglers, Data


def test_the_latency_page_shows_the_method_that_is_asked_for_else_the_slowest() -> None:
    source = SampleRun(NOW_MS)
    slowest = render_page("heatmap", source, Frame("heatmap"))
    assert '<h2 id="heat-title">rollout.generate_sequences</h2>' in slowest
    asked = Frame("heatmap", params={"group": "actor", "method": "update_actor", "last": "60"})
    text = render_page("heatmap", source, asked)
    assert '<h2 id="heat-title">actor.update_actor</h2>' in text
    block = re.search(r'id="latency-data">(.*?)</script>', text)
    assert block is not None
    shown = json.loads(block[1])
    n_calls = next(one.n_calls for one in source.latencies(NOW_MS - 60_000.0, None) if one.method == "update_actor")
    assert sum(map(sum, shown["counts"])) == n_calls
    assert (
        sum(n for *_, n in heatmap.filled_cells(source.latency_map("actor", "update_actor", 90_000.0, None, 9)))
        == n_calls
    )
    for nonsense in ("x", "-5", "0", "9" * 40):
        assert "generate_sequences" in render_page("heatmap", source, Frame("heatmap", params={"last": nonsense}))
    block = re.search(r'id="ranks-data" data-group="actor">(.*?)</script>', text)
    assert block is not None
    assert [len(row) for row in json.loads(block[1])["over_median"]] == [json.loads(block[1])["n_buckets"]] * 2
    empty = render_page("heatmap", SampleRun(NOW_MS, is_empty=True), Frame("heatmap"))
    assert "No finished calls yet" in empty


def test_a_slow_rank_is_first_and_its_verdict_names_ratio_and_node() -> None:
    source = SampleRun(NOW_MS)
    text = render_page("stragglers", source, Frame("stragglers"))
    assert re.findall(r'data-rank="([^"]+)"', text)[0] == "rollout/3"
    assert "1 rank slow" in text
    assert re.search(r"<b>rank 3</b> on node-1: 1\.2\dx the other ranks, late in \d+ of \d+ calls", text)
    nodes = stragglers.nodes_of(source.workers())
    judged = verdicts(source.rank_runs(), nodes)
    assert {(one.method, slow.rank) for one in judged for slow in one.slow} == {
        ("generate_sequences", 3),
        ("load_weights", 3),
    }
    found = stragglers.stragglers(source.overview().ranks, source.workers(), judged)
    assert [one.total.rank for one in found if one.is_slow] == [3]
    assert found[0].share > 0.9
    assert all(one.total.lost_ms <= 0.05 * found[0].total.lost_ms for one in found[1:] if one.total.group == "rollout")
    node = stragglers.by_node(found)[0]
    assert (node.node, node.n_slow) == ("node-1", 1)
    only = render_page("stragglers", source, Frame("stragglers", params={"group": "actor"}))
    assert re.findall(r'data-rank="([^"/]+)/', only) == ["actor", "actor"]
    nobody = render_page("stragglers", source, Frame("stragglers", params={"group": "nobody"}))
    assert "No rank of group <code>nobody</code> has run a call" in nobody


def test_few_calls_and_ranks_that_are_alone_make_no_straggler() -> None:
    few = (RankTotal("a", 0, 3, 9.0, 9.0, 3), RankTotal("a", 1, 3, 9.0, 0.0, 0))
    alone = (RankTotal("b", 0, 99, 9.0, 9.0, 99),)
    assert not [one for one in stragglers.stragglers(few + alone, (), ()) if one.is_slow]


def test_stragglers_of_many_ranks_are_found_without_comparing_each_with_each() -> None:
    compared = []

    class Group(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return str.__eq__(self, str(other))

        __hash__ = str.__hash__

    ranks = tuple(RankTotal(Group("a"), rank, 99, 9.0, 9.0 if rank == 7 else 0.0, 99) for rank in range(300))
    assert stragglers.stragglers(ranks, (), ())[0].total.rank == 7
    assert len(compared) < 300 * 20


def test_the_sums_of_the_data_page_are_those_of_the_call_table() -> None:
    source = SampleRun(NOW_MS)
    text = render_page("data", source, Frame("data"))
    calls = source.calls(10_000, None, CallFilter()).items
    assert f"<b>{units.count(sum(call.rows for call in calls))}</b>" in text
    assert f"<b>{units.count(sum(call.padding_rows for call in calls))}</b>" in text
    by_step = padding.by_step(calls)
    assert sum(step.padding_rows for step in by_step) == sum(call.padding_rows for call in calls)
    assert by_step[0].step == max(call.step for call in calls)
    assert "No finished calls yet" in render_page("data", SampleRun(NOW_MS, is_empty=True), Frame("data"))


def test_time_spent_on_padding_is_its_share_of_what_the_ranks_were_waited_for() -> None:
    (total,) = (one for one in SampleRun(NOW_MS).overview().methods if one.method == "update_actor")
    total = replace(
        total, rows=60, padding_rows=20, wait_ms=1000.0, bytes_out=2**20, dispatch_ms=400.0, execute_ms=100.0
    )
    data = padding.method_data(total, n_ranks=4)
    assert (data.padding_share, data.wasted_ms, data.out_mib_per_s) == (0.25, 1000.0, 2.0)
    assert padding.method_data(replace(total, rows=0, padding_rows=0, bytes_out=0), 4).out_mib_per_s is None


def test_a_file_with_thousands_of_pools_and_nodes_gets_a_map_of_bounded_size() -> None:
    pools = tuple(Pool(f"p{i}", "active", 1, (1,), 1, (f"g{i}",)) for i in range(2_000))
    made = tuple(PoolGeneration(f"p{i}", 1, 0.0, (1,), (Slot(0, f"n{i}", 0),)) for i in range(2_000))
    found = pool_map.pool_map(pools, (), made, ())
    assert len(found.nodes) == 2_000
    assert sum(len(row.columns) for row in found.rows) == 20_000
    assert (len(found.rows), found.n_more) == (10, 1_990)
    assert [cell.slot.node for cell in found.rows[9].cells] == ["n9"]
