"""Makes the file of a big run that never was, the same on every machine, and times every view of it.

``python -m benchmarks.synth --calls 100000 --ranks 8`` prints a table. Events go through the recorder's own ledger and
file, so that roll-ups and totals are those of a real run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.store.facts import RunFacts
from app.store.ledger import Ledger
from app.store.reader import Reader
from app.store.runfile import Counters, RunFile
from core.events import (
    CallFinished,
    CallStarted,
    ErrorFacts,
    Event,
    GroupCreated,
    MethodFacts,
    PoolCreated,
    RankFinished,
    SlotFacts,
    StepFinished,
    StepStarted,
    WorkerStarted,
)
from web.source import CallFilter

START_NS = 1_800_000_000_000_000_000
_US, _MS, _S = 1_000, 1_000_000, 1_000_000_000
_METHODS = (("generate", 40.0, 0.12), ("log_prob", 12.0, 0.05), ("update", 25.0, 0.03), ("save", 3.0, 0.3))
_BATCH = 5_000


def events(n_calls: int, n_ranks: int, seed: int = 7, gap_ms: float = 0.3) -> Iterator[Event]:
    """Yield the events of a run of ``n_calls`` calls on ``n_ranks`` ranks; rank 5 is slow, one call in 2,000 fails."""
    chance = random.Random(seed)
    yield from _places(n_ranks)
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
        now_ns = ended_ns + int(gap_ms * _MS * chance.uniform(0.5, 1.5))
        if call_id % 40 == 0:
            yield StepFinished(now_ns, step, (("reward", 1 - 1 / step), ("loss", 1 / step)))


def _places(n_ranks: int) -> Iterator[Event]:
    per_node = [8] * (n_ranks // 8) + ([n_ranks % 8] if n_ranks % 8 else [])
    slots = tuple(SlotFacts(i, f"10.0.0.{i // 8}", i // 8, i % 8) for i in range(n_ranks))
    yield PoolCreated(START_NS, "train", tuple(per_node), slots, 0, "active", True, 2)
    for rank in range(n_ranks):
        yield WorkerStarted(
            START_NS, "actor", "train", rank, rank % 8, f"actor-{rank}", 1000 + rank, slots[rank].node, f"a{rank}", "0"
        )
    methods = tuple(MethodFacts(name, "DP_COMPUTE_PROTO", "ALL", True) for name, _, _ in _METHODS)
    yield GroupCreated(START_NS, "actor", "train", "made.Up", n_ranks, methods)


def make(path: Path, n_calls: int, n_ranks: int) -> tuple[int, float]:
    """Make the file, and return how many events it took and how many seconds."""
    file = RunFile(path)
    file.create(RunFacts("made-up", "made up", "none", "none", 0, "0", "3", "", START_NS, START_NS))
    ledger, counters, batch = Ledger(START_NS), Counters(), []
    began = time.perf_counter()
    for event in events(n_calls, n_ranks):
        batch.append(event)
        if len(batch) >= _BATCH:
            _write(file, ledger, counters, batch)
            batch = []
    _write(file, ledger, counters, batch, closing=True)
    took_s = time.perf_counter() - began
    file.end("ended", True, counters.sequence + 1)
    file.close()
    return counters.n_recorded, took_s


def _write(file: RunFile, ledger: Ledger, counters: Counters, batch: list[Event], closing: bool = False) -> None:
    rows = ledger.take(batch, closing=closing)
    counters.sequence += 1
    counters.n_recorded += rows.n_events
    file.write(rows, counters)
    if counters.sequence % 20 == 0:
        file.checkpoint(truncate=False)


def views(reader: Reader) -> dict[str, Callable[[], object]]:
    """Return every question the pages ask, by name."""
    run_ms = reader.run().duration_ms
    middle = run_ms / 2
    newest = reader.calls(1, None, CallFilter()).items[0].id

    def window(length_ms: float) -> Callable[[], object]:
        return lambda: reader.timeline(middle, middle + length_ms, 1400)

    return {
        "overview": reader.overview,
        "timeline, everything": lambda: reader.timeline(None, None, 1400),
        "timeline, 1 h": window(3_600_000),
        "timeline, 10 min": window(600_000),
        "timeline, 1 min": window(60_000),
        "timeline, 10 s": window(10_000),
        "timeline, 1 s": window(1_000),
        "one call": lambda: reader.call(newest // 2),
        "100 calls": lambda: reader.calls(100, None, CallFilter()),
        "100 calls, half way": lambda: reader.calls(100, newest // 2, CallFilter()),
        "100 calls of a method": lambda: reader.calls(100, None, CallFilter(method="update")),
        "100 failed calls": lambda: reader.calls(100, None, CallFilter(status="error")),
        "100 failed calls of a method": lambda: reader.calls(100, None, CallFilter(method="update", status="error")),
        "100 calls of a step": lambda: reader.calls(100, None, CallFilter(step=newest // 80)),
        "sequence": reader.sequence,
    }


def main() -> None:
    """Make a file, or take the one given, and print how long each view takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--file", type=Path, help="kept; used as it is when it exists")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "made-up.db"
        if not path.exists():
            n_events, took_s = make(path, options.calls, options.ranks)
            print(f"{n_events:,} events in {took_s:.1f} s: {n_events / took_s:,.0f} a second")
        print(f"{path.stat().st_size / 1e6:,.0f} MB")
        reader = Reader(path, deadline_s=30.0)
        for name, ask in views(reader).items():
            times_ms = []
            for _ in range(options.rounds):
                began = time.perf_counter()
                ask()
                times_ms.append((time.perf_counter() - began) * 1e3)
            p95 = statistics.quantiles(times_ms, n=20)[-1]
            print(
                f"{name:32} first {times_ms[0]:7.1f} ms  p50 {statistics.median(times_ms):7.1f} ms  p95 {p95:7.1f} ms"
            )
        reader.close()


if __name__ == "__main__":
    main()
