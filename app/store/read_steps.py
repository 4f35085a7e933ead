"""Questions about stretches of steps, answered from their calls."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.store.codes import OK
from app.store.columns import read_columns
from app.store.row_query import ms
from web.steps import MethodInSteps, StepsSum

# Enough calls to compare two ranges of steps, few enough to sum at once.
MOST_CALLS = 10_000
_PHASES = ("gate_ns", "dispatch_ns", "execute_ns", "wait_ns", "collect_ns", "unpad_ns")
_COUNTS = ("rows", "padding_rows", "bytes_out", "bytes_in")


def steps_between(connection: sqlite3.Connection, first: int, last: int) -> StepsSum:
    """Return the ended calls of the steps ``first`` to ``last`` by method; of very many the first ``MOST_CALLS``."""
    method_id, took_ns, failed, pool_id, generation, started_ns, *sums = read_columns(
        connection,
        (
            "method_id",
            "ended_ns - started_ns",
            f"status != {OK}",
            "pool_id",
            "generation",
            "started_ns",
            *_PHASES,
            *_COUNTS,
        ),
        "(SELECT * FROM call WHERE step BETWEEN ? AND ? AND ended_ns IS NOT NULL ORDER BY step, id LIMIT ?)",
        (first, last, MOST_CALLS + 1),
    )
    seen = slice(0, MOST_CALLS)
    names = connection.execute(
        "SELECT m.id, g.name, m.name FROM method m JOIN worker_group g ON g.id = m.group_id ORDER BY g.name, m.name"
    ).fetchall()
    pools = dict(connection.execute("SELECT id, name FROM pool").fetchall())
    found = []
    for this_id, group, method in names:
        own = np.flatnonzero(method_id[seen] == this_id)
        if own.size:
            of_it = {name: column[own] for name, column in zip((*_PHASES, *_COUNTS), sums, strict=True)}
            summed = _method(group, method, took_ns[own], failed[own], of_it)
            found.append(
                replace(
                    summed,
                    pools=tuple(sorted({pools.get(one, "") for one in pool_id[own].tolist()})),
                    generations=tuple(sorted(set(generation[own].tolist()))),
                    n_ranks=_n_ranks(connection, this_id, started_ns[own]),
                )
            )
    n_calls = min(len(method_id), MOST_CALLS)
    return StepsSum(first, last, n_calls, len(method_id) > MOST_CALLS, tuple(found))


def _n_ranks(connection: sqlite3.Connection, method_id: int, started_ns: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the sizes that the method's group had when its calls started."""
    at_ns, size = read_columns(
        connection,
        ("at_ns", "world_size"),
        "(SELECT at_ns, world_size FROM group_generation WHERE group_id = (SELECT group_id FROM method WHERE id = ?) "
        "ORDER BY at_ns, id)",
        (method_id,),
    )
    if not at_ns.size:
        return ()
    return tuple(sorted(set(size[np.maximum(np.searchsorted(at_ns, started_ns, "right") - 1, 0)].tolist())))


def _method(
    group: str, method: str, took_ns: NDArray[np.int64], failed: NDArray[np.int64], sums: dict[str, NDArray[np.int64]]
) -> MethodInSteps:
    p50_ns, p95_ns = np.percentile(took_ns, (50, 95))

    def total(name: str) -> int:
        return int(sums[name].sum())

    return MethodInSteps(
        group=group,
        method=method,
        n_calls=int(took_ns.size),
        n_failed=int(failed.sum()),
        p50_ms=float(p50_ns) / 1e6,
        p95_ms=float(p95_ns) / 1e6,
        gate_ms=ms(total("gate_ns")),
        dispatch_ms=ms(total("dispatch_ns")),
        execute_ms=ms(total("execute_ns")),
        wait_ms=ms(total("wait_ns")),
        collect_ms=ms(total("collect_ns")),
        unpad_ms=ms(total("unpad_ns")),
        rows=total("rows"),
        padding_rows=total("padding_rows"),
        bytes_out=total("bytes_out"),
        bytes_in=total("bytes_in"),
        took_ms=tuple((took_ns / 1e6).tolist()),
    )
