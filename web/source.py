"""What the pages need to know of a run, whoever knows it.

``app.store.reader`` answers from a run's file, of a running driver as of a dead one. All times are floats in
milliseconds since the run started (``Run.started_at`` says when that was), so that JavaScript loses no digits.
Durations carry their unit in the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from web.calls import CallSource
from web.latency import LatencySource
from web.rank_runs import RankRunSource
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
    RankTotal,
    RecorderState,
    Run,
    Step,
    Worker,
)
from web.steps import StepSource


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything on the first page, in one answer."""

    run: Run
    recorder: RecorderState
    steps: tuple[Step, ...]
    methods: tuple[MethodTotal, ...]
    ranks: tuple[RankTotal, ...]
    pools: tuple[Pool, ...]
    workers: tuple[Worker, ...]
    events: tuple[EventRow, ...]
    calls_per_s: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline: one rank of one group. The driver's own lane is not among them."""

    index: int
    pool: str
    group: str
    rank: int
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class Bars:
    """Spans near enough to see each: parallel columns, one entry a span, in lane order.

    ``start_ms`` and ``end_ms`` are when the rank ran (from submission to readiness where the rank did not report);
    ``queued_ms`` is the time between submission and start. ``end_ms`` of a span still running is the window's end.
    ``status`` is ok, error, died, cancelled or running.
    """

    lane: Sequence[int] = ()
    call_id: Sequence[int] = ()
    method: Sequence[int] = ()
    start_ms: Sequence[float] = ()
    end_ms: Sequence[float] = ()
    queued_ms: Sequence[float] = ()
    status: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DriverBars:
    """The driver's steps of the calls in the window: one entry a call, the durations of its phases in ms.

    ``waited_from_ms`` is when the driver began to wait: for a non-blocking call, when its future was first awaited.
    """

    call_id: Sequence[int] = ()
    method: Sequence[int] = ()
    blocking: Sequence[bool] = ()
    start_ms: Sequence[float] = ()
    gate_ms: Sequence[float] = ()
    dispatch_ms: Sequence[float] = ()
    execute_ms: Sequence[float] = ()
    waited_from_ms: Sequence[float] = ()
    wait_ms: Sequence[float] = ()
    collect_ms: Sequence[float] = ()
    unpad_ms: Sequence[float] = ()
    status: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Heat:
    """Spans too many to see each: for every lane and bucket of time the share of the bucket that the rank was busy.

    ``busy`` has one row per lane (the driver's lane first), each of ``n_buckets`` numbers 0..1;
    ``max_ms`` and ``max_call_id`` are, in the same shape, the longest span that began in the bucket and its call
    (0 where there is none).
    """

    bucket_ms: float = 0.0
    n_buckets: int = 0
    busy: Sequence[Sequence[float]] = ()
    max_ms: Sequence[Sequence[float]] = ()
    max_call_id: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """A window of the run, as bars when at most ``MAX_BARS`` are in it, as heat otherwise.

    ``methods`` are the names that the ``method`` columns index, as "group.method". ``from_ms`` and ``to_ms`` are the
    window that is shown; ``run_ms`` is how long the run has lasted.
    """

    from_ms: float
    to_ms: float
    run_ms: float
    mode: str
    lanes: tuple[Lane, ...]
    methods: tuple[str, ...]
    bars: Bars = field(default_factory=Bars)
    driver: DriverBars = field(default_factory=DriverBars)
    heat: Heat = field(default_factory=Heat)
    steps: tuple[Step, ...] = ()
    markers: tuple[EventRow, ...] = ()


MAX_BARS = 2000


class RunSource(CallSource, LatencySource, StepSource, RankRunSource, Protocol):
    """Answers about one run. Every method may be called from several threads at once."""

    def run(self) -> Run:
        """Return the run itself."""
        ...

    def recorder(self) -> RecorderState:
        """Return the recorder strip."""
        ...

    def overview(self) -> Overview:
        """Return the first page's content: all steps, methods by total time, ranks by lost time, 10 events."""
        ...

    def timeline(self, from_ms: float | None, to_ms: float | None, px: int) -> Timeline:
        """Return the window ``[from_ms, to_ms]`` for a figure ``px`` wide; None is the run's start or its end."""
        ...

    def spans(self, from_ms: float | None, to_ms: float | None) -> Timeline | None:
        """Return a window with each of its spans, or None when there are too many, or they were pruned."""
        ...

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools in their current state."""
        ...

    def workers(self) -> tuple[Worker, ...]:
        """Return every worker the run had."""
        ...

    def events(self, limit: int, cursor: int | None) -> tuple[EventRow, ...]:
        """Return events newest first, those with an id below ``cursor``."""
        ...

    def operations(self, limit: int, cursor: str | None) -> tuple[Operation, ...]:
        """Return control operations newest first, those made before operation ``cursor``."""
        ...

    def deaths(self) -> tuple[Death, ...]:
        """Return the workers that died, in the order of their deaths."""
        ...

    def crash_text(self) -> str:
        """Return what faulthandler wrote beside the run's file, empty when it wrote nothing."""
        ...

    def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
        """Return the calls without an end, longest first."""
        ...

    def groups(self) -> tuple[Group, ...]:
        """Return every worker group the run had, in the order they were made."""
        ...

    def pool_generations(self) -> tuple[PoolGeneration, ...]:
        """Return what every pool looked like in each of its generations, by pool and generation."""
        ...

    def audit_entries(self, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
        """Return attempts to change something newest first, those with an id below ``cursor``."""
        ...

    def gaps(self) -> tuple[Gap, ...]:
        """Return the times of which something was not recorded, newest first; at most 200."""
        ...

    def config(self) -> tuple[ConfigValue, ...]:
        """Return the values of its configuration that the driver chose to show, by name."""
        ...

    def sequence(self) -> int:
        """Return a number that grows whenever something was recorded."""
        ...

    def close(self) -> None:
        """Close the file; may be called twice."""
        ...
