"""Questions about one call: its row, its ranks, its neighbours."""

from __future__ import annotations

import sqlite3

from app.store.codes import CANCELLED, DIED, RUNNING, SAID_END, SAID_START, STATUSES, unpack_sizes
from app.store.row_query import RowQuery, ms
from app.store.texts import MESSAGE, TRACEBACK, shown
from app.store.totals import median
from web.calls import CallDetail
from web.rows import CallRow, RankSpan

_CALLS = (
    "call c JOIN method m ON m.id = c.method_id JOIN worker_group g ON g.id = m.group_id "
    "LEFT JOIN pool p ON p.id = c.pool_id JOIN word d ON d.id = c.dispatch_mode_id "
    "JOIN word e ON e.id = c.execute_mode_id"
)
_NAMES = {"group": "g.name", "pool": "coalesce(p.name, '')", "method": "m.name"}
_CALL_ROW = RowQuery(
    CallRow,
    _CALLS,
    "c",
    columns=_NAMES | {"dispatch_mode": "d.text", "execute_mode": "e.text"},
    computed=("status", "duration_ms"),
    also={"code": "c.status", "started_ns": "c.started_ns", "ended_ns": "c.ended_ns"},
)
_CALL_DETAIL = RowQuery(
    CallDetail,
    "call",
    columns={
        "error_type": "coalesce(error_type, '')",
        "error_message": f"coalesce({shown('error_message', MESSAGE)}, '')",
        "error_traceback": f"coalesce({shown('error_traceback', TRACEBACK)}, '')",
        "error_rank": "coalesce(error_rank, -1)",
    },
    parse={"shard_sizes": unpack_sizes},
    computed=("call", "spans", "slowest_rank", "median_ms", "max_ms", "previous_id", "next_id"),
    also={
        "code": "status",
        "started_ns": "started_ns",
        "ended_ns": "ended_ns",
        "gate_ns": "gate_ns",
        "method_id": "method_id",
    },
)
_SPANS = RowQuery(
    RankSpan,
    "rank_span s JOIN lane l ON l.id = s.lane_id LEFT JOIN worker w ON w.id = "
    "(SELECT max(id) FROM worker WHERE lane_id = s.lane_id AND started_ns <= s.submitted_ns)",
    "s",
    columns={"rank": "l.rank", "node": "coalesce(w.node, '')"},
    computed=("started_ms", "finished_ms", "ready_ms", "status", "outside"),
    also={
        "code": "s.status",
        "reported": "s.said",
        "began_ns": "s.began_ns",
        "ended_ns": "s.ended_ns",
        "ready_ns": "s.ready_ns",
        "clock_error_ns": "s.clock_error_ns",
    },
)
# The error shown for a call without an end in a run that is over.
_CUT_OFF = {
    DIED: "It was in flight when the driver died.",
    CANCELLED: "It was in flight when the driver ended and was not awaited.",
}


def call(connection: sqlite3.Connection, call_id: int, run_ns: int, never_ended: int = RUNNING) -> CallDetail | None:
    """Return one call with its ranks, or None when there is no such call.

    ``run_ns`` is how long the run has lasted, ``never_ended`` the status of a call that has no end.
    """
    shown_call = call_row(connection, call_id, run_ns, never_ended)
    if shown_call is None:
        return None
    (detail,) = _CALL_DETAIL.records(connection, "WHERE id = ?", (call_id,))
    started_ns, code = detail["started_ns"], detail["code"]
    spans = _spans(connection, call_id, started_ns, detail["ended_ns"])
    spans += _silent(connection, call_id, code, started_ns + detail["gate_ns"])
    ran = [
        (round((span.finished_ms - span.started_ms) * 1e6), span.rank)
        for span in spans
        if span.started_ms is not None and span.finished_ms is not None
    ]
    previous_id, next_id = _neighbours(connection, detail["method_id"], call_id)
    cut_off = _CUT_OFF.get(never_ended, "") if code == RUNNING else ""
    detail["error_type"] = detail["error_type"] or ("Cut off" if cut_off else "")
    detail["error_message"] = detail["error_message"] or cut_off
    return _CALL_DETAIL.build(
        detail,
        call=shown_call,
        spans=spans,
        slowest_rank=max(ran)[1] if len(ran) > 1 else None,
        median_ms=ms(median(sorted(length for length, _ in ran))) if ran else 0.0,
        max_ms=ms(max(ran)[0]) if ran else 0.0,
        previous_id=previous_id,
        next_id=next_id,
    )


