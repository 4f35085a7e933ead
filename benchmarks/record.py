"""The price of the record: what an event costs the driver, and how long the pages' questions take."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from app.recorder import start_run
from benchmarks import queries
from core.events import EventBus, RankFinished

TARGET_US = 5.0
_N_EVENTS, _BURST = 20_000, 50


@dataclass(frozen=True, slots=True)
class Cost:
    """What one event costs the driver's thread, from its making until it is queued, in microseconds."""

    n_events: int
    p50_us: float
    p95_us: float


def cost_of_an_event(n_events: int = _N_EVENTS) -> Cost:
    """Make and emit events as a driver does, in bursts, while the writer's thread puts them on file."""
    with tempfile.TemporaryDirectory(prefix="podium-record-") as folder:
        now_ns = time.time_ns()
        recorder = start_run(
            Path(folder), name="cost", script=__file__, started_ns=now_ns, podium_version="bench", ray_version=""
        )
        bus = EventBus()
        bus.subscribe(recorder)
        times_us = []
        try:
            for n in range(n_events):
                began = time.perf_counter_ns()
                bus.emit(
                    RankFinished(
                        n, "actor", n % 8, now_ns, now_ns, now_ns, now_ns, 1000, "ok", 64, 64, 1 << 20, 1 << 18
                    )
                )
                times_us.append((time.perf_counter_ns() - began) / 1e3)
                if n % _BURST == 0:
                    # A driver waits for its workers meanwhile; without a pause this would measure the queue's bound.
                    time.sleep(0.001)
        finally:
            recorder.close()
    return Cost(n_events, statistics.median(times_us), statistics.quantiles(times_us, n=20)[-1])


def report(big_run: Path | None, n_rounds: int = 10) -> dict[str, object]:
    """Print both, and return them as they go into the results; ``big_run`` is a file that `benchmarks.synth` made."""
    cost = cost_of_an_event()
    verdict = "met" if cost.p50_us < TARGET_US else "MISSED"
    print(f"\nan event, made and queued: p50 {cost.p50_us:.2f} us, p95 {cost.p95_us:.2f} us ({cost.n_events:,} events)")
    print(f"  {verdict:>8}: p50 < {TARGET_US:.0f} us")
    return {"event": cost, "queries": queries.measure(big_run, n_rounds)}
