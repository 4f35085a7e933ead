"""``/metrics``: what a driver did, counted as it happens, in the words of Prometheus.

No label names a rank: a job of a thousand would make a thousand series of each. The registry is our own, as Ray has the
global one. Observing costs the driver a few microseconds a call and next to nothing a rank.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from app.store.writer import WriterState
from core.events import (
    CallAwaited,
    CallFinished,
    CallStarted,
    Event,
    PoolChanged,
    PoolCreated,
    PoolStateChanged,
    RankFinished,
    WorkerEnded,
    WorkerStarted,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
PHASES = ("gate", "dispatch", "execute", "wait", "collect", "unpad", "total")
_NAMES = [f"{bound:g}" for bound in BOUNDS_S] + ["+Inf"]
# Ranks report on other threads, sometimes after the end of the call.
_SETTLE_S = 1.0
_MAX_UNSETTLED = 256
_MAX_UNAWAITED = 10_000


class _Histogram:
    """Counts per bucket, not yet added up, and the sum in seconds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the buckets as Prometheus wants them: each holds all that is not above its bound."""
        total, found = 0, []
        for name, count in zip(_NAMES, self.counts, strict=True):
            total += count
            found.append((name, float(total)))
        return found


@dataclass(slots=True)
class _Method:
    """One method's calls so far."""

    by_status: Counter[str] = field(default_factory=Counter)
    phases: tuple[_Histogram, ...] = field(default_factory=lambda: tuple(_Histogram() for _ in PHASES))
    spread: _Histogram = field(default_factory=_Histogram)
    padding_rows: int = 0


@dataclass(slots=True)
class _Call:
    """A call on its way, with the run times of its fastest and slowest rank so far."""

    method: _Method
    began_ns: int
    gate_ns: int
    blocking: bool
    ended_s: float = 0.0
    fastest_ns: int = -1
    slowest_ns: int = -1


