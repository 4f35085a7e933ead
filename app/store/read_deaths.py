"""Questions of the Post-mortem page: who died of what, what was in flight, what the driver's crash left behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from app.store.deaths import unpack_others
from app.store.private import open_beside
from app.store.read_calls import running_lanes
from app.store.row_query import RowQuery, ms
from app.store.runs import crash_path
from web.rows import CallInFlight, Death, RankDoing, RankOut

_MAX_CRASH_BYTES = 256 * 1024
_MAX_DEATHS = 1_000


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()


_DEATHS = RowQuery(
    Death,
    "death d JOIN worker_group g ON g.id = d.group_id",
    "d",
    columns={"group": "g.name"},
    parse={"evidence": _lines, "log_tail": _lines},
    computed=("others", "n_unreadable_others"),
    also={"others_text": "d.others"},
)
_IN_FLIGHT = RowQuery(
    CallInFlight,
    "call c JOIN method m ON m.id = c.method_id JOIN worker_group g ON g.id = m.group_id "
    "LEFT JOIN pool p ON p.id = c.pool_id",
    "c",
    columns={
        "group": "g.name",
        "pool": "coalesce(p.name, '')",
        "method": "m.name",
        "is_stalled": "EXISTS (SELECT 1 FROM stall s WHERE s.call_id = c.id)",
    },
    computed=("running_ms", "n_ranks", "out"),
    also={"started_ns": "c.started_ns", "gate_ns": "c.gate_ns"},
)


def deaths(connection: sqlite3.Connection) -> tuple[Death, ...]:
    """Return the workers that died, in the order of their deaths."""
    found = []
    for death in _DEATHS.records(connection, f"ORDER BY d.at_ns, d.id LIMIT {_MAX_DEATHS}"):
        others, n_unreadable = unpack_others(death["others_text"])
        doing = tuple(RankDoing(rank, state, seconds) for rank, seconds, state in others)
        found.append(_DEATHS.build(death, others=doing, n_unreadable_others=n_unreadable))
    return tuple(found)


def in_flight(connection: sqlite3.Connection, limit: int, run_ns: int) -> tuple[CallInFlight, ...]:
    """Return the calls without an end, longest first; ``run_ns`` is how long the run has lasted."""
    found = []
    for call in _IN_FLIGHT.records(connection, "WHERE c.status = 0 AND c.status != 1 ORDER BY c.id LIMIT ?", (limit,)):
        running_ns = run_ns - call["started_ns"]
        out_ms = ms(max(0, running_ns - call["gate_ns"]))
        lanes = running_lanes(connection, call["id"])
        out = tuple(RankOut(rank, out_ms, *_home(connection, lane_id)) for lane_id, rank in lanes)
        (n_answered,) = connection.execute("SELECT count(*) FROM rank_span WHERE call_id = ?", (call["id"],)).fetchone()
        running_ms = ms(max(0, running_ns))
        found.append(_IN_FLIGHT.build(call, running_ms=running_ms, n_ranks=len(out) + n_answered, out=out))
    return tuple(found)


def crash_text(path: Path) -> str:
    """Return what faulthandler wrote beside the run's file, its end where it is long, empty when it wrote nothing."""
    try:
        with open(open_beside(crash_path(path)), "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _MAX_CRASH_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _home(connection: sqlite3.Connection, lane_id: int) -> tuple[str, int]:
    """Return node and pid of the last worker of a lane."""
    row = connection.execute(
        "SELECT node, pid FROM worker WHERE lane_id = ? ORDER BY id DESC LIMIT 1", (lane_id,)
    ).fetchone()
    return ("", 0) if row is None else (row[0], row[1])
