"""Questions about one call: its row, its ranks, its neighbours."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from app.store.codes import CANCELLED, DIED, RUNNING, SAID_END, SAID_START, STATUSES, unpack_sizes
from app.store.texts import MESSAGE, TRACEBACK, shown
from app.store.totals import median
from web.calls import CallDetail
from web.rows import CallRow, RankSpan

CALL_ROW = (
    "SELECT c.id, g.name, coalesce(p.name, ''), m.name, d.text, e.text, c.blocking, c.step, c.status, c.started_ns, "
    "c.ended_ns, c.rows, c.padding_rows, c.bytes_out, c.bytes_in FROM call c JOIN method m ON m.id = c.method_id "
    "JOIN worker_group g ON g.id = m.group_id LEFT JOIN pool p ON p.id = c.pool_id "
    "JOIN word d ON d.id = c.dispatch_mode_id JOIN word e ON e.id = c.execute_mode_id "
)
# What is told of a call without an end in a run that is over.
_CUT_OFF = {
    DIED: "It was in flight when the driver died.",
    CANCELLED: "It was in flight when the driver ended, and nobody waited for it.",
}


def ms(ns: int) -> float:
    """Return nanoseconds as milliseconds."""
    return ns / 1e6


def call(connection: sqlite3.Connection, call_id: int, run_ns: int, never_ended: int = RUNNING) -> CallDetail | None:
    """Return one call with its ranks, or None when there is no such call.

    ``run_ns`` is how long the run has lasted, ``never_ended`` the status of a call that has no end.
    """
    row = connection.execute(f"{CALL_ROW} WHERE c.id = ?", (call_id,)).fetchone()
    if row is None:
        return None
    more = connection.execute(
        "SELECT generation, gate_ns, dispatch_ns, execute_ns, wait_ns, collect_ns, unpad_ns, awaited_ns, shard_sizes, "
        f"rows_out, method_id, error_type, {shown('error_message', MESSAGE)}, {shown('error_traceback', TRACEBACK)}, "
        "error_rank FROM call WHERE id = ?",
        (call_id,),
    ).fetchone()
    spans = _spans(connection, call_id, row[9], row[10]) + _silent(connection, call_id, row[8], row[9] + more[1])
    ran = [
        (round((span.finished_ms - span.started_ms) * 1e6), span.rank)
        for span in spans
        if span.started_ms is not None and span.finished_ms is not None
    ]
    previous_id, next_id = _neighbours(connection, more[10], call_id)
    cut_off = _CUT_OFF.get(never_ended, "") if row[8] == RUNNING else ""
    return CallDetail(
        call=call_row(row, run_ns, never_ended),
        generation=more[0],
        gate_ms=ms(more[1]),
        dispatch_ms=ms(more[2]),
        execute_ms=ms(more[3]),
        wait_ms=ms(more[4]),
        collect_ms=ms(more[5]),
        unpad_ms=ms(more[6]),
        awaited_ms=None if more[7] is None else ms(more[7]),
        shard_sizes=unpack_sizes(more[8]),
        rows_out=more[9],
        spans=spans,
        slowest_rank=max(ran)[1] if len(ran) > 1 else None,
        median_ms=ms(median(sorted(length for length, _ in ran))) if ran else 0.0,
        max_ms=ms(max(ran)[0]) if ran else 0.0,
        previous_id=previous_id,
        next_id=next_id,
        error_type=more[11] or ("Cut off" if cut_off else ""),
        error_message=more[12] or cut_off,
        error_traceback=more[13] or "",
        error_rank=-1 if more[14] is None else more[14],
    )


def call_row(row: Sequence[Any], run_ns: int, never_ended: int) -> CallRow:
    """Return a call of the list from a row of ``CALL_ROW``."""
    ended_ns = run_ns if row[10] is None else row[10]
    lasted_ns = max(0, ended_ns - row[9])
    status = STATUSES[never_ended if row[8] == RUNNING else row[8]]
    return CallRow(*(*row[:6], bool(row[6]), row[7], status, ms(row[9]), ms(lasted_ns), *row[11:]))


def _spans(
    connection: sqlite3.Connection, call_id: int, call_started_ns: int, call_ended_ns: int | None
) -> tuple[RankSpan, ...]:
    rows = connection.execute(
        "SELECT l.rank, coalesce(w.node, ''), s.submitted_ns, s.began_ns, s.ended_ns, s.ready_ns, s.clock_error_ns, "
        "s.status, s.rows_in, s.rows_out, s.bytes_in, s.bytes_out, s.said FROM rank_span s "
        "JOIN lane l ON l.id = s.lane_id LEFT JOIN worker w ON w.id = "
        "(SELECT max(id) FROM worker WHERE lane_id = s.lane_id AND started_ns <= s.submitted_ns) "
        "WHERE s.call_id = ? ORDER BY l.rank",
        (call_id,),
    ).fetchall()
    spans = []
    for row in rows:
        outside = row[3] < call_started_ns - row[6] or (call_ended_ns is not None and row[4] > call_ended_ns + row[6])
        answered = row[7] not in {CANCELLED, RUNNING}
        spans.append(
            RankSpan(
                rank=row[0],
                node=row[1],
                submitted_ms=ms(row[2]),
                started_ms=ms(row[3]) if row[12] & SAID_START else None,
                finished_ms=ms(row[4]) if row[12] & SAID_END else None,
                ready_ms=ms(row[5]) if answered else None,
                clock_error_ms=ms(row[6]),
                status=STATUSES[row[7]],
                rows_in=row[8],
                rows_out=row[9],
                bytes_in=row[10],
                bytes_out=row[11],
                outside=bool(row[12]) and outside,
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
