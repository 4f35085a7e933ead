"""Answers about one run from its file, of a running driver as of a dead one: the `web.source.RunSource` of the app."""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from app.errors import NotARunFileError
from app.store import (
    read_calls,
    read_deaths,
    read_entities,
    read_latency,
    read_list,
    read_rank_runs,
    read_steps,
    read_timeline,
)
from app.store.codes import never_ended_code
from app.store.fit import check_fits
from app.store.lock import is_free
from app.store.opened import misfit
from app.store.readpool import ReadPool
from app.store.row_query import ms, ms_or_none
from app.store.run_row import MOST_NS, check_run_row
from app.store.texts import LINE, NAME, bounded
from web.calls import CallDetail, CallFilter, CallPage
from web.latency import LatencyMap, MethodLatency, RankMap
from web.rank_runs import MethodRuns
from web.rows import (
    AuditEntry,
    CallInFlight,
    ConfigValue,
    Death,
    EventRow,
    Gap,
    Group,
    Operation,
    Pool,
    PoolGeneration,
    RecorderState,
    Run,
    Worker,
)
from web.source import Overview, Timeline
from web.steps import StepsSum

P = ParamSpec("P")
T = TypeVar("T")
STALE_NS = 5_000_000_000
_RATE_WINDOW_S = 10
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Now:
    """The run's row with what depends on the moment of asking."""

    row: sqlite3.Row
    state: str
    run_ns: int

    @property
    def never_ended(self) -> int:
        """The status of a call without an end."""
        return never_ended_code(self.state)


def _answer(question: Callable[Concatenate[Reader, P], T]) -> Callable[Concatenate[Reader, P], T]:
    """Make a question raise `app.errors.RunFileError` when its answer holds a value of another type than it says."""

    @functools.wraps(question)
    def ask(reader: Reader, /, *values: P.args, **named: P.kwargs) -> T:
        answer = question(reader, *values, **named)
        try:
            check_fits(answer)
        except TypeError as error:
            raise misfit(reader.path, error) from None
        return answer

    return ask


