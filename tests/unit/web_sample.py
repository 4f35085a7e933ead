"""A made-up run for the tests of the pages: two pools, three groups, eight ranks, the same on every day.

``SampleRun`` answers as the store's reader does, of the run as it stood at ``now_ms``: what has not begun by then is
not there, and what has not ended is still running.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.unit import web_sample_life
from tests.unit.web_sample_calls import EVIL, GROUPS, METHODS, POOLS, SampleCall, sample_calls
from tests.unit.web_sample_life import CRASH_TEXT
from web.calls import CallDetail, CallFilter, CallPage
from web.latency import LatencyMap, MethodLatency, RankMap
from web.rank_runs import MethodRuns
from web.rows import (
    AuditEntry,
    CallInFlight,
    ConfigValue,
    Death,
    EventRow,
    Gap,
    Group,
    MethodTotal,
    Operation,
    Pool,
    PoolGeneration,
    RankSpan,
    RankTotal,
    RecorderState,
    Run,
    Step,
    Worker,
)
from web.source import MAX_BARS, Bars, DriverBars, Heat, Lane, Overview, Timeline
from web.steps import StepsSum


class SampleRun:
    """A ``RunSource`` of the made-up run. ``evil`` puts markup into every name; ``is_empty`` has no call at all."""

    def __init__(self, now_ms: Callable[[], float] | float, *, evil: bool = False, is_empty: bool = False) -> None:
        self._now_ms = now_ms if callable(now_ms) else (lambda: now_ms)
        self._evil = evil
        self._is_empty = is_empty
        self._calls = () if is_empty else tuple(sample_calls(evil))
        self.pool_states: dict[str, str] = {name: "active" for name, _, _ in POOLS}
        self.died = False

    def _known(self) -> list[SampleCall]:
        now_ms = self._now_ms()
        return [self._as_of(call, now_ms) for call in self._calls if call.row.started_ms <= now_ms]

    @staticmethod
    def _as_of(call: SampleCall, now_ms: float) -> SampleCall:
        if call.end_ms <= now_ms:
            return call
        spans = tuple(
            replace(
                span,
                started_ms=span.started_ms if (span.started_ms or 0) <= now_ms else None,
                finished_ms=span.finished_ms if (span.finished_ms or 0) <= now_ms else None,
                ready_ms=span.ready_ms if (span.ready_ms or 0) <= now_ms else None,
                status="ok" if (span.ready_ms or 0) <= now_ms else "running",
            )
            for span in call.spans
        )
        row = replace(call.row, status="running", duration_ms=now_ms - call.row.started_ms)
        wait_ms = max(min(now_ms - call.waited_from_ms, call.wait_ms), 0.0)
        return replace(call, row=row, spans=spans, wait_ms=wait_ms, collect_ms=0.0, unpad_ms=0.0, error="")

    def run(self) -> Run:
        calls = self._known()
        return Run(
            id="20261129-221500-ppo",
            name=EVIL if self._evil else "ppo-math-7b",
            script="examples/train_ppo.py",
            state="died" if self.died else "running",
            started_at="2026-11-29T22:15:00Z",
            duration_ms=self._now_ms(),
            host="trainer-0",
            pid=41233,
            podium_version="0.1.0",
            python_version="3.11.9",
            ray_version="2.60.0",
            n_calls=len(calls),
            n_failed_calls=sum(call.row.status == "error" for call in calls),
        )

    def recorder(self) -> RecorderState:
        return RecorderState(len(self._known()) * 9, 0, None, 84.0, 1_843_200)

    def _steps(self) -> tuple[Step, ...]:
        dice = random.Random(3)
        steps: dict[int, list[SampleCall]] = {}
        for call in self._known():
            steps.setdefault(call.row.step, []).append(call)
        found = []
        for index, calls in steps.items():
            wave = 1 - 0.93**index
            metrics = (
                ("reward/mean", 0.12 + 0.55 * wave + dice.uniform(-0.03, 0.03)),
                ("accuracy", 0.31 + 0.4 * wave + dice.uniform(-0.02, 0.02)),
                (EVIL if self._evil else "actor/kl", 0.002 + 0.03 * wave * dice.uniform(0.7, 1.3)),
            )
            is_over = len(calls) == len(METHODS) and calls[-1].row.status != "running"
            found.append(
                Step(
                    index=index,
                    total=60,
                    started_ms=calls[0].row.started_ms,
                    ended_ms=calls[-1].end_ms if is_over else None,
                    metrics=metrics if is_over else (),
                )
            )
        return tuple(found)

    def _methods(self) -> tuple[MethodTotal, ...]:
        groups: dict[tuple[str, str], list[SampleCall]] = {}
        for call in self._known():
            groups.setdefault((call.row.group, call.row.method), []).append(call)
        totals = [
            MethodTotal(
                group=group,
                method=method,
                n_calls=len(calls),
                n_failed=sum(c.row.status == "error" for c in calls),
                total_ms=sum(c.row.duration_ms for c in calls),
                mean_ms=sum(c.row.duration_ms for c in calls) / len(calls),
                max_ms=max(c.row.duration_ms for c in calls),
                gate_ms=sum(c.gate_ms for c in calls),
                dispatch_ms=sum(c.dispatch_ms for c in calls),
                execute_ms=sum(c.execute_ms for c in calls),
                wait_ms=sum(c.wait_ms for c in calls),
                collect_ms=sum(c.collect_ms for c in calls),
                unpad_ms=sum(c.unpad_ms for c in calls),
                rows=sum(c.row.rows for c in calls),
                padding_rows=sum(c.row.padding_rows for c in calls),
                bytes_out=sum(c.row.bytes_out for c in calls),
                bytes_in=sum(c.row.bytes_in for c in calls),
            )
            for (group, method), calls in groups.items()
        ]
        return tuple(sorted(totals, key=lambda total: -total.total_ms))

    def _ranks(self) -> tuple[RankTotal, ...]:
        totals: dict[tuple[str, int], RankTotal] = {}
        for call in self._known():
            ran = sorted((s.finished_ms or 0) - (s.started_ms or 0) for s in call.spans if s.finished_ms is not None)
            for span in call.spans:
                if span.finished_ms is None or span.started_ms is None:
                    continue
                ms = span.finished_ms - span.started_ms
                key = (call.row.group, span.rank)
                old = totals.get(key, RankTotal(call.row.group, span.rank, 0, 0.0, 0.0, 0))
                lost_ms = max(ms - ran[len(ran) // 2], 0.0)
                n_slowest = old.n_slowest + (ms == ran[-1])
                streak = old.streak + 1 if ms == ran[-1] else 0
                since_ms = call.row.started_ms - 1000.0 * streak
                longest = max((streak, since_ms), (old.longest_streak, old.longest_streak_from_ms))
                busy_ms, lost_ms = old.busy_ms + ms, old.lost_ms + lost_ms
                totals[key] = RankTotal(*key, old.n_calls + 1, busy_ms, lost_ms, n_slowest, streak, *longest)
        return tuple(sorted(totals.values(), key=lambda total: -total.lost_ms))

    def pools(self) -> tuple[Pool, ...]:
        return tuple(Pool(name, self.pool_states[name], 1, shape, sum(shape), groups) for name, shape, groups in POOLS)

    def workers(self) -> tuple[Worker, ...]:
        return tuple(
            Worker(
                group=group,
                pool=pool,
                rank=rank,
                local_rank=rank % 2,
                name=f"{group}_{rank}",
                pid=41300 + 10 * i + rank,
                node=f"node-{rank // 2}",
                actor_id=f"a{i}{rank}",
                devices=str(rank),
                state="died" if self.died and (group, rank) == ("rollout", 3) else "alive",
                started_ms=900.0,
                ended_ms=self._now_ms() if self.died and (group, rank) == ("rollout", 3) else None,
                reason="killed by SIGKILL, out of memory" if self.died else "",
                clock_offset_ms=0.3 * rank - 0.2,
                clock_error_ms=0.12,
                last_call_id=0 if self._is_empty else 100 + i,
                last_method="" if self._is_empty else "load_weights",
            )
            for i, (pool, group, n_ranks) in enumerate(GROUPS)
            for rank in range(n_ranks)
        )

    def _all_events(self) -> list[EventRow]:
        found = [
            EventRow(1, 210.0, "info", "pool_ready", "pool train: 2 processes on node-0"),
            EventRow(2, 480.0, "info", "pool_ready", "pool generation: 2 processes each on node-0, node-1"),
            EventRow(3, 1900.0, "info", "group_ready", "group rollout: 4 workers"),
            EventRow(4, 104_050.0, "info", "pool_state", "pool train: active → paused, asked by reader@browser"),
            EventRow(5, 105_900.0, "info", "pool_state", "pool train: paused → active, asked by reader@browser"),
            EventRow(
                6, 132_560.0, "error", "call_failed", f"call 187 on rollout · rank 3: {EVIL if self._evil else 'OOM'}"
            ),
            EventRow(7, 154_000.0, "warning", "stall", "call 221 has run 3.1 s; rank 3 has not answered"),
        ]
        return [one for one in found if one.at_ms <= self._now_ms()]

    def events(self, limit: int, cursor: int | None) -> tuple[EventRow, ...]:
        known = [one for one in self._all_events() if cursor is None or one.id < cursor]
        return tuple(sorted(known, key=lambda one: -one.id)[:limit])

    def overview(self) -> Overview:
        return Overview(
            run=self.run(),
            recorder=self.recorder(),
            steps=self._steps(),
            methods=self._methods(),
            ranks=self._ranks(),
            pools=self.pools(),
            workers=self.workers(),
            events=self.events(10, None),
            calls_per_s=1.87 if self._calls else 0.0,
        )

    def _lanes(self) -> tuple[Lane, ...]:
        if not self._calls:
            return ()
        workers = self.workers()
        return tuple(Lane(i, w.pool, w.group, w.rank, w.node, w.pid) for i, w in enumerate(workers))

    def timeline(self, from_ms: float | None, to_ms: float | None, px: int) -> Timeline:
        now_ms = self._now_ms()
        from_ms = 0.0 if from_ms is None else from_ms
        to_ms = now_ms if to_ms is None else to_ms
        calls = [c for c in self._known() if c.end_ms >= from_ms and c.row.started_ms <= to_ms]
        lanes = self._lanes()
        names = tuple(sorted({f"{c.row.group}.{c.row.method}" for c in calls}))
        is_heat = sum(len(c.spans) for c in calls) > MAX_BARS or px < 320
        return Timeline(
            from_ms=from_ms,
            to_ms=to_ms,
            run_ms=now_ms,
            mode="heat" if is_heat else "bars",
            lanes=lanes,
            methods=names,
            bars=Bars() if is_heat else self._bars(calls, lanes, names, to_ms),
            driver=DriverBars() if is_heat else self._driver(calls, names),
            heat=self._heat(calls, lanes, from_ms, to_ms, px) if is_heat else Heat(),
            steps=tuple(s for s in self._steps() if s.started_ms <= to_ms and (s.ended_ms or now_ms) >= from_ms),
            markers=tuple(one for one in self._all_events() if from_ms <= one.at_ms <= to_ms),
        )

    def spans(self, from_ms: float | None, to_ms: float | None) -> Timeline | None:
        return self.timeline(from_ms, to_ms, 10_000)

    @staticmethod
    def _spans(
        calls: list[SampleCall], lanes: tuple[Lane, ...], to_ms: float
    ) -> list[tuple[int, SampleCall, RankSpan, float]]:
        lane_of = {(lane.group, lane.rank): lane.index for lane in lanes}
        found = [
            (lane_of[(c.row.group, s.rank)], c, s, to_ms if s.finished_ms is None else s.finished_ms)
            for c in calls
            for s in c.spans
            if s.started_ms is not None
        ]
        return sorted(found, key=lambda one: one[0])

    def _bars(self, calls: list[SampleCall], lanes: tuple[Lane, ...], names: tuple[str, ...], to_ms: float) -> Bars:
        spans = self._spans(calls, lanes, to_ms)
        return Bars(
            lane=[lane for lane, _, _, _ in spans],
            call_id=[c.row.id for _, c, _, _ in spans],
            method=[names.index(f"{c.row.group}.{c.row.method}") for _, c, _, _ in spans],
            start_ms=[s.started_ms or 0.0 for _, _, s, _ in spans],
            end_ms=[end_ms for _, _, _, end_ms in spans],
            queued_ms=[(s.started_ms or 0.0) - s.submitted_ms for _, _, s, _ in spans],
            status=[s.status for _, _, s, _ in spans],
        )

    @staticmethod
    def _driver(calls: list[SampleCall], names: tuple[str, ...]) -> DriverBars:
        return DriverBars(
            call_id=[c.row.id for c in calls],
            method=[names.index(f"{c.row.group}.{c.row.method}") for c in calls],
            blocking=[c.row.blocking for c in calls],
            start_ms=[c.row.started_ms for c in calls],
            gate_ms=[c.gate_ms for c in calls],
            dispatch_ms=[c.dispatch_ms for c in calls],
            execute_ms=[c.execute_ms for c in calls],
            waited_from_ms=[c.waited_from_ms for c in calls],
            wait_ms=[c.wait_ms for c in calls],
            collect_ms=[c.collect_ms for c in calls],
            unpad_ms=[c.unpad_ms for c in calls],
            status=[c.row.status for c in calls],
        )

    def _heat(self, calls: list[SampleCall], lanes: tuple[Lane, ...], from_ms: float, to_ms: float, px: int) -> Heat:
        n = max(min(px // 2, 700), 1)
        bucket_ms = (to_ms - from_ms) / n
        shape = len(lanes) + 1
        busy = [[0.0] * n for _ in range(shape)]
        max_ms = [[0.0] * n for _ in range(shape)]
        max_id = [[0] * n for _ in range(shape)]

        def add(row: int, start_ms: float, end_ms: float, call_id: int) -> None:
            first = max(int((start_ms - from_ms) / bucket_ms), 0)
            for i in range(first, min(int((end_ms - from_ms) / bucket_ms) + 1, n)):
                left = from_ms + i * bucket_ms
                covered_ms = min(end_ms, left + bucket_ms) - max(start_ms, left)
                busy[row][i] = min(busy[row][i] + max(covered_ms, 0.0) / bucket_ms, 1.0)
            if 0 <= first < n and end_ms - start_ms > max_ms[row][first]:
                max_ms[row][first], max_id[row][first] = end_ms - start_ms, call_id

        for lane, call, span, end_ms in self._spans(calls, lanes, to_ms):
            add(lane + 1, span.started_ms or 0.0, end_ms, call.row.id)
        for call in calls:
            add(0, call.row.started_ms, call.end_ms, call.row.id)
        return Heat(bucket_ms, n, busy, max_ms, max_id)

    def call(self, call_id: int) -> CallDetail | None:
        calls = {call.row.id: call for call in self._known()}
        call = calls.get(call_id)
        if call is None:
            return None
        same = [c.row.id for c in calls.values() if (c.row.group, c.row.method) == (call.row.group, call.row.method)]
        at = same.index(call_id)
        ran = sorted(
            (s.finished_ms - s.started_ms, s.rank)
            for s in call.spans
            if s.finished_ms is not None and s.started_ms is not None
        )
        return CallDetail(
            call=call.row,
            generation=1,
            gate_ms=call.gate_ms,
            dispatch_ms=call.dispatch_ms,
            execute_ms=call.execute_ms,
            wait_ms=call.wait_ms,
            collect_ms=call.collect_ms,
            unpad_ms=call.unpad_ms,
            awaited_ms=None if call.row.blocking else call.waited_from_ms,
            shard_sizes=tuple(span.rows_in for span in call.spans),
            rows_out=call.row.rows,
            spans=call.spans,
            slowest_rank=ran[-1][1] if ran else None,
            median_ms=ran[len(ran) // 2][0] if ran else 0.0,
            max_ms=ran[-1][0] if ran else 0.0,
            previous_id=same[at - 1] if at else None,
            next_id=same[at + 1] if at + 1 < len(same) else None,
            error_type="torch.OutOfMemoryError" if call.error else "",
            error_message=call.error,
            error_traceback=f'Traceback (most recent call last):\n  File "rollout.py", line 88\n{call.error}'
            if call.error
            else "",
            error_rank=3 if call.error else -1,
        )

    def calls(self, limit: int, cursor: int | None, narrowed: CallFilter) -> CallPage:
        found = [
            call.row
            for call in reversed(self._known())
            if (cursor is None or call.row.id < cursor)
            and narrowed.group in ("", call.row.group)
            and narrowed.method in ("", call.row.method)
            and narrowed.status in ("", call.row.status)
            and narrowed.step in (None, call.row.step)
            and call.row.duration_ms >= (narrowed.min_ms or 0.0)
        ]
        page = tuple(found[:limit])
        return CallPage(page, page[-1].id if len(found) > limit else None)

    def operations(self, limit: int, cursor: str | None) -> tuple[Operation, ...]:
        known = () if self._is_empty else web_sample_life.operations(self._evil)
        ids = [one.id for one in known]
        begin = ids.index(cursor) + 1 if cursor in ids else 0
        return known[begin : begin + limit]

    def deaths(self) -> tuple[Death, ...]:
        worker = next(one for one in self.workers() if (one.group, one.rank) == ("rollout", 3))
        at_ms = self._now_ms() - 120.0
        return web_sample_life.deaths(worker, self.in_flight(10), at_ms, self._evil) if self.died else ()

    def crash_text(self) -> str:
        return CRASH_TEXT if self.died else ""

    def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
        return web_sample_life.in_flight(self._known(), self._now_ms())[:limit]

    def pool_generations(self) -> tuple[PoolGeneration, ...]:
        return web_sample_life.pool_generations()

    def audit_entries(self, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
        known = () if self._is_empty else web_sample_life.audit_entries(self._evil)
        return tuple(one for one in known if cursor is None or one.id < cursor)[:limit]

    def gaps(self) -> tuple[Gap, ...]:
        return (Gap(110_000.0, 111_000.0, 12, EVIL if self._evil else "disk full"),) if self.died else ()

    def latencies(self, from_ms: float | None, to_ms: float | None) -> tuple[MethodLatency, ...]:
        return web_sample_life.latencies([one for one in self._known() if one.row.started_ms >= (from_ms or 0.0)])

    def latency_map(
        self, group: str, method: str, from_ms: float | None, to_ms: float | None, px: int
    ) -> LatencyMap | None:
        return web_sample_life.latency_map(self._known(), group, method, from_ms or 0.0, to_ms or self._now_ms())

    def rank_map(self, group: str, from_ms: float | None, to_ms: float | None, px: int) -> RankMap | None:
        return web_sample_life.rank_map(self._known(), group, from_ms or 0.0, to_ms or self._now_ms())

    def steps_between(self, first: int, last: int) -> StepsSum:
        return web_sample_life.steps_between(self._known(), first, last)

    def rank_runs(self) -> tuple[MethodRuns, ...]:
        return web_sample_life.rank_runs(self._known())

    def groups(self) -> tuple[Group, ...]:
        return ()

    def config(self) -> tuple[ConfigValue, ...]:
        value = EVIL if self._evil else "0.0003"
        return (ConfigValue("actor.optim.lr", value), ConfigValue("seed", "0"))

    def sequence(self) -> int:
        return len(self._known())

    def close(self) -> None:
        """Nothing to let go of."""
