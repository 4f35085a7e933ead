"""The rows of a run's record, one definition each, for the store, REST, the client and the pages.

The module imports nothing, so that each of them may import it. All times are floats in milliseconds since the run
started (``Run.started_at`` says when that was), so that JavaScript loses no digits. Durations carry their unit in the
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One run, that is one file. ``state`` is running, ended, failed or died; ``started_at`` is ISO 8601 in UTC.

    ``git`` is the commit of the script's folder, with ", modified" after it where tracked files differ; empty where it
    is not known.
    """

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
    git: str = ""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value of the driver's configuration that it chose to show: a dotted name, and the value as JSON."""

    name: str
    value: str


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
    """A pool in its current state. ``state`` is pending, active, pausing, paused, changing, closed or failed.

    A pending pool is open for calls, but its slots are not reserved yet; only a running driver knows of it.

    The calls in flight and waiting at the gate are None where only the file is there to ask.
    """

    name: str
    state: str
    generation: int
    process_on_nodes: tuple[int, ...]
    world_size: int
    groups: tuple[str, ...]
    n_calls_in_flight: int | None = None
    n_calls_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a pool: the process number ``index`` in rank order and its placement."""

    index: int
    node: str
    local_index: int


@dataclass(frozen=True, slots=True)
class PoolGeneration:
    """What a pool looked like from ``at_ms`` until its next generation; ``operation_id`` is empty at its creation."""

    pool: str
    generation: int
    at_ms: float
    process_on_nodes: tuple[int, ...]
    slots: tuple[Slot, ...]
    operation_id: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A worker group. ``closed_ms`` is None while it stands; ``n_alive`` of its workers are up."""

    name: str
    pool: str
    worker_class: str
    world_size: int
    n_alive: int
    methods: tuple[str, ...]
    created_ms: float
    closed_ms: float | None = None


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
class CallRow:
    """A call in a list. ``status`` is running, ok, error, died or cancelled.

    A call that was in flight when the driver died has died with it.
    """

    id: int
    group: str
    pool: str
    method: str
    dispatch_mode: str
    execute_mode: str
    blocking: bool
    step: int
    status: str
    started_ms: float
    duration_ms: float
    rows: int
    padding_rows: int
    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, slots=True)
class RankSpan:
    """One rank's part of a call, in ms since the run's start; None where the rank did not report.

    ``queued_ms`` = started - submitted, ``ran_ms`` = finished - started, ``fetched_ms`` = ready - finished.
    ``outside`` says that the aligned span sticks out of its call by more than the clocks' error.
    """

    rank: int
    node: str
    submitted_ms: float
    started_ms: float | None
    finished_ms: float | None
    ready_ms: float | None
    clock_error_ms: float
    status: str
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    outside: bool = False


@dataclass(frozen=True, slots=True)
class RankOut:
    """A rank that a call in flight waits for: for how long it has been asked, and where it lives."""

    rank: int
    out_ms: float
    node: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class CallInFlight:
    """A call without its end: ``running_ms`` long so far, or when the driver died, with its pending ranks.

    ``is_stalled`` says that a stall was reported: it has been in flight for longer than ``stall_s``.
    """

    id: int
    group: str
    pool: str
    method: str
    blocking: bool
    started_ms: float
    running_ms: float
    n_ranks: int
    out: tuple[RankOut, ...]
    is_stalled: bool = False


@dataclass(frozen=True, slots=True)
class RankDoing:
    """What a rank was doing at a moment: "idle", "in <method>", "answered", "dead" or "not asked", for ``seconds``."""

    rank: int
    state: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Death:
    """A worker's death and its report, as `core.events.DeathReport` has it. ``at_ms`` is when it was noticed.

    ``signal`` is 0 and ``exit_code`` None where they could not be found out; ``oom`` is None when nothing says either
    way; memory is 0 when unknown; ``call_id`` is 0 for a worker that was idle. ``others`` are the other ranks of the
    group at that moment, less ``n_unreadable_others`` that the file holds in no shape that can be read. A file that was
    written without reports has empty ones, with ``cause`` as all it knows.
    """

    group: str
    rank: int
    at_ms: float
    pid: int
    node: str
    worker: str
    actor_id: str
    cause: str
    role: str = ""
    method: str = ""
    call_id: int = 0
    signal: int = 0
    exit_code: int | None = None
    oom: bool | None = None
    evidence: tuple[str, ...] = ()
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    others: tuple[RankDoing, ...] = ()
    log_tail: tuple[str, ...] = ()
    policy: str = ""
    n_unreadable_others: int = 0


@dataclass(frozen=True, slots=True)
class EventRow:
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
    """A control operation and how it went. ``plan`` is its plan under the names of REST, None where it has none.

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
    plan: Mapping[str, Any] | None = None
    safe_point_ms: float = 0.0
    downtime_ms: float = 0.0

    @property
    def done(self) -> bool:
        """Whether it will not change any more."""
        return self.state in END_STATES

    @property
    def succeeded(self) -> bool:
        """Whether it is done and did what was asked."""
        return self.state == "succeeded"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One attempt to change something from outside, also one that was refused."""

    id: int
    at_ms: float
    actor: str
    remote: str
    user_agent: str
    request_id: str
    action: str
    target: str
    expected_generation: int | None
    outcome: str
    detail: str
    operation_id: str
