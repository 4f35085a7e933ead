"""The tables of what happened: events, deaths, stalls, gaps, operations and who asked for them."""

from __future__ import annotations

from sqlalchemy import DDL, event
from sqlmodel import Field

from app.store.base import Record, later


class ClockAnchor(Record, table=True):
    """What the wall clock said about once a minute: it may jump, the driver clock never does."""

    __tablename__ = "clock_anchor"

    at_ns: int = Field(primary_key=True)
    wall_ns: int


class Gap(Record, table=True):
    """A time of which ``n_events`` events were not recorded, and why."""

    __tablename__ = "gap"

    id: int = Field(primary_key=True)
    from_ns: int
    to_ns: int
    n_events: int
    reason: str


class Death(Record, table=True):
    """What is known of a worker's death, and by what evidence.

    ``others`` has a line per other rank: rank, seconds, state. ``evidence`` and ``log_tail`` are lines. ``signal`` is
    0, ``exit_code`` and ``oom`` are empty where nothing says; ``call_id`` is 0 when the worker was idle.
    """

    __tablename__ = "death"

    id: int = Field(primary_key=True)
    at_ns: int
    group_id: int = Field(foreign_key="worker_group.id")
    lane_id: int = Field(foreign_key="lane.id")
    worker_id: int | None = Field(foreign_key="worker.id")
    rank: int
    pid: int
    node: str
    role: str
    worker: str
    actor_id: str
    cause: str
    signal: int
    exit_code: int | None
    oom: bool | None
    evidence: str
    memory_bytes: int
    memory_limit_bytes: int
    others: str
    log_tail: str
    policy: str
    method: str
    call_id: int


class Event(Record, table=True):
    """A line in the list of what happened."""

    __tablename__ = "event"

    id: int = Field(primary_key=True)
    at_ns: int = Field(index=True)
    level: int
    kind: str
    text: str


class Stall(Record, table=True):
    """A call that was reported as stalled: the last report, with the pending ranks, such as "1,3"."""

    __tablename__ = "stall"

    call_id: int = Field(primary_key=True)
    at_ns: int
    seconds: float
    ranks: str


class Operation(Record, table=True):
    """A control operation as it stands. ``plan`` is JSON text.

    ``safe_point_ns`` is how long it waited for the driver's safe point, ``stand_still_ns`` how long that then stood.
    """

    __tablename__ = "operation"

    id: int = Field(primary_key=True)
    uid: str = Field(unique=True)
    kind: str
    pool: str
    state: str
    who: str
    expected_generation: int | None
    created_ns: int
    updated_ns: int
    before: str
    after: str
    error: str
    progress: str = later("")
    plan: str = later("")
    safe_point_ns: int = later(0)
    stand_still_ns: int = later(0)


class AuditEntry(Record, table=True):
    """One attempt to change something from outside. Rows are only ever added: triggers refuse the rest."""

    __tablename__ = "audit_entry"

    id: int = Field(primary_key=True)
    at_ns: int
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


def append_only_triggers(table: str) -> tuple[str, str]:
    """Return the SQL of the triggers that let rows of ``table`` only ever be added."""
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END",
    )


for _statement in append_only_triggers("audit_entry"):
    event.listen(Record.metadata.tables["audit_entry"], "after_create", DDL(_statement))  # type: ignore[no-untyped-call]
