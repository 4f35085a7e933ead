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
from web.changes import ChangeSource
from web.deaths import DeathSource
from web.groups import GroupSource
from web.latency import LatencySource
from web.steps import StepSource


@dataclass(frozen=True, slots=True)
class Run:
    """One run, that is one file. ``state`` is running, ended, failed or died; ``started_at`` is ISO 8601 in UTC."""

    id: str
    name: str
    script: str
    state: str
    started_at: str
    duration_ms: float
    host: str
    pid: int
    podium_version: str
    python_version: str
    ray_version: str
    n_calls: int
    n_failed_calls: int
    controllable: bool = False


@dataclass(frozen=True, slots=True)
class RecorderState:
    """The recorder strip: how much was recorded, lost or pruned, and how far the writer is behind.

    ``n_gaps`` counts the times of which something was lost. ``db_bytes`` is the file with its write-ahead log,
    ``log_bytes`` that log alone; ``journal`` is "delete" where a log cannot be, on a network filesystem.
    """

    n_recorded: int
    n_dropped: int
    pruned_before_ms: float | None
    writer_lag_ms: float
    db_bytes: int
    log_bytes: int = 0
    journal: str = "wal"
    n_gaps: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """A time of which ``n_events`` events were not recorded, and why."""

    from_ms: float
    to_ms: float
    n_events: int
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the driver, with what it chose to show. ``total`` is 0 when the driver did not say."""

    index: int
    total: int
    started_ms: float
    ended_ms: float | None
    metrics: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class MethodTotal:
    """A method's calls added up. The phases are sums over its calls."""

    group: str
    method: str
    n_calls: int
    n_failed: int
    total_ms: float
    mean_ms: float
    max_ms: float
    gate_ms: float
    dispatch_ms: float
    execute_ms: float
    wait_ms: float
    collect_ms: float
    unpad_ms: float
    rows: int
    padding_rows: int
    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, slots=True)
class RankTotal:
    """A rank's spans added up; ``lost_ms`` is the sum over calls of its run time above the median of the ranks.

    ``streak`` is in how many calls in a row, up to the last, it was the slowest; ``longest_streak`` the most that it
    ever was, from ``longest_streak_from_ms`` on.
    """

    group: str
    rank: int
    n_calls: int
    busy_ms: float
    lost_ms: float
    n_slowest: int
    streak: int = 0
    longest_streak: int = 0
    longest_streak_from_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool in its current state. ``state`` is active, pausing, paused, changing, closed or failed."""

    name: str
    state: str
    generation: int
    process_on_nodes: tuple[int, ...]
    world_size: int
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process of the run; ``state`` is alive, ended or died.

    ``clock_offset_ms`` is its clock less the driver's, wrong by ``clock_error_ms`` at most; None where unknown.
    """

    group: str
    pool: str
    rank: int
    local_rank: int
    name: str
    pid: int
    node: str
    actor_id: str
    devices: str
    state: str
    started_ms: float
    ended_ms: float | None
    reason: str = ""
    clock_offset_ms: float | None = None
    clock_error_ms: float | None = None
    last_call_id: int = 0
    last_method: str = ""


@dataclass(frozen=True, slots=True)
class Happening:
    """A line in the list of events."""

    id: int
    at_ms: float
    level: str
    kind: str
    text: str


# The states that an operation ends in.
END_STATES = frozenset({"succeeded", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True)
class Operation:
    """A control operation and how it went. ``plan`` is its plan as JSON text, or empty.

    ``safe_point_ms`` is how long it waited for a safe point, ``downtime_ms`` how long the driver was blocked for it.
    """

    id: str
    kind: str
    pool: str
    state: str
    who: str
    created_ms: float
    updated_ms: float
    before: str
    after: str
    error: str
    expected_generation: int | None = None
    progress: str = ""
    plan: str = ""
    safe_point_ms: float = 0.0
    downtime_ms: float = 0.0

    @property
    def done(self) -> bool:
        """Whether it will not change any more."""
        return self.state in END_STATES


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
    happenings: tuple[Happening, ...]
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
    markers: tuple[Happening, ...] = ()


MAX_BARS = 2000


class RunSource(CallSource, DeathSource, ChangeSource, LatencySource, GroupSource, StepSource, Protocol):
    """Answers about one run. Every method may be called from several threads at once."""

    def run(self) -> Run:
        """Return the run itself."""
        ...

    def recorder(self) -> RecorderState:
        """Return the recorder strip."""
        ...

    def overview(self) -> Overview:
        """Return the first page's content: all steps, methods by total time, ranks by lost time, 10 happenings."""
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

    def happenings(self, limit: int, cursor: int | None) -> tuple[Happening, ...]:
        """Return events newest first, those with an id below ``cursor``."""
        ...

    def operations(self, limit: int, cursor: str | None) -> tuple[Operation, ...]:
        """Return control operations newest first, those made before operation ``cursor``."""
        ...

    def gaps(self) -> tuple[Gap, ...]:
        """Return the times of which something was not recorded, newest first; at most 200."""
        ...

    def sequence(self) -> int:
        """Return a number that grows whenever something was recorded."""
        ...

    def close(self) -> None:
        """Close the file; may be called twice."""
        ...