class Metrics:
    """Observes a driver and answers scrapes."""

    def __init__(self, recorder: Callable[[], WriterState], clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing counted; ``recorder`` returns the state of the recording."""
        self._recorder = recorder
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._methods: dict[tuple[str, str], _Method] = {}
        self._calls: dict[int, _Call] = {}
        self._settling: deque[tuple[int, _Call]] = deque()
        self._unawaited: OrderedDict[int, _Method] = OrderedDict()
        self._bytes: Counter[str] = Counter({"out": 0, "in": 0})
        self._alive: set[tuple[str, int]] = set()
        self._workers: Counter[str] = Counter({"ended": 0, "died": 0})
        self._generations: dict[str, int] = {}
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            CallStarted: self._call_started,
            RankFinished: self._rank_finished,
            CallFinished: self._call_finished,
            CallAwaited: self._call_awaited,
            WorkerStarted: self._worker_started,
            WorkerEnded: self._worker_ended,
            PoolCreated: self._pool_changed,
            PoolChanged: self._pool_changed,
            PoolStateChanged: self._pool_moved,
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Scrape(self))

    def observe(self, event: Event) -> None:
        """Count ``event``."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            with self._lock:
                handler(event)

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self._registry)

    def families(self) -> Iterator[Metric]:
        """Return what stands, by metric."""
        with self._lock:
            self._settle()
            found = [*self._of_calls(), *self._of_methods(), *self._of_places()]
        return iter([*found, *self._of_recorder()])

    def _call_started(self, event: CallStarted) -> None:
        key = (event.group, event.method)
        method = self._methods.get(key)
        if method is None:
            method = self._methods[key] = _Method()
        self._calls[event.call_id] = _Call(method, event.at_ns, event.gate_ns, event.blocking)

    def _rank_finished(self, event: RankFinished) -> None:
        call = self._calls.get(event.call_id)
        if call is None or event.started_ns is None or event.finished_ns is None:
            return
        ran_ns = event.finished_ns - event.started_ns
        call.fastest_ns = ran_ns if call.fastest_ns < 0 else min(call.fastest_ns, ran_ns)
        call.slowest_ns = max(call.slowest_ns, ran_ns)

    def _call_finished(self, event: CallFinished) -> None:
        call = self._calls.get(event.call_id)
        if call is None:
            return
        method = call.method
        method.by_status[event.status] += 1
        method.padding_rows += event.padding_rows
        self._bytes["out"] += event.bytes_out
        self._bytes["in"] += event.bytes_in
        gate, dispatch, execute, _, _, _, total = method.phases
        gate.add(call.gate_ns / 1e9)
        dispatch.add(event.dispatch_ns / 1e9)
        execute.add(event.execute_ns / 1e9)
        total.add((event.at_ns - call.began_ns) / 1e9)
        if call.blocking:
            _add_rest(method, event.wait_ns, event.collect_ns, event.unpad_ns)
        else:
            self._unawaited[event.call_id] = method
            if len(self._unawaited) > _MAX_UNAWAITED:
                self._unawaited.popitem(last=False)
        call.ended_s = self._clock_s()
        self._settling.append((event.call_id, call))
        self._settle()

    def _call_awaited(self, event: CallAwaited) -> None:
        method = self._unawaited.pop(event.call_id, None)
        if method is None and event.call_id in self._calls:
            # Awaited before its last rank had answered.
            call = self._calls[event.call_id]
            method, call.blocking = call.method, True
        if method is not None:
            _add_rest(method, event.wait_ns, event.collect_ns, event.unpad_ns)

    def _settle(self) -> None:
        """Count the spread of calls whose ranks have had time to report."""
        until_s = self._clock_s() - _SETTLE_S
        while self._settling and (len(self._settling) > _MAX_UNSETTLED or self._settling[0][1].ended_s <= until_s):
            call_id, call = self._settling.popleft()
            del self._calls[call_id]
            if call.fastest_ns >= 0:
                call.method.spread.add((call.slowest_ns - call.fastest_ns) / 1e9)

    def _worker_started(self, event: WorkerStarted) -> None:
        self._alive.add((event.group, event.rank))

    def _worker_ended(self, event: WorkerEnded) -> None:
        if (event.group, event.rank) in self._alive:
            self._alive.discard((event.group, event.rank))
            self._workers["died" if event.died else "ended"] += 1

    def _pool_changed(self, event: PoolCreated | PoolChanged) -> None:
        self._generations[event.pool] = event.generation

    def _pool_moved(self, event: PoolStateChanged) -> None:
        if event.state == "closed":
            self._generations.pop(event.pool, None)
        else:
            self._generations[event.pool] = event.generation

    def _of_calls(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("podium_calls", "Calls that ended.", labels=("group", "method", "status"))
        padding = CounterMetricFamily("podium_padding_rows", "Rows added as padding.", labels=("group", "method"))
        for key, method in self._methods.items():
            for status, n_calls in method.by_status.items():
                calls.add_metric((*key, status), n_calls)
            padding.add_metric(key, method.padding_rows)
        payload = CounterMetricFamily(
            "podium_payload_bytes", "Driver payload to the workers (out) and back (in).", labels=("direction",)
        )
        for direction, n_bytes in self._bytes.items():
            payload.add_metric((direction,), n_bytes)
        n_open = len(self._calls) - len(self._settling)
        yield from (calls, padding, payload)
        yield GaugeMetricFamily("podium_calls_in_flight", "Calls without an end yet.", value=n_open)

    def _of_methods(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            "podium_call_duration_seconds",
            "How long the steps of a call took on the driver's thread, and the whole call (total).",
            labels=("group", "method", "phase"),
        )
        spreads = HistogramMetricFamily(
            "podium_rank_spread_seconds",
            "By how much a call's slowest rank ran longer than its fastest.",
            labels=("group", "method"),
        )
        for key, method in self._methods.items():
            for phase, histogram in zip(PHASES, method.phases, strict=True):
                durations.add_metric((*key, phase), histogram.buckets(), sum_value=histogram.sum_s)
            spreads.add_metric(key, method.spread.buckets(), sum_value=method.spread.sum_s)
        yield from (durations, spreads)

    def _of_places(self) -> Iterator[Metric]:
        workers = GaugeMetricFamily("podium_workers", "Worker processes that this run has had.", labels=("state",))
        for state, n_workers in {"alive": len(self._alive), **self._workers}.items():
            workers.add_metric((state,), n_workers)
        pools = GaugeMetricFamily("podium_pool_generation", "The pool's generation.", labels=("pool",))
        for pool, generation in self._generations.items():
            pools.add_metric((pool,), generation)
        yield from (workers, pools)

    def _of_recorder(self) -> Iterator[Metric]:
        state = self._recorder()
        yield CounterMetricFamily("podium_recorder_dropped", "Events that were not recorded.", value=state.n_dropped)
        yield GaugeMetricFamily("podium_recorder_lag_seconds", "How far the record is behind.", value=state.lag_s)


class _Scrape(Collector):
    """Asks the metrics anew for each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Return what stands."""
        return self._metrics.families()


def _add_rest(method: _Method, wait_ns: int, collect_ns: int, unpad_ns: int) -> None:
    for histogram, took_ns in zip(method.phases[3:6], (wait_ns, collect_ns, unpad_ns), strict=True):
        histogram.add(took_ns / 1e9)
