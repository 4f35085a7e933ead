"""The events, as frozen values.

Every time is in nanoseconds on the *driver clock*: the wall clock at the driver's start, carried forward by its
monotonic clock, so it never jumps. Times from workers' clocks are aligned to it before an event is created.

``pool`` and ``group`` are names, unique within a run; ``call_id`` counts from 1. No event contains an argument, a
result, a handle or an object reference of a call: only sizes, times and names.

Events that every call emits are named tuples: creating a frozen dataclass takes three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from core.events.parts import DeathReport, ErrorFacts, MethodFacts, SlotFacts
from core.events.traits import Standing, Subject, always, event_class

NOTICE_CHARS = 4_000
"""The maximum length of a notice's text."""
_CUT_NOTE_CHARS = 60


def _pool(event: Any) -> Subject:
    return "pool", event.pool


def _group(event: Any) -> Subject:
    return "group", event.group


def _worker(event: Any) -> Subject:
    return "group", event.group, event.rank


@event_class(standing=Standing(_pool))
@dataclass(frozen=True, slots=True)
class PoolCreated:
    """A resource pool has its slots. ``process_on_nodes`` is the list of processes per node."""

    at_ns: int
    pool: str
    process_on_nodes: tuple[int, ...]
    slots: tuple[SlotFacts, ...]
    generation: int
    state: str
    use_gpu: bool
    max_colocate_count: int


@event_class(standing=Standing(_pool, lambda event: bool(event.state == "closed")), ends=True)
@dataclass(frozen=True, slots=True)
class PoolStateChanged:
    """A pool has changed its state: active, pausing, paused, changing, closed or failed."""

    at_ns: int
    pool: str
    state: str
    generation: int
    reason: str = ""


@event_class(standing=Standing(_group))
@dataclass(frozen=True, slots=True)
class GroupCreated:
    """All workers of a group have started. ``worker_class`` is its qualified name."""

    at_ns: int
    group: str
    pool: str
    worker_class: str
    world_size: int
    methods: tuple[MethodFacts, ...]


@event_class(standing=Standing(_group, always), ends=True)
@dataclass(frozen=True, slots=True)
class GroupClosed:
    """A group was closed and its workers were ended."""

    at_ns: int
    group: str
    pool: str


@event_class(standing=Standing(_worker))
@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process has started. ``devices`` are its visible devices, such as "0" or "not set"."""

    at_ns: int
    group: str
    pool: str
    rank: int
    local_rank: int
    name: str
    pid: int
    node: str
    actor_id: str
    devices: str


@event_class(standing=Standing(_worker, always), ends=True, urgent=True)
@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker process has ended. ``died`` is False if it was closed on purpose; a death has a ``report``.

    ``method`` and ``call_id`` are the call that it was executing, empty and 0 if it was idle.
    """

    at_ns: int
    group: str
    rank: int
    died: bool
    reason: str = ""
    pid: int = 0
    node: str = ""
    method: str = ""
    call_id: int = 0
    report: DeathReport | None = None


@event_class(standing=Standing(_group))
@dataclass(frozen=True, slots=True)
class GroupRebuilt:
    """A group has new workers, after a live change of its pool or a restart after a death.

    ``WorkerEnded`` and ``WorkerStarted`` of the workers come before or after it. ``pool`` is the group's pool now.
    """

    at_ns: int
    group: str
    pool: str
    world_size: int
    generation: int
    reason: str


@event_class(standing=Standing(_pool))
@dataclass(frozen=True, slots=True)
class PoolChanged:
    """A pool has other slots now, in its next ``generation``; ``operation_id`` is the operation that did it."""

    at_ns: int
    pool: str
    process_on_nodes: tuple[int, ...]
    slots: tuple[SlotFacts, ...]
    generation: int
    operation_id: str = ""


@event_class()
@dataclass(frozen=True, slots=True)
class CallStalled:
    """``ranks`` have not responded to a call for ``seconds``; emitted again when that has doubled."""

    at_ns: int
    call_id: int
    group: str
    method: str
    ranks: tuple[int, ...]
    seconds: float


@event_class()
@dataclass(frozen=True, slots=True)
class WorkerClock:
    """The estimated offset of a worker's clock to the driver clock, and its maximum error, in ns."""

    at_ns: int
    group: str
    rank: int
    offset_ns: int
    error_ns: int


@event_class()
class CallStarted(NamedTuple):
    """The driver called a bound method and has passed the pool's gate.

    ``at_ns`` is when the driver made the call, before it waited ``gate_ns`` at the gate. ``ranks`` are those that
    execute it.
    """

    call_id: int
    at_ns: int
    group: str
    pool: str
    generation: int
    method: str
    dispatch_mode: str
    execute_mode: str
    blocking: bool
    gate_ns: int
    step: int
    ranks: tuple[int, ...] = ()


