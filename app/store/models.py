"""The tables of a run's file.

Every ``*_ns`` is nanoseconds; times count from the start of the run on the driver clock (``Run.started_ns`` is that
start), so that they take few bytes. Hot rows (`Call`, `RankSpan`, `Roll`) hold small numbers only; `app.store.codes`
says what they mean. They have no foreign keys: a span may come before or after its call.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, UniqueConstraint, text
from sqlmodel import Field

from app.store.base import APPLICATION_ID, READABLE_REVISIONS, SCHEMA_REVISION, Record, later
from app.store.incidents import AuditEntry, ClockAnchor, Death, Event, Gap, Operation, Stall

__all__ = [
    "APPLICATION_ID",
    "READABLE_REVISIONS",
    "SCHEMA_REVISION",
    "AuditEntry",
    "Call",
    "ClockAnchor",
    "ConfigValue",
    "Death",
    "Event",
    "Gap",
    "GroupGeneration",
    "Lane",
    "Latency",
    "Method",
    "Operation",
    "Pool",
    "PoolGeneration",
    "RankSpan",
    "Record",
    "Roll",
    "Run",
    "Stall",
    "Step",
    "StepMetric",
    "Word",
    "Worker",
    "WorkerGroup",
]


class Run(Record, table=True):
    """The run; one row, id 1. ``status`` is running, ended or failed; the reader adds "died".

    ``journal`` is how SQLite keeps the file whole: "wal", or "delete" where a write-ahead log cannot be. ``git`` is the
    commit of the script's folder, with "modified" where files of it are; empty where that is not known.
    """

    __tablename__ = "run"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: int = Field(primary_key=True)
    uid: str
    name: str
    script: str
    host: str
    pid: int
    podium_version: str
    python_version: str
    ray_version: str
    started_wall_ns: int
    started_ns: int
    status: str = "running"
    clean_exit: bool = False
    heartbeat_wall_ns: int = 0
    last_ns: int = 0
    sequence: int = 0
    n_recorded: int = 0
    n_dropped: int = 0
    n_calls: int = 0
    n_failed_calls: int = 0
    writer_lag_ns: int = 0
    pruned_before_ns: int | None = None
    journal: str = later("wal")
    git: str = later("")


class ConfigValue(Record, table=True):
    """A value of the driver's configuration that it chose to show; ``value`` is JSON."""

    __tablename__ = "config_value"
    __table_args__ = ({"sqlite_with_rowid": False},)

    name: str = Field(primary_key=True)
    value: str


class Pool(Record, table=True):
    """A resource pool as it stands."""

    __tablename__ = "pool"

    id: int = Field(primary_key=True)
    name: str = Field(unique=True)
    state: str
    generation: int
    process_on_nodes: str
    use_gpu: bool
    max_colocate_count: int
    created_ns: int
    updated_ns: int
    reason: str = ""


class PoolGeneration(Record, table=True):
    """What a pool looked like in one generation.

    ``slots`` has a line per slot: node, its index, index on the node. ``operation_uid`` is the operation that made it.
    """

    __tablename__ = "pool_generation"
    __table_args__ = (UniqueConstraint("pool_id", "generation"),)

    id: int = Field(primary_key=True)
    pool_id: int = Field(foreign_key="pool.id")
    generation: int
    at_ns: int
    process_on_nodes: str
    slots: str
    operation_uid: str = later("")


class WorkerGroup(Record, table=True):
    """A worker group; ``closed_ns`` is empty while it stands."""

    __tablename__ = "worker_group"

    id: int = Field(primary_key=True)
    name: str = Field(unique=True)
    pool_id: int = Field(foreign_key="pool.id")
    worker_class: str
    world_size: int
    created_ns: int
    closed_ns: int | None = None


class GroupGeneration(Record, table=True):
    """Where a group was from ``at_ns`` on: made, or rebuilt on other workers. ``generation`` is the pool's."""

    __tablename__ = "group_generation"

    id: int = Field(primary_key=True)
    group_id: int = Field(foreign_key="worker_group.id", index=True)
    pool_id: int = Field(foreign_key="pool.id")
    generation: int
    at_ns: int
    world_size: int
    reason: str


class Lane(Record, table=True):
    """One rank of one group through all its workers, with its spans added up. Lane 0, the driver's own, has no row.

    ``lost_ns`` is the sum over calls of the rank's run time above the median of the ranks; ``longest_ns`` bounds how
    far before a window a span can begin and still reach into it. ``streak`` is in how many of its last calls in a
    row it was the slowest, from ``streak_from_ns`` on; the longest one is kept beside it.
    """

    __tablename__ = "lane"
    __table_args__ = (UniqueConstraint("group_id", "rank"),)

    id: int = Field(primary_key=True)
    group_id: int = Field(foreign_key="worker_group.id")
    rank: int
    n_calls: int = 0
    busy_ns: int = 0
    lost_ns: int = 0
    n_slowest: int = 0
    longest_ns: int = 0
    streak: int = later(0)
    streak_from_ns: int = later(0)
    longest_streak: int = later(0)
    longest_streak_from_ns: int = later(0)