def call_row(connection: sqlite3.Connection, call_id: int, run_ns: int, never_ended: int) -> CallRow | None:
    """Return a call as the list shows it, or None when there is no such call."""
    found = _CALL_ROW.records(connection, "WHERE c.id = ?", (call_id,))
    if not found:
        return None
    (call,) = found
    ended_ns = run_ns if call["ended_ns"] is None else call["ended_ns"]
    status = STATUSES[never_ended if call["code"] == RUNNING else call["code"]]
    return _CALL_ROW.build(call, status=status, duration_ms=ms(max(0, ended_ns - call["started_ns"])))


def _spans(
    connection: sqlite3.Connection, call_id: int, call_started_ns: int, call_ended_ns: int | None
) -> tuple[RankSpan, ...]:
    spans = []
    for span in _SPANS.records(connection, "WHERE s.call_id = ? ORDER BY l.rank", (call_id,)):
        error_ns, reported = span["clock_error_ns"], span["reported"]
        outside = span["began_ns"] < call_started_ns - error_ns
        outside |= call_ended_ns is not None and span["ended_ns"] > call_ended_ns + error_ns
        answered = span["code"] not in {CANCELLED, RUNNING}
        spans.append(
            _SPANS.build(
                span,
                started_ms=ms(span["began_ns"]) if reported & SAID_START else None,
                finished_ms=ms(span["ended_ns"]) if reported & SAID_END else None,
                ready_ms=ms(span["ready_ns"]) if answered else None,
                status=STATUSES[span["code"]],
                outside=bool(reported) and outside,
            )
        )
    return tuple(spans)


def _silent(connection: sqlite3.Connection, call_id: int, status: int, sent_ns: int) -> tuple[RankSpan, ...]:
    """Return the ranks of a call in flight that have not answered yet."""
    if status != RUNNING:
        return ()
    silent = []
    for lane_id, rank in running_lanes(connection, call_id):
        row = connection.execute("SELECT node FROM worker WHERE lane_id = ? ORDER BY id DESC", (lane_id,)).fetchone()
        node = "" if row is None else row[0]
        silent.append(RankSpan(rank, node, ms(sent_ns), None, None, None, 0.0, STATUSES[RUNNING], 0, 0, 0, 0))
    return tuple(silent)


def running_lanes(connection: sqlite3.Connection, call_id: int) -> list[tuple[int, int]]:
    """Return (lane id, rank) of the ranks that a call in flight was sent to and that have not answered."""
    return connection.execute(
        "SELECT l.id, l.rank FROM call c JOIN method m ON m.id = c.method_id JOIN worker_group g ON g.id = m.group_id "
        "JOIN word e ON e.id = c.execute_mode_id "
        "JOIN lane l ON l.group_id = g.id AND (g.world_size = 0 OR l.rank < g.world_size) WHERE c.id = ? "
        # A call that rank 0 alone executes does not wait for the others, whatever its dispatch mode is named.
        "AND (l.rank = 0 OR e.text <> 'RANK_ZERO') "
        "AND NOT EXISTS (SELECT 1 FROM rank_span s WHERE s.call_id = c.id AND s.lane_id = l.id) ORDER BY l.rank",
        (call_id,),
    ).fetchall()


def _neighbours(connection: sqlite3.Connection, method_id: int, call_id: int) -> tuple[int | None, int | None]:
    (previous_id,) = connection.execute(
        "SELECT max(id) FROM call WHERE method_id = ? AND id < ?", (method_id, call_id)
    ).fetchone()
    (next_id,) = connection.execute(
        "SELECT min(id) FROM call WHERE method_id = ? AND id > ?", (method_id, call_id)
    ).fetchone()
    return previous_id, next_id