class Reader:
    """Reads a run's file; every method may be called from several threads at once.

    Each raises `app.errors.ReaderError` (busy, or too slow) and `app.errors.RunFileError` (missing, not a run, another
    schema).
    """

    def __init__(
        self,
        path: Path,
        *,
        n_connections: int = 2,
        deadline_s: float = 0.25,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Name the file; it is opened at the first question, or by ``open``."""
        self.path = path
        self._pool = ReadPool(path, n_connections, deadline_s)
        self._wall_ns = wall_ns

    def open(self) -> Reader:
        """Make sure that the file can be read, and return this reader.

        Raises:
            RunFileError: The file is missing, not a run's, or of another schema.
        """
        self.sequence()
        return self

    @_answer
    def run(self) -> Run:
        """Return the run itself."""
        with self._pool.lend() as connection:
            return _run(self._now(connection))

    @_answer
    def recorder(self) -> RecorderState:
        """Return the recorder strip."""
        with self._pool.lend() as connection:
            return self._recorder(connection, self._now(connection))

    @_answer
    def overview(self) -> Overview:
        """Return the first page's content: steps, methods by total time, ranks by lost time, 10 events.

        Of more than ``read_timeline.MAX_STEPS_LISTED`` steps an even selection with the last is returned.
        """
        with self._pool.lend() as connection:
            now = self._now(connection)
            return Overview(
                run=_run(now),
                recorder=self._recorder(connection, now),
                steps=read_timeline.steps(connection, None, None, read_timeline.MAX_STEPS_LISTED),
                methods=read_entities.methods(connection),
                ranks=read_entities.ranks(connection),
                pools=read_entities.pools(connection),
                workers=read_entities.workers(connection),
                events=read_entities.events(connection, 10, None),
                calls_per_s=_calls_per_s(connection, now),
            )

    @_answer
    def timeline(self, from_ms: float | None, to_ms: float | None, px: int) -> Timeline:
        """Return a window for a figure ``px`` wide; None means the run's start or its present end."""
        with self._pool.lend() as connection:
            now = self._now(connection)
            from_ns, to_ns = _window_ns(now, from_ms, to_ms)
            pruned_ns = now.row["pruned_before_ns"] or 0
            return read_timeline.timeline(connection, from_ns, to_ns, now.run_ns, px, pruned_ns)

    @_answer
    def spans(self, from_ms: float | None, to_ms: float | None) -> Timeline | None:
        """Return a window with each of its spans, or None when there are too many to list, or they were pruned."""
        with self._pool.lend() as connection:
            now = self._now(connection)
            window_ns = _window_ns(now, from_ms, to_ms)
            return read_timeline.spans(connection, *window_ns, now.run_ns, now.row["pruned_before_ns"] or 0)

    @_answer
    def call(self, call_id: int) -> CallDetail | None:
        """Return one call with its ranks, or None when there is no such call."""
        with self._pool.lend() as connection:
            now = self._now(connection)
            return read_calls.call(connection, call_id, now.run_ns, now.never_ended)

    @_answer
    def calls(self, limit: int, cursor: int | None, narrowed: CallFilter) -> CallPage:
        """Return calls newest first, those with an id below ``cursor``."""
        with self._pool.lend() as connection:
            now = self._now(connection)
            return read_list.calls(connection, limit, cursor, narrowed, now.run_ns, now.never_ended)

    @_answer
    def pools(self) -> tuple[Pool, ...]:
        """Return the pools as they stand."""
        with self._pool.lend() as connection:
            return read_entities.pools(connection)

    @_answer
    def pool_generations(self) -> tuple[PoolGeneration, ...]:
        """Return what every pool looked like in each of its generations."""
        with self._pool.lend() as connection:
            return read_entities.pool_generations(connection)

    @_answer
    def workers(self) -> tuple[Worker, ...]:
        """Return every worker the run had."""
        with self._pool.lend() as connection:
            return read_entities.workers(connection)

    @_answer
    def groups(self) -> tuple[Group, ...]:
        """Return every worker group the run had, in the order they were made."""
        with self._pool.lend() as connection:
            return read_entities.groups(connection)

    @_answer
    def deaths(self) -> tuple[Death, ...]:
        """Return the workers that died, in the order of their deaths."""
        with self._pool.lend() as connection:
            return read_deaths.deaths(connection)

    @_answer
    def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
        """Return the calls without an end, longest first."""
        with self._pool.lend() as connection:
            return read_deaths.in_flight(connection, limit, self._now(connection).run_ns)

    def crash_text(self) -> str:
        """Return what faulthandler wrote beside the run's file, empty when it wrote nothing."""
        return read_deaths.crash_text(self.path)

    @_answer
    def latencies(self, from_ms: float | None, to_ms: float | None) -> tuple[MethodLatency, ...]:
        """Return the percentiles of each method's calls that began in a window; None is the run's start or its end."""
        with self._pool.lend() as connection:
            return read_latency.latencies(connection, *self._window(connection, from_ms, to_ms))

    @_answer
    def latency_map(
        self, group: str, method: str, from_ms: float | None, to_ms: float | None, px: int
    ) -> LatencyMap | None:
        """Return a method's calls over time for a figure ``px`` wide, or None when there is no such method."""
        with self._pool.lend() as connection:
            return read_latency.latency_map(connection, group, method, *self._window(connection, from_ms, to_ms), px)

    @_answer
    def rank_map(self, group: str, from_ms: float | None, to_ms: float | None, px: int) -> RankMap | None:
        """Return a group's ranks over time for a figure ``px`` wide, or None when there is no such group."""
        with self._pool.lend() as connection:
            return read_latency.rank_map(connection, group, *self._window(connection, from_ms, to_ms), px)

    @_answer
    def events(self, limit: int, cursor: int | None) -> tuple[EventRow, ...]:
        """Return events newest first, those with an id below ``cursor``."""
        with self._pool.lend() as connection:
            return read_entities.events(connection, limit, cursor)

    @_answer
    def operations(self, limit: int, cursor: str | None) -> tuple[Operation, ...]:
        """Return control operations newest first, those made before operation ``cursor``."""
        with self._pool.lend() as connection:
            return read_entities.operations(connection, limit, cursor)

    @_answer
    def audit_entries(self, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
        """Return attempts to change something newest first, those with an id below ``cursor``."""
        with self._pool.lend() as connection:
            return read_entities.audit_entries(connection, limit, cursor)

    @_answer
    def gaps(self) -> tuple[Gap, ...]:
        """Return the times of which something was not recorded, newest first; at most 200."""
        with self._pool.lend() as connection:
            return read_entities.gaps(connection)

    @_answer
    def config(self) -> tuple[ConfigValue, ...]:
        """Return the values of its configuration that the driver chose to show, by name."""
        with self._pool.lend() as connection:
            return read_entities.config(connection)

    @_answer
    def steps_between(self, first: int, last: int) -> StepsSum:
        """Return the ended calls of some steps by method, the oldest calls where there are very many."""
        with self._pool.lend() as connection:
            return read_steps.steps_between(connection, first, last)

    def rank_runs(self) -> tuple[MethodRuns, ...]:
        """Return the run times of each method's last calls, as far back as a bounded number of spans allows."""
        with self._pool.lend() as connection:
            return read_rank_runs.rank_runs(connection)

    def sequence(self) -> int:
        """Return a number that grows whenever something was recorded."""
        with self._pool.lend() as connection:
            row = connection.execute("SELECT sequence FROM run").fetchone()
            if row is None:
                raise self._no_run()
            return int(row[0])

    def rest(self) -> None:
        """Close the file until the next query, so that its writer can truncate its log."""
        self._pool.rest()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._pool.close()

    def _window(self, connection: sqlite3.Connection, from_ms: float | None, to_ms: float | None) -> tuple[int, int]:
        now = self._now(connection)
        from_ns, to_ns = _window_ns(now, from_ms, to_ms)
        # Nothing is known of later, and a histogram of decades would be made of empty buckets.
        from_ns = max(0, from_ns)
        return from_ns, max(from_ns + 1000, min(to_ns, now.run_ns + _NS))

    def _now(self, connection: sqlite3.Connection) -> _Now:
        cursor = connection.cursor()
        cursor.row_factory = sqlite3.Row
        row = cursor.execute("SELECT * FROM run").fetchone()
        if row is None:
            raise self._no_run()
        check_run_row(row)
        state = self._state(row)
        until_wall_ns = self._wall_ns() if state == "running" else row["heartbeat_wall_ns"]
        # A clock that was set meanwhile may be years off; the driver's own clock never is.
        lasted_ns = until_wall_ns - row["started_wall_ns"]
        return _Now(row, state, max(row["last_ns"], lasted_ns if lasted_ns < MOST_NS else 0))

    def _no_run(self) -> NotARunFileError:
        return NotARunFileError(f"{self.path} is not a Podium run file: it contains no run", str(self.path))

    def _state(self, row: sqlite3.Row) -> str:
        if row["clean_exit"]:
            return str(row["status"])
        stale = self._wall_ns() - row["heartbeat_wall_ns"] > STALE_NS
        return "died" if stale and is_free(self.path) else "running"

    def _recorder(self, connection: sqlite3.Connection, now: _Now) -> RecorderState:
        row = now.row
        lag_ns = row["writer_lag_ns"]
        if now.state == "running":
            # A writer that cannot write cannot say so: its silence does.
            lag_ns = max(lag_ns, self._wall_ns() - row["heartbeat_wall_ns"] - 2 * _NS)
        log = self.path.with_name(self.path.name + "-wal")
        log_bytes = log.stat().st_size if log.exists() else 0
        pruned_ns = row["pruned_before_ns"]
        return RecorderState(
            row["n_recorded"],
            row["n_dropped"],
            ms_or_none(pruned_ns),
            ms(lag_ns),
            os.stat(self.path).st_size + log_bytes,
            log_bytes=log_bytes,
            journal=row["journal"],
            n_gaps=connection.execute("SELECT count(*) FROM gap").fetchone()[0],
        )


def _window_ns(now: _Now, from_ms: float | None, to_ms: float | None) -> tuple[int, int]:
    """Return the window in ns, never empty; None is the run's start or its present end."""
    from_ns = 0 if from_ms is None else int(from_ms * 1e6)
    to_ns = now.run_ns if to_ms is None else int(to_ms * 1e6)
    return from_ns, max(to_ns, from_ns + 1000)


def _run(now: _Now) -> Run:
    row = now.row
    return Run(
        id=row["uid"],
        name=bounded(row["name"], NAME),
        script=bounded(row["script"], LINE),
        state=now.state,
        started_at=datetime.fromtimestamp(row["started_wall_ns"] / _NS, UTC).isoformat(timespec="milliseconds"),
        duration_ms=ms(now.run_ns),
        host=row["host"],
        pid=row["pid"],
        podium_version=row["podium_version"],
        python_version=row["python_version"],
        ray_version=row["ray_version"],
        n_calls=row["n_calls"],
        n_failed_calls=row["n_failed_calls"],
        git=bounded(row["git"], NAME),
    )


def _calls_per_s(connection: sqlite3.Connection, now: _Now) -> float:
    """Return the rate of the last seconds while the run goes on, of the whole run after it."""
    if now.state != "running" or now.run_ns < 2 * _NS:
        return float(now.row["n_calls"] / max(now.run_ns / _NS, 1e-3))
    here = now.run_ns // _NS
    (n,) = connection.execute(
        "SELECT coalesce(sum(n), 0) FROM roll WHERE level = 0 AND lane_id = 0 AND bucket >= ? AND bucket < ?",
        (here - _RATE_WINDOW_S, here),
    ).fetchone()
    return float(n / min(_RATE_WINDOW_S, here))
