"""Questions about what stands or stood: pools, groups, workers, operations and who asked for them."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from app.store.codes import unpack_processes, whole
from app.store.read_calls import ms
from web.rows import AuditEntry, Operation, Pool, PoolGeneration, Slot, Worker

_NEWEST = 2**62


def pools(connection: sqlite3.Connection) -> tuple[Pool, ...]:
    """Return the pools as they stand."""
    groups: dict[int, list[str]] = defaultdict(list)
    for pool_id, name in connection.execute(
        "SELECT pool_id, name FROM worker_group WHERE closed_ns IS NULL ORDER BY id"
    ):
        groups[pool_id].append(name)
    rows = connection.execute(
        "SELECT id, name, state, generation, process_on_nodes FROM pool WHERE name != '' ORDER BY id"
    )
    found = []
    for pool_id, name, state, generation, sizes in rows:
        per_node = unpack_processes(sizes)
        found.append(Pool(name, state, generation, per_node, sum(per_node), tuple(groups[pool_id])))
    return tuple(found)


def pool_generations(connection: sqlite3.Connection) -> tuple[PoolGeneration, ...]:
    """Return what every pool looked like in each of its generations, by pool and generation."""
    rows = connection.execute(
        "SELECT p.name, g.generation, g.at_ns, g.process_on_nodes, g.slots, g.operation_uid FROM pool_generation g "
        "JOIN pool p ON p.id = g.pool_id ORDER BY p.id, g.generation"
    )
    return tuple(
        PoolGeneration(row[0], row[1], ms(row[2]), unpack_processes(row[3]), _slots(row[4]), row[5]) for row in rows
    )


def workers(connection: sqlite3.Connection) -> tuple[Worker, ...]:
    """Return every worker the run had, with the last call that it answered."""
    last = (
        "FROM rank_span s WHERE s.lane_id = w.lane_id "
        f"AND s.began_ns BETWEEN w.started_ns AND coalesce(w.ended_ns, {_NEWEST}) ORDER BY s.began_ns DESC LIMIT 1"
    )
    rows = connection.execute(
        "SELECT g.name, p.name, l.rank, w.local_rank, w.name, w.pid, w.node, w.actor_id, w.devices, w.state, "
        "w.started_ns, w.ended_ns, w.reason, w.clock_offset_ns, w.clock_error_ns, "
        # None where it answered none, or where its spans were pruned.
        f"coalesce((SELECT s.call_id {last}), 0), "
        f"coalesce((SELECT m.name FROM method m WHERE m.id = (SELECT s.method_id {last})), '') FROM worker w "
        "JOIN lane l ON l.id = w.lane_id JOIN worker_group g ON g.id = l.group_id "
        "JOIN pool p ON p.id = w.pool_id ORDER BY g.id, l.rank, w.id"
    )
    return tuple(
        Worker(*(*row[:10], ms(row[10]), _ms_or_none(row[11]), row[12], *map(_ms_or_none, row[13:15]), *row[15:]))
        for row in rows
    )


def operations(connection: sqlite3.Connection, limit: int, cursor: str | None) -> tuple[Operation, ...]:
    """Return control operations newest first, those made before operation ``cursor``."""
    below = "(SELECT id FROM operation WHERE uid = ?)" if cursor is not None else "? + 0"
    rows = connection.execute(
        "SELECT uid, kind, pool, state, who, created_ns, updated_ns, before, after, error, expected_generation, "
        f"progress, plan, safe_point_ns, stand_still_ns FROM operation WHERE id < {below} ORDER BY id DESC LIMIT ?",
        (_NEWEST if cursor is None else cursor, limit),
    )
    return tuple(Operation(*(*row[:5], ms(row[5]), ms(row[6]), *row[7:13], ms(row[13]), ms(row[14]))) for row in rows)


def audit_entries(connection: sqlite3.Connection, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
    """Return attempts to change something newest first, those with an id below ``cursor``."""
    rows = connection.execute(
        "SELECT id, at_ns, actor, remote, user_agent, request_id, action, target, expected_generation, "
        "outcome, detail, operation_id FROM audit_entry WHERE id < ? ORDER BY id DESC LIMIT ?",
        (_NEWEST if cursor is None else cursor, limit),
    )
    return tuple(AuditEntry(row[0], ms(row[1]), *row[2:]) for row in rows)


def _slots(text: str) -> tuple[Slot, ...]:
    lines = [line.split("\t") for line in text.split("\n") if line]
    return tuple(Slot(index, node, whole(local_index)) for index, (node, _, local_index) in enumerate(lines))


def _ms_or_none(ns: int | None) -> float | None:
    return None if ns is None else ms(ns)
