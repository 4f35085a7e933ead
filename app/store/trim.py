"""Lets go of a file's oldest spans, slice by slice: while its driver writes it, and when its run is over."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from app.errors import RunFileError
from app.store.lock import FileLock
from app.store.models import Run
from app.store.opened import RunConnection, check_plain, open_to_change, patience_s
from app.store.prune import SLICE_ROWS, Retention, cut_ns
from app.store.sql import update

_PRUNED = update(Run, ("pruned_before_ns",))
_PRUNE_LANE = (
    "DELETE FROM rank_span WHERE lane_id = ? AND began_ns < coalesce((SELECT began_ns FROM rank_span "
    "WHERE lane_id = ? AND began_ns < ? ORDER BY began_ns LIMIT 1 OFFSET ?), ?)"
)
_RUN_ID = 1


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What was pruned from a run file; ``pruned_before_ns`` is None where all spans are still there."""

    n_spans: int
    bytes_before: int
    bytes_after: int
    pruned_before_ns: int | None


def delete_spans(connection: sqlite3.Connection, before_ns: int, n_rows: int) -> int:
    """Delete about ``n_rows`` spans that began before ``before_ns``, inside the caller's transaction.

    Returns:
        How many went; 0 when none are left there.
    """
    connection.execute(_PRUNED, (before_ns, _RUN_ID))
    n_gone = 0
    for (lane_id,) in connection.execute("SELECT id FROM lane").fetchall():
        if n_gone >= n_rows:
            break
        values = (lane_id, lane_id, before_ns, n_rows - n_gone, before_ns)
        n_gone += connection.execute(_PRUNE_LANE, values).rowcount
    return n_gone


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return what the file holds, free pages not counted."""
    pages, free, page_bytes = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * page_bytes)


def trim(path: Path, retention: Retention) -> Trimmed:
    """Let go of the oldest spans of a run that is over, until ``retention`` is kept, and give the room back.

    Roll-ups, histograms, calls, events and operations stay, so a file may stay bigger than asked for.

    Raises:
        RunFileMissingError: There is no such file.
        NotARunFileError: The file holds something else.
        SchemaVersionError: Another Podium wrote it.
        RunLockedError: A driver is writing it.
        RunFileError: It is broken, or cannot be written.
    """
    check_plain(path)
    lock = FileLock(path)
    try:
        lock.acquire("prune it after that run has ended")
        with contextlib.closing(open_to_change(path)) as connection, connection.question(path, patience_s(path, 8)):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            bytes_before = path.stat().st_size
            n_spans, pruned_ns = _trim(connection, path, retention)
            # Not VACUUM, which needs the room of a second file just where there may be none.
            connection.executescript("PRAGMA incremental_vacuum")
        return Trimmed(n_spans, bytes_before, path.stat().st_size, pruned_ns)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        way_out = f"podium db check {path} shows the errors"
        raise RunFileError(f"cannot prune {path}: {reason}; {way_out}", str(path)) from error
    finally:
        lock.release()


def _trim(connection: RunConnection, path: Path, retention: Retention) -> tuple[int, int | None]:
    last_ns, pruned_ns = connection.execute("SELECT last_ns, pruned_before_ns FROM run").fetchone()
    n_spans = 0
    while connection.execute("SELECT 1 FROM rank_span LIMIT 1").fetchone() is not None:
        cut = cut_ns(retention, used_bytes(connection), last_ns, pruned_ns or 0)
        if cut is None:
            break
        n_gone = 1
        while n_gone:
            with connection.question(path, math.inf):
                connection.execute("BEGIN IMMEDIATE")
                n_gone = delete_spans(connection, cut, SLICE_ROWS)
                connection.execute("COMMIT")
            n_spans += n_gone
        pruned_ns = cut
    return n_spans, pruned_ns
