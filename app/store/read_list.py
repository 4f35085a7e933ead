"""Questions about the list of calls: a page of it, by whatever it is narrowed to."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from app.store import read_latency
from app.store.codes import RUNNING, STATUSES, status_code
from app.store.read_calls import call_row
from web.calls import CallFilter, CallPage

_NEWEST = 2**62
# What a page looks at where no index answers all that is asked: some 50 ms of work where they lie side by side in the
# table of calls. One by one, as an index has them, each costs more.
MOST_LOOKED_AT = 200_000
_COSTS_MORE = 4


def calls(
    connection: sqlite3.Connection,
    limit: int,
    cursor: int | None,
    narrowed: CallFilter,
    run_ns: int,
    never_ended: int = RUNNING,
) -> CallPage:
    """Return a page of calls newest first, those with an id below ``cursor``; the rest as for ``call``."""
    method_ids = _method_ids(connection, narrowed)
    walk = _walk(narrowed, method_ids, never_ended)
    below = _NEWEST if cursor is None else cursor
    others = [*_others(narrowed, method_ids, walk, never_ended), *_on_values(connection, narrowed, run_ns)]
    reach = _reach(connection, below, walk) if others else _Reach(below)
    ids = _ids(connection, limit + 1, reach, walk, others)
    found = (call_row(connection, call_id, run_ns, never_ended) for call_id in ids[:limit])
    items = tuple(call for call in found if call is not None)
    if len(ids) > limit:
        return CallPage(items, ids[limit - 1])
    return CallPage(items, reach.above if reach.goes_on else None)


_Condition = tuple[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class _Walk:
    """The index that a page walks backwards, by the condition that it answers; without one, the table of calls.

    A condition on one of several ``method_ids`` is a walk for each of them.
    """

    by: str = ""
    condition: str = "1"
    values: tuple[float, ...] = ()
    method_ids: tuple[int, ...] | None = None


def _walk(narrowed: CallFilter, method_ids: tuple[int, ...] | None, never_ended: int) -> _Walk:
    """Return what is walked: the calls of the step, else those that did not end well, else the method's, else all."""
    if narrowed.step is not None:
        return _Walk("step", "step = ?", (narrowed.step,))
    if narrowed.status not in {"", "ok"}:
        condition, codes = _of_status(narrowed.status, never_ended)
        # Said twice, as SQLite takes the partial index only where its own condition is spelled out.
        return _Walk("status", f"status{condition} AND status != 1", codes)
    if method_ids is None:
        return _Walk()
    return _Walk("method", "method_id = ?", method_ids) if len(method_ids) == 1 else _Walk(method_ids=method_ids)


def _others(
    narrowed: CallFilter, method_ids: tuple[int, ...] | None, walk: _Walk, never_ended: int
) -> Iterator[_Condition]:
    """Yield the conditions that an index would answer, but not the one that is walked: a plus keeps SQLite off it."""
    if narrowed.status and walk.by != "status":
        condition, codes = _of_status(narrowed.status, never_ended)
        yield f"+status{condition}", codes
    if method_ids is not None and walk.by in {"step", "status"}:
        yield f"+method_id IN ({', '.join('?' * len(method_ids))})", method_ids


@dataclass(frozen=True, slots=True)
class _Reach:
    """The ids that a page looks at, from ``above`` to those below ``below``, and whether it goes on under them."""

    below: int
    above: int = 0
    goes_on: bool = False


def _reach(connection: sqlite3.Connection, below: int, walk: _Walk) -> _Reach:
    """Return how far a page looks. Calls are numbered without a gap, so those of a step lie side by side."""
    where = f"FROM call WHERE {walk.condition} AND id < ?"
    asked = (*walk.values, below)
    first, newest = connection.execute(
        f"SELECT (SELECT min(id) {where}), (SELECT max(id) {where})", (*asked, *asked)
    ).fetchone()
    if first is None:
        return _Reach(0)
    if walk.by in {"", "step"}:
        return _Reach(newest + 1, above := max(first, newest + 1 - MOST_LOOKED_AT), first < above)
    last = connection.execute(
        f"SELECT id {where} ORDER BY id DESC LIMIT 1 OFFSET ?", (*asked, MOST_LOOKED_AT // _COSTS_MORE - 1)
    ).fetchone()
    return _Reach(below) if last is None else _Reach(below, last[0], first < last[0])


def _ids(connection: sqlite3.Connection, limit: int, reach: _Reach, walk: _Walk, others: list[_Condition]) -> list[int]:
    """Return the ids of a page, each query walking an index backwards from the cursor and stopping at the limit.

    Where more is asked of a step, the table is read as it lies there between the step's first call and its last.
    """
    condition = f"+{walk.condition}" if walk.by == "step" and others else walk.condition
    where = " AND ".join(["id < ?", "id >= ?", condition, *(condition for condition, _ in others)])
    values = [reach.below, reach.above, *walk.values, *(value for _, own in others for value in own)]
    query = f"SELECT id FROM call WHERE {where} ORDER BY id DESC LIMIT ?"
    if walk.method_ids is None:
        return [row[0] for row in connection.execute(query, (*values, limit))]
    query = query.replace("WHERE", "WHERE method_id = ? AND")
    found = [[row[0] for row in connection.execute(query, (one, *values, limit))] for one in walk.method_ids]
    return list(heapq.merge(*found, reverse=True))[:limit]


def _on_values(connection: sqlite3.Connection, narrowed: CallFilter, run_ns: int) -> Iterator[_Condition]:
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


def _method_ids(connection: sqlite3.Connection, narrowed: CallFilter) -> tuple[int, ...] | None:
    """Return the methods that are asked for, None where any will do."""
    if not narrowed.group and not narrowed.method:
        return None
    rows = connection.execute(
        "SELECT m.id FROM method m JOIN worker_group g ON g.id = m.group_id "
        "WHERE (? = '' OR g.name = ?) AND (? = '' OR m.name = ?)",
        (narrowed.group, narrowed.group, narrowed.method, narrowed.method),
    )
    return tuple(row[0] for row in rows)


def _of_status(status: str, never_ended: int) -> tuple[str, tuple[int, ...]]:
    """Return the condition on the status that a call has in the file where it is shown as ``status``."""
    code = status_code(status) if status in STATUSES else -1
    codes: tuple[int, ...] = (code,)
    if never_ended != RUNNING and code in {RUNNING, never_ended}:
        codes = (-1,) if code == RUNNING else (code, RUNNING)
    return f" IN ({', '.join('?' * len(codes))})", codes
