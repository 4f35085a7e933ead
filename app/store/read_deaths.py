"""Questions of the Post-mortem page: who died of what, what was in flight, what the driver's crash left behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.store.deaths import unpack_others
from app.store.private import open_beside
from app.store.read_calls import ms, running_lanes
from app.store.runs import crash_path
from web.rows import CallInFlight, Death, RankDoing, RankOut

_MAX_CRASH_BYTES = 256 * 1024
_MAX_DEATHS = 1_000


def deaths(connection: sqlite3.Connection) -> tuple[Death, ...]:
    """Return the workers that died, in the order of their deaths."""
    rows = connection.execute(
        "SELECT g.name, d.rank, d.at_ns, d.pid, d.node, d.worker, d.actor_id, d.cause, d.role, d.method, d.call_id, "
        "d.signal, d.exit_code, d.oom, d.evidence, d.memory_bytes, d.memory_limit_bytes, d.others, d.log_tail, "
        f"d.policy FROM death d JOIN worker_group g ON g.id = d.group_id ORDER BY d.at_ns, d.id LIMIT {_MAX_DEATHS}"
    )
    return tuple(Death(*(*row[:2], ms(row[2]), *row[3:13], *_report(row[13:]))) for row in rows)


def in_flight(connection: sqlite3.Connection, limit: int, run_ns: int) -> tuple[CallInFlight, ...]:
    """Return the calls without an end, longest first; ``run_ns`` is how long the run has lasted."""
    rows = connection.execute(
        "SELECT c.id, g.name, coalesce(p.name, ''), m.name, c.blocking, c.started_ns, c.gate_ns, "
        "EXISTS (SELECT 1 FROM stall s WHERE s.call_id = c.id) FROM call c JOIN method m ON m.id = c.method_id "
        "JOIN worker_group g ON g.id = m.group_id LEFT JOIN pool p ON p.id = c.pool_id "
        "WHERE c.status = 0 AND c.status != 1 ORDER BY c.id LIMIT ?",
        (limit,),
    ).fetchall()
    found = []
    for row in rows:
        out_ms = ms(max(0, run_ns - row[5] - row[6]))
        out = tuple(
            RankOut(rank, out_ms, *_home(connection, lane_id)) for lane_id, rank in running_lanes(connection, row[0])
        )
        (n_answered,) = connection.execute("SELECT count(*) FROM rank_span WHERE call_id = ?", (row[0],)).fetchone()
        found.append(
            CallInFlight(
                *(
                    *row[:4],
                    bool(row[4]),
                    ms(row[5]),
                    ms(max(0, run_ns - row[5])),
                    len(out) + n_answered,
                    out,
                    bool(row[7]),
                ),
            )
        )
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


def _report(row: Sequence[Any]) -> tuple[Any, ...]:
    oom, evidence, memory_bytes, limit_bytes, others, log_tail, policy = row
    found, n_unreadable = unpack_others(others)
    doing = tuple(RankDoing(rank, state, seconds) for rank, seconds, state in found)
    return (
        None if oom is None else bool(oom),
        _lines(evidence),
        memory_bytes,
        limit_bytes,
        doing,
        _lines(log_tail),
        policy,
        n_unreadable,
    )


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()
