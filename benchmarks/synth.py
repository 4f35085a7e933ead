"""A seeded run of any size: ``python -m benchmarks.synth --calls 1000000 --ranks 8 --file BIG.db``.

Events go through the recorder's own reducer and file, so that roll-ups, histograms and totals are those of a real run.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path

from app.store.event_reducer import EventReducer
from app.store.facts import AuditFacts, RunFacts
from app.store.runfile import Counters, RunFile
from core.events import (
    CallFinished,
    CallStalled,
    CallStarted,
    DeathReport,
    ErrorFacts,
    Event,
    GroupCreated,
    MethodFacts,
    OperationChanged,
    PoolCreated,
    RankFinished,
    SlotFacts,
    StepFinished,
    StepStarted,
    WorkerEnded,
    WorkerStarted,
)

START_NS = 1_800_000_000_000_000_000
_US, _MS, _S = 1_000, 1_000_000, 1_000_000_000
_METHODS = (("generate", 40.0, 0.12), ("log_prob", 12.0, 0.05), ("update", 25.0, 0.03), ("save", 3.0, 0.3))
_BATCH = 5_000


def events(n_calls: int, n_ranks: int, seed: int = 7, gap_ms: float = 0.3) -> Iterator[object]:
    """Yield the events of a run of ``n_calls`` calls on ``n_ranks`` ranks; rank 5 is slow, one call in 2,000 fails."""
    chance = random.Random(seed)
    yield from _entities(n_ranks)
    now_ns = START_NS + _S
    for call_id in range(1, n_calls + 1):
        step = 1 + (call_id - 1) // 40
        if call_id % 40 == 1:
            yield StepStarted(now_ns, step, n_calls // 40)
        method, mean_ms, spread = _METHODS[call_id % len(_METHODS)]
        failed = chance.random() < 1 / 2000
        yield CallStarted(call_id, now_ns, "actor", "train", 0, method, "DP_COMPUTE_PROTO", "ALL", True, 0, step)
        last_ns = now_ns
        for rank in range(n_ranks):
            ran_ms = mean_ms * max(0.2, chance.gauss(1.3 if rank == 5 else 1.0, spread))
            started_ns = now_ns + 200 * _US + 20 * _US * rank
            finished_ns = started_ns + int(ran_ms * _MS)
            last_ns = max(last_ns, finished_ns)
            status = "error" if failed and rank == 3 else "ok"
            yield RankFinished(
                call_id,
                "actor",
                rank,
                now_ns + 150 * _US,
                started_ns,
                finished_ns,
                finished_ns + 300 * _US,
                20 * _US,
                status,
                64,
                64,
                1 << 20,
                1 << 18,
            )
        ended_ns = last_ns + 500 * _US
        yield CallFinished(
            call_id,
            ended_ns,
            "error" if failed else "ok",
            64 * n_ranks - 3,
            64 * n_ranks - 3,
            (64,) * n_ranks,
            3,
            n_ranks << 20,
            n_ranks << 18,
            100 * _US,
            50 * _US,
            ended_ns - now_ns - 350 * _US,
            150 * _US,
            50 * _US,
            ErrorFacts("RuntimeError", "made up", "Traceback (most recent call last): made up", 3) if failed else None,
        )
        if call_id % 20_000 == 0:
            yield from _change(call_id // 20_000, ended_ns)
        now_ns = ended_ns + int(gap_ms * _MS * chance.uniform(0.5, 1.5))
        if call_id % 40 == 0:
            yield StepFinished(now_ns, step, (("reward", 1 - 1 / step), ("loss", 1 / step)))


def _change(number: int, at_ns: int) -> Iterator[object]:
    """Yield what is seldom: an operation with its audit entry, a stall, a death, and the worker that comes after."""
    uid = f"op{number}"
    yield AuditFacts(at_ns, "ada", "127.0.0.1", "synth", f"r{number}", "pause", "train", number, "accepted", "", uid)
    for state in ("pending", "waiting_for_safe_point", "running", "succeeded"):
        yield OperationChanged(at_ns, uid, "pause", "train", state, "ada", number)
    yield CallStalled(at_ns, number * 20_000, "actor", "update", (1,), 60.0)
    report = DeathReport("actor", "actor-1", "a1", "killed by signal 9 (SIGKILL) from outside", 9, log_tail=("x",) * 20)
    yield WorkerEnded(at_ns, "actor", 1, True, report.cause, 1000 + number, "10.0.0.0", "update", 0, report)
    yield WorkerStarted(at_ns, "actor", "train", 1, 1, f"actor-1-{number}", 2000 + number, "10.0.0.0", "a1", "0")


def _entities(n_ranks: int) -> Iterator[Event]:
    per_node = [8] * (n_ranks // 8) + ([n_ranks % 8] if n_ranks % 8 else [])
    slots = tuple(SlotFacts(i, f"10.0.0.{i // 8}", i // 8, i % 8) for i in range(n_ranks))
    yield PoolCreated(START_NS, "train", tuple(per_node), slots, 0, "active", True, 2)
    for rank in range(n_ranks):
        yield WorkerStarted(
            START_NS, "actor", "train", rank, rank % 8, f"actor-{rank}", 1000 + rank, slots[rank].node, f"a{rank}", "0"
        )
    methods = tuple(MethodFacts(name, "DP_COMPUTE_PROTO", "ALL", True) for name, _, _ in _METHODS)
    yield GroupCreated(START_NS, "actor", "train", "made.Up", n_ranks, methods)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of values without a circle among them: looking for one would cost a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def make(path: Path, n_calls: int, n_ranks: int, seed: int = 7) -> tuple[int, float]:
    """Make the file, and return how many events it took and how many seconds."""
    file = RunFile(path)
    file.create(RunFacts("made-up", "made up", "none", "none", 0, "0", "3", "", START_NS, START_NS))
    reducer, counters = EventReducer(START_NS), Counters()
    batch: list[object] = []
    began = time.perf_counter()
    with _without_collector():
        for event in events(n_calls, n_ranks, seed):
            batch.append(event)
            if len(batch) >= _BATCH:
                _write(file, reducer, counters, batch)
                batch = []
        _write(file, reducer, counters, batch, closing=True)
    took_s = time.perf_counter() - began
    file.end("ended", True, counters.sequence + 1)
    file.close()
    return counters.n_recorded, took_s


def _write(
    file: RunFile, reducer: EventReducer, counters: Counters, batch: list[object], closing: bool = False
) -> None:
    rows = reducer.take(batch, closing=closing)
    counters.sequence += 1
    counters.n_recorded += rows.n_events
    file.write(rows, counters)
    if counters.sequence % 20 == 0:
        file.checkpoint(truncate=False)


def main() -> None:
    """Make the file, and say how long that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7, help="the same seed makes the same run")
    parser.add_argument("--file", type=Path, required=True, help="where to; it must not be there yet")
    options = parser.parse_args()
    options.file.parent.mkdir(parents=True, exist_ok=True)
    n_events, took_s = make(options.file, options.calls, options.ranks, options.seed)
    print(f"{n_events:,} events in {took_s:.1f} s: {n_events / took_s:,.0f} a second")
    print(f"{options.file}: {options.file.stat().st_size / 1e6:,.0f} MB; time its queries with")
    print(f"  python -m benchmarks.queries --file {options.file}")


if __name__ == "__main__":
    main()
