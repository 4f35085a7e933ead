"""Deaths, live changes and the audit log of the made-up run of ``web_sample``."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tests.unit.web_sample_calls import EVIL, POOLS, SampleCall
from web.latency import LatencyMap, MethodLatency, RankMap
from web.rank_runs import MethodRuns
from web.rows import (
    AuditEntry,
    CallInFlight,
    Death,
    Operation,
    PoolGeneration,
    RankDoing,
    RankOut,
    RankSpan,
    Slot,
    Worker,
)
from web.steps import MethodInSteps, StepsSum

CRASH_TEXT = """Fatal Python error: Aborted

Thread 0x00007f2a4b7fe6c0 (most recent call first):
  File "core/health/policy.py", line 71 in abort
  File "threading.py", line 982 in run

Thread 0x00007f2a6c1d9740 (most recent call first):
  File "core/cluster/on_ray.py", line 402 in wait
  File "core/group/wait.py", line 118 in take
  File "examples/train_ppo.py", line 52 in main
"""


def deaths(worker: Worker, in_flight: tuple[CallInFlight, ...], at_ms: float, evil: bool) -> tuple[Death, ...]:
    """Return the death of ``worker``, out of memory, with its whole report."""
    call = next((one for one in in_flight if one.group == worker.group), None)
    others = tuple(
        RankDoing(rank, f"in {call.method}" if call else "idle", (call.running_ms / 1000) if call else 1.2)
        for rank in range(3)
    )
    return (
        Death(
            group=worker.group,
            rank=worker.rank,
            at_ms=at_ms,
            pid=worker.pid,
            node=worker.node,
            worker=worker.name,
            actor_id=worker.actor_id,
            cause=EVIL if evil else "killed by signal 9 (SIGKILL): out of memory",
            role=worker.group,
            method=call.method if call else "",
            call_id=call.id if call else 0,
            signal=9,
            oom=True,
            evidence=(
                "cgroup memory.events: oom_kill rose from 0 to 1",
                "its last reading was 15.8 GiB of 16 GiB",
                EVIL if evil else "no stack in its log: it had no chance to write one",
            ),
            memory_bytes=16_965_120_819,
            memory_limit_bytes=17_179_869_184,
            others=others,
            log_tail=(
                "loading 4096 prompts",
                EVIL if evil else "kv cache grown to 11.2 GiB",
                "generate: batch 61 of 64",
            ),
            policy="abort",
        ),
    )


def in_flight(calls: list[SampleCall], now_ms: float) -> tuple[CallInFlight, ...]:
    """Return the calls among ``calls`` that have not ended."""
    found = []
    for call in calls:
        if call.row.status != "running":
            continue
        out = tuple(
            RankOut(span.rank, now_ms - span.submitted_ms, span.node, 41_300 + span.rank)
            for span in call.spans
            if span.ready_ms is None
        )
        running_ms = now_ms - call.row.started_ms
        found.append(
            CallInFlight(
                call.row.id,
                call.row.group,
                call.row.pool,
                call.row.method,
                call.row.blocking,
                call.row.started_ms,
                running_ms,
                len(call.spans),
                out,
                running_ms > 400.0,
            )
        )
    return tuple(found)


def _slots(shape: tuple[int, ...], first_node: int = 0) -> tuple[Slot, ...]:
    places = [(node, local) for node, n in enumerate(shape) for local in range(n)]
    return tuple(Slot(i, f"node-{first_node + node}", local) for i, (node, local) in enumerate(places))


def pool_generations() -> tuple[PoolGeneration, ...]:
    """Return both pools as they were made, and the generation of the second after it grew."""
    found = [
        PoolGeneration(name, 1, 210.0 + i, shape, _slots(shape, 2 * i)) for i, (name, shape, _) in enumerate(POOLS)
    ]
    grown = PoolGeneration("generation", 2, 61_000.0, (2, 2), _slots((2, 2), 2), "op-2")
    return (*found[:1], PoolGeneration("generation", 1, 211.0, (2,), _slots((2,), 2)), grown)


_PLAN = {
    "kind": "resize",
    "pools": [{"pool": "generation", "before": [2], "after": [2, 2], "generation": 2}],
    "groups": [
        {
            "group": "rollout",
            "from_pool": "generation",
            "to_pool": "generation",
            "world_size_before": 2,
            "world_size_after": 4,
            "how": "state",
        }
    ],
    "prepared": True,
    "why_not_prepared": "",
    "drains": ["call 118 rollout.generate_sequences, 0.9 s"],
    "lost": [],
    "stand_still_s": 0.8,
    "estimate_from": "2 starts of this run",
}


def operations(evil: bool) -> tuple[Operation, ...]:
    """Return a pause, a resize and one that failed, newest first."""
    return (
        Operation("op-3", "pause", "train", "succeeded", "control", 104_000.0, 104_050.0, "active", "paused", "", 2),
        Operation(
            id="op-2",
            kind="resize",
            pool="generation",
            state="succeeded",
            who=EVIL if evil else "control",
            created_ms=52_000.0,
            updated_ms=61_000.0,
            before="2",
            after="2, 2",
            error="",
            expected_generation=1,
            plan=_PLAN,
            safe_point_ms=1300.0,
            downtime_ms=740.0,
        ),
        Operation(
            "op-1", "split", "train", "failed", "driver", 40_000.0, 41_200.0, "2", "", EVIL if evil else "no room", None
        ),
    )


def audit_entries(evil: bool) -> tuple[AuditEntry, ...]:
    """Return three attempts, newest first: a pause, one with an old generation, a resize."""
    agent = EVIL if evil else "Mozilla/5.0 (X11; Linux x86_64)"
    return (
        AuditEntry(3, 104_000.0, "control", "127.0.0.1", agent, "r3a8f", "pause", "train", 2, "accepted", "", "op-3"),
        AuditEntry(
            id=2,
            at_ms=70_000.0,
            actor="control",
            remote="127.0.0.1",
            user_agent="podium",
            request_id="r2b1c",
            action="resize",
            target="generation",
            expected_generation=1,
            outcome="refused",
            detail=EVIL if evil else "pool 'generation' is at generation 2, not 1",
            operation_id="",
        ),
        AuditEntry(
            1, 52_000.0, "control", "127.0.0.1", agent, "r19d0", "resize", "generation", 1, "accepted", "", "op-2"
        ),
    )


def latencies(calls: list[SampleCall]) -> tuple[MethodLatency, ...]:
    """Return the percentiles of the calls that ended, by group and method."""
    lengths: dict[tuple[str, str], list[float]] = {}
    for call in calls:
        if call.row.status != "running":
            lengths.setdefault((call.row.group, call.row.method), []).append(call.row.duration_ms)

    def at(own: list[float], share: float) -> float:
        return sorted(own)[min(int(share * len(own)), len(own) - 1)]

    return tuple(
        MethodLatency(*key, len(own), at(own, 0.5), at(own, 0.9), at(own, 0.95), at(own, 0.99))
        for key, own in sorted(lengths.items())
    )


def latency_map(calls: list[SampleCall], group: str, method: str, from_ms: float, to_ms: float) -> LatencyMap | None:
    """Return the method's calls in buckets of 4 s and quarters of an octave."""
    own = [c.row for c in calls if (c.row.group, c.row.method) == (group, method) and c.row.status != "running"]
    if not own:
        return None
    bucket_ms = 4000.0
    n = int((to_ms - from_ms) // bucket_ms) + 1
    slots = [math.floor(4 * math.log2(row.duration_ms)) for row in own]
    low, high = min(slots), max(slots)
    counts = [[0] * n for _ in range(low, high + 1)]
    by_bucket: list[list[float]] = [[] for _ in range(n)]
    for row, slot in zip(own, slots, strict=True):
        bucket = int((row.started_ms - from_ms) // bucket_ms)
        if 0 <= bucket < n:
            counts[slot - low][bucket] += 1
            by_bucket[bucket].append(row.duration_ms)
    highest = [max(one) if one else None for one in by_bucket]
    lowest = [min(one) if one else None for one in by_bucket]
    edges = [2 ** (slot / 4) for slot in range(low, high + 2)]
    return LatencyMap(from_ms, bucket_ms, n, edges, counts, lowest, highest, highest)


def rank_map(calls: list[SampleCall], group: str, from_ms: float, to_ms: float) -> RankMap | None:
    """Return the longest span of each rank in buckets of 4 s, and that by the median of the ranks."""
    bucket_ms = 4000.0
    n = int((to_ms - from_ms) // bucket_ms) + 1
    longest: dict[int, list[float]] = {}
    for call in calls:
        for span in call.spans if call.row.group == group else ():
            if span.started_ms is not None and span.finished_ms is not None and span.started_ms >= from_ms:
                own = longest.setdefault(span.rank, [0.0] * n)
                k = int((span.started_ms - from_ms) // bucket_ms)
                own[k] = max(own[k], span.finished_ms - span.started_ms)
    if not longest:
        return None
    ranks = sorted(longest)
    median = [sorted(longest[rank][k] for rank in ranks)[len(ranks) // 2] for k in range(n)]
    over = [[ms / median[k] if ms and median[k] else None for k, ms in enumerate(longest[rank])] for rank in ranks]
    return RankMap(from_ms, bucket_ms, n, ranks, [[ms or None for ms in longest[rank]] for rank in ranks], over)


def steps_between(calls: list[SampleCall], first: int, last: int) -> StepsSum:
    """Return the ended calls of some steps by method."""
    own: dict[tuple[str, str], list[SampleCall]] = {}
    for call in calls:
        if first <= call.row.step <= last and call.row.status != "running":
            own.setdefault((call.row.group, call.row.method), []).append(call)
    found = []
    for (group, method), some in sorted(own.items()):
        lengths = sorted(call.row.duration_ms for call in some)
        found.append(
            MethodInSteps(
                group=group,
                method=method,
                n_calls=len(some),
                n_failed=sum(call.row.status == "error" for call in some),
                p50_ms=lengths[len(lengths) // 2],
                p95_ms=lengths[-1],
                gate_ms=sum(call.gate_ms for call in some),
                dispatch_ms=sum(call.dispatch_ms for call in some),
                execute_ms=sum(call.execute_ms for call in some),
                wait_ms=sum(call.wait_ms for call in some),
                collect_ms=sum(call.collect_ms for call in some),
                unpad_ms=sum(call.unpad_ms for call in some),
                rows=sum(call.row.rows for call in some),
                padding_rows=sum(call.row.padding_rows for call in some),
                bytes_out=sum(call.row.bytes_out for call in some),
                bytes_in=sum(call.row.bytes_in for call in some),
                took_ms=tuple(call.row.duration_ms for call in some),
            )
        )
    return StepsSum(first, last, sum(map(len, own.values())), False, tuple(found))


def rank_runs(calls: list[SampleCall]) -> tuple[MethodRuns, ...]:
    """Return the run times of the ended calls of each method."""
    found = []
    for group, method in sorted({(one.row.group, one.row.method) for one in calls}):
        own = [one for one in calls if (one.row.group, one.row.method, one.row.status) == (group, method, "ok")]
        spans = [one.spans for one in own]
        if not own:
            continue

        def column(name: str, spans: list[tuple[RankSpan, ...]] = spans) -> NDArray[np.float64]:
            return np.array([[getattr(span, name) for span in row] for row in spans], dtype=np.float64)

        found.append(
            MethodRuns(
                group=group,
                method=method,
                n_ranks=len(spans[0]),
                ranks=tuple(span.rank for span in spans[0]),
                call_id=np.array([one.row.id for one in own]),
                run_ms=column("finished_ms") - column("started_ms"),
                ended_ms=column("finished_ms"),
                rows=column("rows_in"),
                bytes=column("bytes_in"),
                clock_error_ms=column("clock_error_ms").max(axis=0),
            )
        )
    return tuple(found)
