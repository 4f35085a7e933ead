"""The row of a file that says which run it is of, and whether it can be one."""

from __future__ import annotations

import sqlite3

_MOST_YEARS = 20
_YEAR_NS = 365 * 86_400 * 1_000_000_000
MOST_NS = _MOST_YEARS * _YEAR_NS


def check_run_row(row: sqlite3.Row) -> None:
    """Make sure that the run's names are texts and its times numbers, and that it did not last for centuries.

    Raises:
        ValueError: They are not, or it did.
    """
    for name in ("started_wall_ns", "heartbeat_wall_ns", "last_ns", "writer_lag_ns", "clean_exit", "pruned_before_ns"):
        if not isinstance(row[name], int) and not (name == "pruned_before_ns" and row[name] is None):
            raise ValueError(f"{name} of the run is not a number: {str(row[name])[:60]!r}")
    for name in ("name", "script", "status", "git"):
        if not isinstance(row[name], str):
            raise ValueError(f"{name} of the run is not a text")
    if row["started_wall_ns"] < 0:
        raise ValueError(f"the run started {-row['started_wall_ns'] / _YEAR_NS:.3g} years before 1970")
    if row["last_ns"] >= MOST_NS:
        raise ValueError(f"the run lasted {row['last_ns'] / _YEAR_NS:.3g} years; the limit is {_MOST_YEARS}")
