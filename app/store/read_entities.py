"""Questions about pools, groups, workers, operations and control requests."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from app.store.codes import LEVELS, unpack_processes, whole
from app.store.row_query import RowQuery
from app.store.texts import LINE, shown
from web.plans import load_plan
from web.rows import (
    AuditEntry,
    ConfigValue,
    EventRow,
    Gap,
    Group,
    MethodTotal,
    Operation,
    Pool,
    PoolGeneration,
    RankTotal,
    Slot,
    Worker,
)

_NEWEST = 2**62
_MOST_GAPS = 200
_MOST_VALUES, _MOST_VALUE_CHARS = 2_000, 2_000
# The last call that a worker answered; NULL where it answered none, or where its spans were pruned.
_LAST_SPAN = (
    "FROM rank_span s WHERE s.lane_id = w.lane_id "
    f"AND s.began_ns BETWEEN w.started_ns AND coalesce(w.ended_ns, {_NEWEST}) ORDER BY s.began_ns DESC LIMIT 1"
)
_POOLS = RowQuery(
    Pool,
    "pool",
    parse={"process_on_nodes": unpack_processes},
    computed=("world_size", "groups", "n_calls_in_flight", "n_calls_waiting"),
    also={"id": "id"},
)
_WORKERS = RowQuery(
    Worker,
    "worker w JOIN lane l ON l.id = w.lane_id JOIN worker_group g ON g.id = l.group_id JOIN pool p ON p.id = w.pool_id",
    "w",
    columns={
        "group": "g.name",
        "pool": "p.name",
        "rank": "l.rank",
        "last_call_id": f"coalesce((SELECT s.call_id {_LAST_SPAN}), 0)",
        "last_method": f"coalesce((SELECT m.name FROM method m WHERE m.id = (SELECT s.method_id {_LAST_SPAN})), '')",
    },
)
_OPERATIONS = RowQuery(
    Operation,
    "operation",
    columns={"id": "uid", "downtime_ms": "stand_still_ns"},
    parse={"plan": load_plan},
)
_AUDIT_ENTRIES = RowQuery(AuditEntry, "audit_entry")
_GAPS = RowQuery(Gap, "gap")
_CONFIG = RowQuery(
    ConfigValue, "config_value", columns={"name": shown("name", LINE), "value": shown("value", _MOST_VALUE_CHARS)}
)
_METHODS = RowQuery(
    MethodTotal,
    "method m JOIN worker_group g ON g.id = m.group_id",
    "m",
    columns={"group": "g.name", "method": "m.name", "max_ms": "m.longest_ns"},
    computed=("mean_ms",),
)
_RANKS = RowQuery(RankTotal, "lane l JOIN worker_group g ON g.id = l.group_id", "l", columns={"group": "g.name"})
_GROUPS = RowQuery(
    Group,
    "worker_group g LEFT JOIN pool p ON p.id = g.pool_id",
    "g",
    columns={"pool": "coalesce(p.name, '')"},
    computed=("n_alive", "methods"),
    also={"id": "g.id"},
)


def _slots(text: str) -> tuple[Slot, ...]:
    lines = [line.split("\t") for line in text.split("\n") if line]
    return tuple(Slot(index, node, whole(local_index)) for index, (node, _, local_index) in enumerate(lines))


_POOL_GENERATIONS = RowQuery(
    PoolGeneration,
    "pool_generation g JOIN pool p ON p.id = g.pool_id",
    "g",
    columns={"pool": "p.name", "operation_id": "g.operation_uid"},
    parse={"process_on_nodes": unpack_processes, "slots": _slots},
)


def pools(connection: sqlite3.Connection) -> tuple[Pool, ...]:
    """Return the pools in their current state."""
    groups: dict[int, list[str]] = defaultdict(list)
    for pool_id, name in connection.execute(
        "SELECT pool_id, name FROM worker_group WHERE closed_ns IS NULL ORDER BY id"
    ):
        groups[pool_id].append(name)
    return tuple(
        _POOLS.build(pool, world_size=sum(pool["process_on_nodes"]), groups=tuple(groups[pool["id"]]))
        for pool in _POOLS.records(connection, "WHERE name != '' ORDER BY id")
    )


def pool_generations(connection: sqlite3.Connection) -> tuple[PoolGeneration, ...]:
    """Return what every pool looked like in each of its generations, by pool and generation."""
    return _POOL_GENERATIONS.rows(connection, "ORDER BY p.id, g.generation")


def groups(connection: sqlite3.Connection) -> tuple[Group, ...]:
    """Return every worker group of the run, in the order of creation."""
    methods: dict[int, list[str]] = defaultdict(list)
    for group_id, name in connection.execute("SELECT group_id, name FROM method ORDER BY id"):
        methods[group_id].append(name)
    alive = dict(
        connection.execute(
            "SELECT l.group_id, count(*) FROM worker w JOIN lane l ON l.id = w.lane_id "
            "WHERE w.state = 'alive' GROUP BY l.group_id"
        ).fetchall()
    )
    return tuple(
        _GROUPS.build(group, n_alive=alive.get(group["id"], 0), methods=tuple(methods[group["id"]]))
        for group in _GROUPS.records(connection, "ORDER BY g.id")
    )


def workers(connection: sqlite3.Connection) -> tuple[Worker, ...]:
    """Return every worker of the run, with the last call that it answered."""
    return _WORKERS.rows(connection, "ORDER BY g.id, l.rank, w.id")


def methods(connection: sqlite3.Connection) -> tuple[MethodTotal, ...]:
    """Return the sums of every method that was called, the longest total first."""
    return tuple(
        _METHODS.build(method, mean_ms=method["total_ms"] / method["n_calls"])
        for method in _METHODS.records(connection, "WHERE m.n_calls > 0 ORDER BY m.total_ns DESC")
    )


def ranks(connection: sqlite3.Connection) -> tuple[RankTotal, ...]:
    """Return the sums of every rank, the most lost time first."""
    return _RANKS.rows(connection, "ORDER BY l.lost_ns DESC, l.id")


def operations(connection: sqlite3.Connection, limit: int, cursor: str | None) -> tuple[Operation, ...]:
    """Return control operations newest first, those made before operation ``cursor``."""
    below = "(SELECT id FROM operation WHERE uid = ?)" if cursor is not None else "? + 0"
    values = (_NEWEST if cursor is None else cursor, limit)
    return _OPERATIONS.rows(connection, f"WHERE operation.id < {below} ORDER BY operation.id DESC LIMIT ?", values)


def audit_entries(connection: sqlite3.Connection, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
    """Return attempts to change something newest first, those with an id below ``cursor``."""
    values = (_NEWEST if cursor is None else cursor, limit)
    return _AUDIT_ENTRIES.rows(connection, "WHERE id < ? ORDER BY id DESC LIMIT ?", values)


def events_query(most_characters: int) -> RowQuery[EventRow]:
    """Return the query of lines in the list of events, each text cut after ``most_characters``."""
    columns = {"text": shown("text", most_characters)}
    return RowQuery(EventRow, "event", columns=columns, parse={"level": LEVELS.__getitem__})


_EVENTS = events_query(LINE)


def events(connection: sqlite3.Connection, limit: int, cursor: int | None) -> tuple[EventRow, ...]:
    """Return events newest first, those with an id below ``cursor``."""
    values = (_NEWEST if cursor is None else cursor, limit)
    return _EVENTS.rows(connection, "WHERE id < ? ORDER BY id DESC LIMIT ?", values)


def gaps(connection: sqlite3.Connection) -> tuple[Gap, ...]:
    """Return the times of which something was not recorded, newest first."""
    return _GAPS.rows(connection, f"ORDER BY id DESC LIMIT {_MOST_GAPS}")


def config(connection: sqlite3.Connection) -> tuple[ConfigValue, ...]:
    """Return the values of the driver's configuration by name."""
    return _CONFIG.rows(connection, f"ORDER BY name LIMIT {_MOST_VALUES}")
