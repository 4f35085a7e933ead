"""A window of a run: its lanes, and what reaches into it from before or still goes on."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from app.store.codes import RUNNING
from app.store.read_calls import running_lanes
from web.source import Lane

# Up to here spans are read one by one, past it the roll-ups answer.
MAX_RAW_SPANS = 20_000
# A rank seldom runs more at once; a span that began before the window and reaches into it is among the last so many.
N_BEFORE = 64
_N_IN_FLIGHT = 1_000
# A trace numbers its threads by rank.
_MOST_RANKS = 2**31

# A row of a span: call, method, began, ended, submitted (ns), status. Thousands of them go by at a time, so they stay
# the tuples that SQLite made, as do those of calls.
SpanRow = tuple[int, int, int, int, int, int]
CallRow = tuple[Any, ...]
_CALL = (
    "SELECT id, method_id, blocking, started_ns, gate_ns, dispatch_ns, execute_ns, awaited_ns, wait_ns, collect_ns, "
    "unpad_ns, status, ended_ns FROM call WHERE "
)


@dataclass(frozen=True, slots=True)
class Window:
    """The window asked for, and what every part of the answer needs. Times in ns since the run's start."""

    from_ns: int
    to_ns: int
    run_ns: int
    lanes: tuple[Lane, ...]
    lane_ids: tuple[int, ...]
    reach_ns: tuple[int, ...]

    @property
    def end_ns(self) -> int:
        """Where a span still running is cut: nothing is known of later."""
        return max(self.from_ns, min(self.to_ns, self.run_ns))


def window_of(connection: sqlite3.Connection, from_ns: int, to_ns: int, run_ns: int) -> Window:
    """Return a window of the run with the lanes that there are."""
    rows = connection.execute(
        "SELECT l.id, p.name, g.name, l.rank, coalesce(w.node, ''), coalesce(w.pid, 0), l.longest_ns FROM lane l "
        "JOIN worker_group g ON g.id = l.group_id JOIN pool p ON p.id = g.pool_id "
        "LEFT JOIN worker w ON w.id = (SELECT max(id) FROM worker WHERE lane_id = l.id) ORDER BY p.id, g.id, l.rank"
    ).fetchall()
    for row in rows:
        if not 0 <= row[3] < _MOST_RANKS:
            raise ValueError(f"rank {row[3]} of {row[2][:60]!r} is not between 0 and {_MOST_RANKS:,}")
    return Window(
        from_ns,
        to_ns,
        run_ns,
        # The driver's own lane comes first, as number 0.
        tuple(Lane(index, *row[1:6]) for index, row in enumerate(rows, start=1)),
        tuple(row[0] for row in rows),
        tuple(row[6] for row in rows),
    )


def running_spans(connection: sqlite3.Connection, window: Window) -> dict[int, list[SpanRow]]:
    """Return for each lane what it has been sent and has not answered, as spans up to now."""
    calls = connection.execute(
        "SELECT id, method_id, started_ns + gate_ns FROM call WHERE status = 0 AND status != 1 "
        "AND started_ns <= ? ORDER BY id DESC LIMIT ?",
        (window.to_ns, min(_N_IN_FLIGHT, max(10, MAX_RAW_SPANS // max(1, len(window.lanes))))),
    ).fetchall()
    running: dict[int, list[SpanRow]] = defaultdict(list)
    for call_id, method_id, sent_ns in reversed(calls):
        for lane_id, _ in running_lanes(connection, call_id):
            running[lane_id].append((call_id, method_id, sent_ns, max(sent_ns, window.end_ns), sent_ns, RUNNING))
    return running


def driver_calls(connection: sqlite3.Connection, window: Window) -> list[CallRow]:
    """Return the calls whose driver's part may touch the window, oldest first."""
    inside = connection.execute(
        f"{_CALL} started_ns BETWEEN ? AND ? ORDER BY started_ns", (window.from_ns, window.to_ns)
    ).fetchall()
    return calls_before(connection, window) + inside


def calls_before(connection: sqlite3.Connection, window: Window) -> list[CallRow]:
    """Return the calls that began before the window and whose driver's part reaches into it, oldest first."""
    before = connection.execute(
        f"{_CALL} started_ns < ? ORDER BY started_ns DESC LIMIT {N_BEFORE}", (window.from_ns,)
    ).fetchall()
    running = connection.execute(
        f"{_CALL} status = 0 AND status != 1 AND started_ns < ? ORDER BY id DESC LIMIT {_N_IN_FLIGHT}",
        (window.from_ns,),
    ).fetchall()
    reaching = {row[0]: row for row in (*before, *running) if _reaches(row, window.from_ns)}
    return [row for _, row in sorted(reaching.items())]


def waited_from(row: CallRow) -> int:
    """Return when the driver began to wait for a call."""
    sent_ns = row[3] + row[4] + row[5] + row[6]
    return int(sent_ns if row[2] or row[7] is None else row[7])


def _reaches(row: CallRow, from_ns: int) -> bool:
    """Say whether a call goes on past ``from_ns``; a future may be asked for its value long after the call's end."""
    return row[12] is None or row[12] > from_ns or waited_from(row) + row[8] + row[9] + row[10] > from_ns
