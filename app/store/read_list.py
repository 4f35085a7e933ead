"""Questions about the list of calls: a page of it, by whatever it is narrowed to."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator

from app.store import read_latency
from app.store.codes import OK, RUNNING, STATUSES, status_code
from app.store.read_calls import CALL_ROW, call_row
from web.calls import CallFilter, CallPage

_NEWEST = 2**62
# What a page looks at where no index answers: some 50 ms of work.
MOST_LOOKED_AT = 200_000


def calls(
    connection: sqlite3.Connection,
    limit: int,
    cursor: int | None,
    narrowed: CallFilter,
    run_ns: int,
    never_ended: int = RUNNING,
) -> CallPage:
    """Return a page of calls newest first, those with an id below ``cursor``; the rest as for ``call``."""
    below, above = _reach(connection, cursor, narrowed)
    ids = _ids(connection, limit + 1, (below, above), narrowed, run_ns, never_ended)
    rows = []
    for call_id in ids[:limit]:
        rows.append(connection.execute(f"{CALL_ROW} WHERE c.id = ?", (call_id,)).fetchone())
    items = tuple(call_row(row, run_ns, never_ended) for row in rows)
    if len(ids) > limit:
        return CallPage(items, rows[-1][0])
    (first,) = connection.execute("SELECT min(id) FROM call").fetchone()
    return CallPage(items, above if above and first is not None and first < above else None)


def _reach(connection: sqlite3.Connection, cursor: int | None, narrowed: CallFilter) -> tuple[int, int]:
    """Return below which id calls are looked at, and from which on: from 0 where an index answers."""
    below = _NEWEST if cursor is None else cursor
    if narrowed.step is not None or narrowed.status not in {"", "ok"} or not _by_value(narrowed):
        return below, 0
    (newest,) = connection.execute("SELECT max(id) FROM call").fetchone()
    return below, max(0, min(below, (newest or 0) + 1) - MOST_LOOKED_AT)


def _by_value(narrowed: CallFilter) -> bool:
    return narrowed.min_ms is not None or narrowed.above_p95 or narrowed.padding_above is not None


def _ids(
    connection: sqlite3.Connection,
    limit: int,
    reach: tuple[int, int],
    narrowed: CallFilter,
    run_ns: int,
    never_ended: int,
) -> list[int]:
    """Return the ids of a page, each query walking an index backwards from the cursor and stopping at the limit."""
    conditions, values = ["id < ?", "id >= ?"], list[float](reach)
    if narrowed.status:
        code = status_code(narrowed.status) if narrowed.status in STATUSES else -1
        codes = _codes(code, never_ended)
        # Said twice, as SQLite takes the partial index only where its own condition is spelled out.
        conditions.append(f"status IN ({', '.join('?' * len(codes))})" + (" AND status != 1" if code != OK else ""))
        values.extend(codes)
    if narrowed.step is not None:
        conditions.append("step = ?")
        values.append(narrowed.step)
    for condition, own in _conditions_on_values(connection, narrowed, run_ns):
        conditions.append(condition)
        values.extend(own)
    where = " AND ".join(conditions)
    if not narrowed.group and not narrowed.method:
        query = f"SELECT id FROM call WHERE {where} ORDER BY id DESC LIMIT ?"
        return [row[0] for row in connection.execute(query, (*values, limit))]
    # By the index of the method, unless step or status pick far fewer.
    column = "+method_id" if narrowed.step is not None or narrowed.status not in {"", "ok"} else "method_id"
    query = f"SELECT id FROM call WHERE {column} = ? AND {where} ORDER BY id DESC LIMIT ?"
    found = [
        [row[0] for row in connection.execute(query, (method_id, *values, limit))]
        for method_id in _method_ids(connection, narrowed)
    ]
    return list(heapq.merge(*found, reverse=True))[:limit]


def _conditions_on_values(
    connection: sqlite3.Connection, narrowed: CallFilter, run_ns: int
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield what no index answers, with its values. A call in flight has taken what it has taken so far."""
    took = "coalesce(ended_ns, ?) - started_ns"
    if narrowed.min_ms is not None:
        yield f"{took} >= ?", (run_ns, int(narrowed.min_ms * 1e6))
    if narrowed.above_p95:
        bounds = read_latency.p95_ns(connection, run_ns)
        cases = " ".join("WHEN ? THEN ?" for _ in bounds)
        each = tuple(number for pair in bounds.items() for number in pair)
        yield (f"{took} > CASE method_id {cases} END", (run_ns, *each)) if bounds else ("0", ())
    if narrowed.padding_above is not None:
        yield "padding_rows > ? * (rows + padding_rows)", (narrowed.padding_above,)


def _method_ids(connection: sqlite3.Connection, narrowed: CallFilter) -> list[int]:
    rows = connection.execute(
        "SELECT m.id FROM method m JOIN worker_group g ON g.id = m.group_id "
        "WHERE (? = '' OR g.name = ?) AND (? = '' OR m.name = ?)",
        (narrowed.group, narrowed.group, narrowed.method, narrowed.method),
    )
    return [row[0] for row in rows]


def _codes(code: int, never_ended: int) -> tuple[int, ...]:
    """Return the codes on file of calls that are shown with the status ``code``."""
    if never_ended == RUNNING or code not in {RUNNING, never_ended}:
        return (code,)
    return (-1,) if code == RUNNING else (code, RUNNING)
