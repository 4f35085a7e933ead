"""The writer: a bounded queue that anybody fills within a microsecond, and one thread that empties it into the file.

Nothing here ever slows, blocks or fails the driver. What cannot be written now is kept and tried again; what does not
fit into the queue is counted, and the count is written as soon as anything can be.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.store.disk_space import DiskSpace
from app.store.event_reducer import Batch, EventReducer
from app.store.facts import RunFacts
from app.store.maintenance import Maintenance, Standing
from app.store.mounts import filesystem_of, is_network
from app.store.options import WriterOptions
from app.store.runfile import Counters, RunFile
from core.events import traits_of

__all__ = ["Writer", "WriterOptions", "WriterState"]

_log = logging.getLogger("podium.store")

# What the file has against a row, and not the disk against the file; the last is of a text that UTF-8 cannot say.
_ABOUT_A_ROW = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, OverflowError, UnicodeEncodeError)
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WriterState:
    """How the recording stands, asked of the writer itself: a full disk cannot say so in the file."""

    n_queued: int
    n_recorded: int
    n_dropped: int
    lag_s: float
    error: str


@dataclass(slots=True)
class _Mark:
    """A place in the queue; ``reached`` is set when everything before it is committed."""

    reached: threading.Event = field(default_factory=threading.Event)


class Writer:
    """Writes one run's file.

    ``put``, ``flush`` and ``state`` may be called from any thread; none of them raises.
    """

    def __init__(self, path: Path, facts: RunFacts, options: WriterOptions | None = None) -> None:
        """Name the file and the run; nothing is touched before ``start``."""
        self.path = path
        self.options = options or WriterOptions()
        self._facts = facts
        self._file = RunFile(path)
        self._reducer = EventReducer(facts.started_ns, self.options.tracebacks)
        self._queue: deque[object] = deque()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="podium-writer", daemon=True)
        self._drop_lock = threading.Lock()
        self._counters = Counters()
        self._n_dropped = self._n_dropped_noted = 0
        self._gap_from_s, self._gap_reason = 0.0, ""
        self._pending: tuple[Batch, list[_Mark]] | None = None
        self._retry_at = self._retry_pause_s = 0.0
        self._error = ""
        self._short = ""
        self._popped_at = self._noted_at = 0.0
        self._noted = self._urgent = False
        self._disk_space = DiskSpace(path.parent, self.options.min_free_bytes, self.options.ballast_bytes)
        self._maintenance = Maintenance(self._file, self.options, self._warn)
        self._max_bytes = self._limited_to = self.options.retention.max_bytes
        self._last_ns = 0
        self._started_mono_ns = time.monotonic_ns()
        self._stopping = False
        self._ending = ("ended", True)
        self._owner = 0

    def start(self) -> None:
        """Make the file and start the thread.

        Raises:
            RunLockedError: Another process writes this file.
            RunsFolderError: No file can be made there.
            RunFileError: The file holds something already.
        """
        kind = filesystem_of(self.path.parent)
        self._file.create(self._facts, "delete" if is_network(kind) else "wal")
        if self._max_bytes:
            self._file.limit_bytes(self._max_bytes)
        self._started_mono_ns = time.monotonic_ns() - (time.time_ns() - self._facts.started_wall_ns)
        self._popped_at = time.monotonic()
        if self._file.journal != "wal":
            where = f"of type {kind}, which other hosts may have mounted" if kind else "without shared memory"
            self._warn(
                f"the runs folder is on a filesystem {where}: no write-ahead log is used, so pages may load more slowly"
            )
        self._owner = os.getpid()
        self._thread.start()

    def put(self, item: object) -> None:
        """Queue an event or an `AuditFacts`; dropped and counted when the queue is full."""
        queue = self._queue
        if len(queue) >= self.options.capacity and not self._admits(item):
            return
        queue.append(item)

    def hurry(self) -> None:
        """Let the thread write what is queued now, not at the end of its interval, however little room is left."""
        self._urgent = True
        self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued so far is committed, and say whether it is."""
        if not self._alive():
            return False
        mark = _Mark()
        self._queue.append(mark)
        self.hurry()
        return mark.reached.wait(timeout_s)

    def limit_bytes(self, n_bytes: int) -> None:
        """Bound the file's size from now on, 0 for no bound; what waits is tried at once."""
        self._max_bytes = n_bytes
        self._retry_at = 0.0
        self._wake.set()

    def state(self) -> WriterState:
        """Return how the recording stands."""
        n_queued = len(self._queue)
        behind_s = time.monotonic() - self._popped_at if n_queued or self._pending else 0.0
        lag_s = max(behind_s, self._counters.writer_lag_ns / _NS)
        return WriterState(n_queued, self._counters.n_recorded, self._n_dropped, lag_s, self._error or self._short)

    def close(self, clean: bool = True, status: str = "ended", timeout_s: float = 5.0) -> None:
        """Write what is queued and how the run ended, and close the file; may be called twice.

        Args:
            clean: Whether the driver came to its end, so that the run is not taken for dead.
            status: "ended" or "failed".
            timeout_s: How long to wait for the thread.
        """
        if not self._alive():
            return
        if not self._stopping:
            self._ending = (status, clean)
            self._stopping = True
        self._retry_at = 0.0
        self._wake.set()
        self._thread.join(timeout_s)

    def _alive(self) -> bool:
        # A forked child has a copy of this object, but neither the thread nor the right to write.
        return self._owner == os.getpid() and self._thread.is_alive()

    def _admits(self, item: object) -> bool:
        with self._drop_lock:
            if traits_of(type(item)).ends and len(self._queue) < self.options.capacity * 11 // 10:
                return True
            self._drop(1, self._error or self._short or "the queue was full")
            return False

    def _drop(self, n: int, reason: str) -> None:
        """Count events that are lost, with the lock held; the first since the last telling begins a gap."""
        if self._n_dropped == self._n_dropped_noted:
            self._gap_from_s, self._gap_reason = time.monotonic(), reason
        self._n_dropped += n

    def _run(self) -> None:
        self._disk_space.hold()
        while True:
            self._wake.wait(self.options.interval_s)
            self._wake.clear()
            stopping = self._stopping
            try:
                self._work(stopping)
            except Exception:
                _log.exception("the recorder failed on a batch of events; training continues")
            if stopping:
                break
        self._finish()

    def _work(self, stopping: bool) -> None:
        """Write everything that is queued, then see to heartbeat and checkpoint."""
        if self._max_bytes != self._limited_to:
            self._file.limit_bytes(self._max_bytes)
            self._limited_to = self._max_bytes
        urgent, self._urgent = self._urgent or stopping, False
        while self._retry() and self._has_work() and self._has_room(urgent):
            items = [self._queue.popleft() for _ in range(min(len(self._queue), self.options.batch_size))]
            self._take(items)
        if stopping and self._pending is None:
            self._take([], closing=True)
        if not self._queue and self._pending is None:
            # Nothing waits now: the oldest event of the next batch comes later than this.
            self._popped_at = time.monotonic()
        self._tend()

    def _take(self, items: list[object], closing: bool = False) -> None:
        marks = [item for item in items if isinstance(item, _Mark)]
        events = [item for item in items if not isinstance(item, _Mark)] if marks else items
        now_ns = self._now_ns()
        if self._must_note_drops():
            self._note_dropped(now_ns)
        self._noted = False
        try:
            batch = self._reducer.take(events, now_ns, closing)
        except Exception:
            with self._drop_lock:
                self._drop(len(events), "the recorder failed to process them")
            raise
        self._last_ns = batch.last_ns
        with self._drop_lock:
            self._n_dropped += batch.n_refused
            self._n_dropped_noted += batch.n_refused
        popped_at, self._popped_at = self._popped_at, time.monotonic()
        self._pending = (batch, marks)
        self._try(popped_at)

    def _retry(self) -> bool:
        """Try again what could not be written, when its time has come, and say whether nothing waits."""
        if self._pending is not None and time.monotonic() >= self._retry_at:
            self._try(self._popped_at)
        return self._pending is None

    def _try(self, popped_at: float) -> None:
        if self._pending is None:
            return
        batch, marks = self._pending
        counters = self._counters
        after = Counters(
            counters.sequence + 1,
            counters.n_recorded + batch.n_events - batch.n_refused,
            self._n_dropped,
            # The oldest event of the batch came after the batch before was taken.
            int((time.monotonic() - popped_at) * _NS) if batch.n_events else 0,
        )
        try:
            self._write(batch, after)
        except sqlite3.Error as error:
            self._put_off(error)
            return
        self._counters = after
        self._pending, self._error, self._retry_pause_s = None, "", 0.0
        self._maintenance.wrote()
        for mark in marks:
            mark.reached.set()

    def _write(self, batch: Batch, counters: Counters) -> None:
        try:
            self._file.write(batch, counters)
        except _ABOUT_A_ROW as error:
            # Trying again would fail forever: this is about a row, not about the disk.
            n_refused = self._file.write_row_by_row(batch, counters)
            if not n_refused:
                return
            _log.error("%d rows could not be recorded: %s", n_refused, error)
            with self._drop_lock:
                self._drop(n_refused, "the file rejected their rows")

    def _put_off(self, error: sqlite3.Error) -> None:
        pause_s = min(self._retry_pause_s * 2 or self.options.retry_s, self.options.max_retry_s)
        if not self._error:
            _log.error("recording to %s is paused: %s; training continues", self.path, error)
        self._error, self._retry_pause_s = str(error), pause_s
        self._retry_at = time.monotonic() + pause_s
        if self._disk_space.free_bytes() < self.options.ballast_bytes and self._disk_space.release_ballast():
            _log.error(
                "the disk of %s is full; released %d reserved bytes",
                self.path,
                self.options.ballast_bytes,
            )
            self._retry_at = 0.0
            self._wake.set()

    def _has_work(self) -> bool:
        return bool(self._queue) or self._noted or self._must_note_drops()

    def _has_room(self, urgent: bool) -> bool:
        """Say whether to write: with little room left only what somebody waits for is, and that it is so."""
        short, before = self._disk_space.shortage(), self._short
        self._short = short
        if short and not before:
            self._warn(f"recording stops: {short}; training continues")
            return True
        if before and not short:
            self._disk_space.hold()
        return urgent or not short

    def _note_dropped(self, now_ns: int) -> None:
        with self._drop_lock:
            n, self._noted_at = self._n_dropped - self._n_dropped_noted, time.monotonic()
            self._n_dropped_noted = self._n_dropped
            from_ns = now_ns - int((self._noted_at - self._gap_from_s) * _NS)
            reason = self._gap_reason
        self._reducer.note_dropped(n, from_ns, now_ns, reason)

    def _must_note_drops(self) -> bool:
        return self._n_dropped > self._n_dropped_noted and time.monotonic() - self._noted_at >= 1.0

    def _tend(self) -> None:
        """See to the file, between batches."""
        idle = not self._queue and self._pending is None
        if idle:
            self._counters = replace(self._counters, writer_lag_ns=0)
        standing = Standing(
            idle,
            self._pending is not None,
            self._n_dropped,
            self._counters.writer_lag_ns,
            self._now_ns(),
            time.time_ns(),
            self._last_ns,
            self._max_bytes,
        )
        try:
            if self._maintenance.tend(standing):
                self._retry_at = 0.0
                self._wake.set()
        except sqlite3.Error as error:
            if not self._error:
                _log.warning("heartbeat, pruning or checkpoint of %s failed: %s", self.path, error)

    def _warn(self, text: str) -> None:
        """Add a warning to the events; it is written with the next batch."""
        _log.warning("%s: %s", self.path, text)
        self._reducer.note("warning", "recorder", text, self._now_ns())
        self._noted = True

    def _now_ns(self) -> int:
        """Return the time on the driver clock: between two readings of it its monotonic half carries it forward."""
        return self._facts.started_ns + time.monotonic_ns() - self._started_mono_ns

    def _finish(self) -> None:
        status, clean = self._ending
        try:
            self._file.end(status, clean, self._counters.sequence + 1)
        except sqlite3.Error as error:
            _log.error("the end of the run could not be written to %s: %s", self.path, error)
        finally:
            self._file.close()
            self._disk_space.release_ballast()
