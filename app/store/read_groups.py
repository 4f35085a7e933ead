"""Questions about worker groups."""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from app.store.read_calls import ms
from web.rows import Group


def groups(connection: sqlite3.Connection) -> tuple[Group, ...]:
    """Return every worker group the run had, in the order they were made."""
    methods: dict[int, list[str]] = defaultdict(list)
    for group_id, name in connection.execute("SELECT group_id, name FROM method ORDER BY id"):
        methods[group_id].append(name)
    alive = dict(
        connection.execute(
            "SELECT l.group_id, count(*) FROM worker w JOIN lane l ON l.id = w.lane_id "
            "WHERE w.state = 'alive' GROUP BY l.group_id"
        ).fetchall()
    )
    rows = connection.execute(
        "SELECT g.id, g.name, coalesce(p.name, ''), g.worker_class, g.world_size, g.created_ns, g.closed_ns "
        "FROM worker_group g LEFT JOIN pool p ON p.id = g.pool_id ORDER BY g.id"
    )
    return tuple(
        Group(
            name=name,
            pool=pool,
            worker_class=worker_class,
            world_size=world_size,
            n_alive=alive.get(group_id, 0),
            methods=tuple(methods[group_id]),
            created_ms=ms(created_ns),
            closed_ms=None if closed_ns is None else ms(closed_ns),
        )
        for group_id, name, pool, worker_class, world_size, created_ns, closed_ns in rows
    )
