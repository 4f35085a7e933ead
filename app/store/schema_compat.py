"""Reads a file of an older schema as the current one, without changing it.

What came later is laid over the file in the connection's own temporary tables, which SQLite looks at first: a view for
a table that lacks columns, an empty table for one that is not there. The queries stay those of today, and so do their
indexes, as SQLite flattens such a view away.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy import Column, Table

from app.store.models import Record

# What an older file knows of a table that came later.
_KNOWN = {
    "death": (
        "SELECT row_number() OVER (ORDER BY w.ended_ns, w.id) AS id, w.ended_ns AS at_ns, "
        "l.group_id, l.id AS lane_id, w.id AS worker_id, l.rank, w.pid, w.node, "
        "g.name AS role, w.name AS worker, w.actor_id, w.reason AS cause, 0 AS signal, NULL AS exit_code, NULL AS oom, "
        "'' AS evidence, 0 AS memory_bytes, 0 AS memory_limit_bytes, '' AS others, '' AS log_tail, '' AS policy, "
        "'' AS method, 0 AS call_id FROM main.worker w JOIN main.lane l ON l.id = w.lane_id "
        "JOIN main.worker_group g ON g.id = l.group_id WHERE w.state = 'died' AND w.ended_ns IS NOT NULL"
    )
}


def add_compat_views(connection: sqlite3.Connection) -> None:
    """Add views of the current schema to the older file of ``connection``, which may be read-only."""
    connection.execute("PRAGMA temp_store = MEMORY")
    for table in Record.metadata.sorted_tables:
        present = {row[1] for row in connection.execute(f"PRAGMA main.table_info({table.name})")}
        query = _query(table, present)
        if query is not None:
            connection.execute(f"CREATE TEMP VIEW {table.name} AS {query}")


def _query(table: Table, present: set[str]) -> str | None:
    """Return what stands for ``table`` where the file has only the columns ``present``; None where it has them all."""
    if not present:
        nothing = ", ".join(f'NULL AS "{column.name}"' for column in table.columns)
        return _KNOWN.get(table.name, f"SELECT {nothing} WHERE 0")
    if all(column.name in present for column in table.columns):
        return None
    columns = (
        f'"{column.name}"' if column.name in present else f'{_default(column)} AS "{column.name}"'
        for column in table.columns
    )
    return f"SELECT {', '.join(columns)} FROM main.{table.name}"


def _default(column: Column[object]) -> str:
    """Return what a row that was written before the column came holds in it."""
    default = column.server_default
    return "NULL" if default is None else str(getattr(default, "arg", "NULL"))