@event_class()
class RankFinished(NamedTuple):
    """One rank's span of a call.

    ``submitted_ns`` and ``ready_ns`` are read on the driver; ``started_ns`` and ``finished_ns`` on the worker and
    aligned with an uncertainty of ``clock_error_ns``; they are None if the rank never responded. ``status`` is "ok",
    "error" (its method raised), "died" or "cancelled". ``serialise_ns`` is the time that the driver took to
    pass this rank's arguments to the cluster, including pickling and copying.
    """

    call_id: int
    group: str
    rank: int
    submitted_ns: int
    started_ns: int | None
    finished_ns: int | None
    ready_ns: int
    clock_error_ns: int
    status: str
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    serialise_ns: int = 0


@event_class(ends=True)
class CallFinished(NamedTuple):
    """The end of a call: exactly one for each ``CallStarted``, also after an error.

    The five steps are durations on the driver's thread. A non-blocking call ends when its last rank has responded; its
    wait, collect and unpad are 0 here and come with ``CallAwaited``. ``rows`` are the real rows of the caller's batch,
    without ``padding_rows``; ``shard_sizes`` are the rows sent to each rank, padding included, empty when the mode
    splits no rows. ``bytes_out`` went to the workers, ``bytes_in`` came back ("driver payload", not network).
    ``status`` is "ok", "error", "died" or "cancelled". ``serialise_ns`` is the part of dispatch and execute that went
    into pickling and copying the arguments.
    """

    call_id: int
    at_ns: int
    status: str
    rows: int
    rows_out: int
    shard_sizes: tuple[int, ...]
    padding_rows: int
    bytes_out: int
    bytes_in: int
    dispatch_ns: int
    execute_ns: int
    wait_ns: int
    collect_ns: int
    unpad_ns: int
    error: ErrorFacts | None = None
    serialise_ns: int = 0


@event_class(ends=True)
@dataclass(frozen=True, slots=True)
class CallAwaited:
    """The driver requested the value of a non-blocking call, at ``awaited_at_ns``, and received it or ``error``.

    ``wait_ns`` is the time from then until the ranks had responded. It may be emitted before or after the call's
    ``CallFinished``, once at most, and never if the value is not requested.
    """

    call_id: int
    awaited_at_ns: int
    wait_ns: int
    collect_ns: int
    unpad_ns: int
    error: ErrorFacts | None = None


@event_class()
@dataclass(frozen=True, slots=True)
class StepStarted:
    """The driver began step ``index`` (from 1) of ``total`` (0 if unknown)."""

    at_ns: int
    index: int
    total: int


@event_class(ends=True)
@dataclass(frozen=True, slots=True)
class StepFinished:
    """The driver ended a step; ``metrics`` are the values that the driver reported, such as ("reward", 0.4)."""

    at_ns: int
    index: int
    metrics: tuple[tuple[str, float], ...]


@event_class()
@dataclass(frozen=True, slots=True)
class ConfigLogged:
    """The driver showed values of its configuration: dotted names, and the values as JSON."""

    at_ns: int
    values: tuple[tuple[str, str], ...]


@event_class(ends=True, urgent=True)
@dataclass(frozen=True, slots=True)
class OperationChanged:
    """A control operation has changed its state or progress.

    ``state`` is pending, preparing, waiting_for_safe_point, running, succeeded, failed, cancelled or expired; ``who``
    is the name of the token or "driver". ``progress`` is its current action, ``plan`` its plan as JSON text, and
    ``downtime_ns`` is how long it blocked the driver, 0 until it has ended.
    """

    at_ns: int
    operation_id: str
    kind: str
    pool: str
    state: str
    who: str
    expected_generation: int | None
    before: str = ""
    after: str = ""
    error: str = ""
    progress: str = ""
    plan: str = ""
    downtime_ns: int = 0


@event_class()
@dataclass(frozen=True, slots=True)
class Notice:
    """A message in the list of events. ``level`` is "info", "warning" or "error".

    ``text`` can quote messages of the user's code or of the cluster, so it is cut to ``NOTICE_CHARS``.
    """

    at_ns: int
    level: str
    text: str

    def __post_init__(self) -> None:
        """Cut a text that is too long, and append how many characters were cut."""
        n_cut = len(self.text) - NOTICE_CHARS + _CUT_NOTE_CHARS
        if len(self.text) > NOTICE_CHARS:
            text = f"{self.text[:-n_cut]}… ({n_cut:,} more characters were cut)"
            object.__setattr__(self, "text", text)


Event: TypeAlias = (
    PoolCreated
    | PoolStateChanged
    | GroupCreated
    | GroupClosed
    | WorkerStarted
    | WorkerEnded
    | GroupRebuilt
    | PoolChanged
    | CallStalled
    | WorkerClock
    | CallStarted
    | RankFinished
    | CallFinished
    | CallAwaited
    | StepStarted
    | ConfigLogged
    | StepFinished
    | OperationChanged
    | Notice
)
