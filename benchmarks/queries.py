"""Every question that a page asks, timed on a big run: ``python -m benchmarks.queries --file BIG.db``.

The target is for 1,000,000 calls on 8 ranks; ``python -m benchmarks.synth --calls 1000000 --file BIG.db`` makes them in
minutes. Without a file a small run is made in passing, which shows that every query works, not that it is quick. On a
machine that is busy with other things the processor's time tells more than the clock: a question waits for its turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.store.reader import Reader
from benchmarks.synth import make
from web.calls import CallFilter

TARGET_MS = 100.0
_SMALL_CALLS, _RANKS = 10_000, 8
_PX = 1_400


@dataclass(frozen=True, slots=True)
class Timed:
    """One question's times in ms: by the clock, and the processor's; ``first_ms`` is with nothing read yet."""

    name: str
    first_ms: float
    p50_ms: float
    p95_ms: float
    cpu_p50_ms: float
    cpu_p95_ms: float


def questions(reader: Reader) -> dict[str, Callable[[], object]]:
    """Return every question that the pages ask, by the reader's method and what is asked of it."""
    run_ms = reader.run().duration_ms
    middle = run_ms / 2
    newest = max(1, reader.calls(1, None, CallFilter()).items[0].id)

    def window(length_ms: float) -> Callable[[], object]:
        return lambda: reader.timeline(middle, middle + length_ms, _PX)

    def calls(cursor: int | None = None, **narrowed: object) -> Callable[[], object]:
        return lambda: reader.calls(100, cursor, CallFilter(**narrowed))  # type: ignore[arg-type]

    return {
        "run": reader.run,
        "recorder": reader.recorder,
        "sequence": reader.sequence,
        "overview": reader.overview,
        "timeline: all of it": lambda: reader.timeline(None, None, _PX),
        "timeline: the last minute": lambda: reader.timeline(run_ms - 60_000, None, _PX),
        "timeline: 1 h": window(3_600_000),
        "timeline: 10 min": window(600_000),
        "timeline: 1 min": window(60_000),
        "timeline: 10 s": window(10_000),
        "timeline: 1 s": window(1_000),
        "spans: 10 min, too many": lambda: reader.spans(middle, middle + 600_000),
        "spans: 1 min": lambda: reader.spans(middle, middle + 60_000),
        "call": lambda: reader.call(newest // 2),
        "calls": calls(),
        "calls: half way": calls(newest // 2),
        "calls: of a method": calls(method="update"),
        "calls: of a group": calls(group="actor"),
        "calls: failed": calls(status="error"),
        "calls: in flight": calls(status="running"),
        "calls: failed, of a method": calls(method="update", status="error"),
        "calls: of 0.5 s or more": calls(min_ms=500.0),
        "calls: longer than any": calls(min_ms=3_600_000.0),
        "calls: longer than any, of a method": calls(method="update", min_ms=3_600_000.0),
        "calls: slower than their p95": calls(above_p95=True),
        "calls: more padding than any": calls(padding_above=0.99),
        "calls: of a step": calls(step=newest // 80),
        "calls: of a step, longer than any": calls(step=newest // 80, min_ms=3_600_000.0),
        "calls: failed, longer than any": calls(status="error", min_ms=3_600_000.0),
        "latencies: all of it": lambda: reader.latencies(None, None),
        "latencies: 1 h": lambda: reader.latencies(middle, middle + 3_600_000),
        "latencies: 1 min": lambda: reader.latencies(middle, middle + 60_000),
        "latency_map: all of it": lambda: reader.latency_map("actor", "update", None, None, _PX),
        "latency_map: 1 h": lambda: reader.latency_map("actor", "update", middle, middle + 3_600_000, _PX),
        "rank_map: all of it": lambda: reader.rank_map("actor", None, None, _PX),
        "rank_map: 1 h": lambda: reader.rank_map("actor", middle, middle + 3_600_000, _PX),
        "steps_between: ten": lambda: reader.steps_between(newest // 80, newest // 80 + 9),
        "steps_between: all": lambda: reader.steps_between(0, newest),
        "pools": reader.pools,
        "pool_generations": reader.pool_generations,
        "groups": reader.groups,
        "workers": reader.workers,
        "deaths": reader.deaths,
        "in_flight": lambda: reader.in_flight(50),
        "crash_text": reader.crash_text,
        "events": lambda: reader.events(200, None),
        "operations": lambda: reader.operations(100, None),
        "audit_entries": lambda: reader.audit_entries(100, None),
        "gaps": reader.gaps,
        "config": reader.config,
        "rank_runs": reader.rank_runs,
    }


def time_all(reader: Reader, n_rounds: int) -> list[Timed]:
    """Ask everything ``n_rounds`` times, one round after another as pages would, and return how long it took."""
    asked = questions(reader)
    times: dict[str, list[float]] = {name: [] for name in asked}
    cpu: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(n_rounds):
        for name, ask in asked.items():
            began, cpu_began = time.perf_counter(), time.thread_time()
            ask()
            times[name].append((time.perf_counter() - began) * 1e3)
            cpu[name].append((time.thread_time() - cpu_began) * 1e3)
    return [Timed(name, times[name][0], *_percentiles(times[name]), *_percentiles(cpu[name])) for name in asked]


def _percentiles(taken_ms: list[float]) -> tuple[float, float]:
    return statistics.median(taken_ms), statistics.quantiles(taken_ms, n=20, method="inclusive")[-1]


def report(path: Path, n_rounds: int) -> list[Timed]:
    """Time every question to the file and print a line each, with a mark where it misses the target."""
    reader = Reader(path, deadline_s=30.0)
    try:
        run = reader.run()
        size = f"{path.stat().st_size / 1e6:,.0f} MB"
        print(
            f"\nqueries on {run.n_calls:,} calls, {size}; target: p95 < {TARGET_MS:.0f} ms; "
            f"load {os.getloadavg()[0]:.1f}"
        )
        print(f"  {'':<28}{'first':>9}{'p50':>9}{'p95 ms':>9}{'cpu p50':>11}{'cpu p95 ms':>12}")
        timed = time_all(reader, n_rounds)
    finally:
        reader.close()
    for one in timed:
        missed = "" if one.p95_ms < TARGET_MS else "  <- missed"
        print(f"  {one.name:<28}{one.first_ms:>9.1f}{one.p50_ms:>9.1f}{one.p95_ms:>9.1f}", end="")
        print(f"{one.cpu_p50_ms:>11.1f}{one.cpu_p95_ms:>12.1f}{missed}")
    return timed


def measure(file: Path | None, n_rounds: int) -> list[Timed]:
    """Report on ``file``, or on a small run that is made for it."""
    if file is not None:
        return report(file, n_rounds)
    with tempfile.TemporaryDirectory(prefix="podium-queries-") as folder:
        path = Path(folder) / "small.db"
        make(path, _SMALL_CALLS, _RANKS)
        return report(path, n_rounds)


def main() -> int:
    """Print the report, and return 1 where a question misses the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a run's file, such as benchmarks.synth makes")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    timed = measure(options.file, options.rounds)
    return 1 if any(one.p95_ms >= TARGET_MS for one in timed) else 0


if __name__ == "__main__":
    raise SystemExit(main())