class Worker(Record, table=True):
    """One worker process; ``state`` is alive, ended or died.

    ``clock_offset_ns`` is what its own clock is ahead of the driver clock, as last estimated; empty when it never was.
    """

    __tablename__ = "worker"

    id: int = Field(primary_key=True)
    lane_id: int = Field(foreign_key="lane.id", index=True)
    pool_id: int = Field(foreign_key="pool.id")
    local_rank: int
    name: str
    pid: int
    node: str
    actor_id: str
    devices: str
    state: str
    started_ns: int
    ended_ns: int | None = None
    reason: str = ""
    clock_offset_ns: int | None = later(None)
    clock_error_ns: int | None = later(None)


class Word(Record, table=True):
    """A word of an open enum, such as the name of a dispatch mode."""

    __tablename__ = "word"

    id: int = Field(primary_key=True)
    text: str = Field(unique=True)


class Method(Record, table=True):
    """A bound method with its finished calls added up."""

    __tablename__ = "method"
    __table_args__ = (UniqueConstraint("group_id", "name"),)

    id: int = Field(primary_key=True)
    group_id: int = Field(foreign_key="worker_group.id")
    name: str
    dispatch_mode_id: int = Field(foreign_key="word.id")
    execute_mode_id: int = Field(foreign_key="word.id")
    blocking: bool
    n_calls: int = 0
    n_failed: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    gate_ns: int = 0
    dispatch_ns: int = 0
    execute_ns: int = 0
    wait_ns: int = 0
    collect_ns: int = 0
    unpad_ns: int = 0
    rows: int = 0
    padding_rows: int = 0
    bytes_out: int = 0
    bytes_in: int = 0


class Step(Record, table=True):
    """A step of the driver. ``number`` is what the driver counts, ``total`` 0 when it did not say."""

    __tablename__ = "step"

    id: int = Field(primary_key=True)
    number: int = Field(index=True)
    total: int
    started_ns: int
    ended_ns: int | None = None


class StepMetric(Record, table=True):
    """A number that the driver showed of a step."""

    __tablename__ = "step_metric"
    __table_args__ = ({"sqlite_with_rowid": False},)

    step_id: int = Field(primary_key=True, foreign_key="step.id")
    name: str = Field(primary_key=True)
    value: float | None = None


class Call(Record, table=True):
    """A call, from the moment it passed the gate; ``ended_ns`` is empty while it is in flight.

    ``step`` is the driver's number of the step, 0 outside of any. ``awaited_ns`` is when the future of a non-blocking
    call was first asked for its value. ``shard_sizes`` is compact text such as "4,4,3".
    """

    __tablename__ = "call"
    __table_args__ = (
        Index("ix_call_method_id_id", "method_id", "id"),
        Index("ix_call_step_id", "step", "id"),
        Index("ix_call_started_ns", "started_ns"),
        # Few calls run or fail: these stay small, and finding them never walks the table.
        Index("ix_call_status_id", "status", "id", sqlite_where=text("status != 1")),
    )

    id: int = Field(primary_key=True)
    method_id: int
    pool_id: int
    generation: int
    dispatch_mode_id: int
    execute_mode_id: int
    blocking: bool
    step: int
    status: int
    started_ns: int
    ended_ns: int | None
    gate_ns: int
    dispatch_ns: int
    execute_ns: int
    wait_ns: int
    collect_ns: int
    unpad_ns: int
    awaited_ns: int | None
    rows: int
    rows_out: int
    padding_rows: int
    bytes_out: int
    bytes_in: int
    shard_sizes: str
    error_type: str | None
    error_message: str | None
    error_traceback: str | None
    error_rank: int | None
    serialise_ns: int = later(0)


class RankSpan(Record, table=True):
    """One rank's part of a call, in the order of its lane.

    ``began_ns`` and ``ended_ns`` are when the method ran, by the rank's own aligned clock where ``said`` has that bit,
    otherwise when the driver submitted it and had its answer.
    """

    __tablename__ = "rank_span"
    __table_args__ = (
        Index("uq_rank_span_call_id_lane_id", "call_id", "lane_id", unique=True),
        {"sqlite_with_rowid": False},
    )

    lane_id: int = Field(primary_key=True)
    began_ns: int = Field(primary_key=True)
    call_id: int = Field(primary_key=True)
    ended_ns: int
    method_id: int
    status: int
    said: int
    submitted_ns: int
    ready_ns: int
    clock_error_ns: int
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    serialise_ns: int = later(0)


class Roll(Record, table=True):
    """Spans added up per lane and bucket of time; a bucket of ``level`` lasts ``4 ** level`` s.

    A span counts in ``n`` and ``max_ns`` where it began, in ``busy_ns`` in every bucket that it touched.
    """

    __tablename__ = "roll"
    __table_args__ = ({"sqlite_with_rowid": False},)

    level: int = Field(primary_key=True)
    lane_id: int = Field(primary_key=True)
    bucket: int = Field(primary_key=True)
    n: int
    busy_ns: int
    max_ns: int
    max_call_id: int
    err_n: int


class Latency(Record, table=True):
    """How many calls of a method that began in a bucket of time took how long.

    Buckets as in `Roll`; ``slot`` is a quarter of an octave of nanoseconds, see `app.store.histogram_bins`.
    """

    __tablename__ = "latency"
    __table_args__ = ({"sqlite_with_rowid": False},)

    level: int = Field(primary_key=True)
    method_id: int = Field(primary_key=True)
    bucket: int = Field(primary_key=True)
    slot: int = Field(primary_key=True)
    n: int
