"""Maintenance of a run file: heartbeat, checkpoints, clock anchors, pruning, log size."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.store.options import WriterOptions
from app.store.prune import SLICE_ROWS, cut_ns
from app.store.runfile import RunFile


@dataclass(frozen=True, slots=True)
class Standing:
    """How the writer stands: ``idle`` when nothing is queued, ``blocked`` when something could not be written.

    Times are in ns; ``now_ns`` is on the driver clock and ``wall_ns`` the wall clock at that moment, ``last_ns`` the
    newest recorded time, since the run's start.
    """

    idle: bool
    blocked: bool
    n_dropped: int
    lag_ns: int
    now_ns: int
    wall_ns: int
    last_ns: int
    max_bytes: int


class Maintenance:
    """Maintains the file on the writer's thread, between batches."""

    def __init__(self, file: RunFile, options: WriterOptions, warn: Callable[[str], None]) -> None:
        """``warn`` adds a line to the events."""
        self._file = file
        self._options = options
        self._warn = warn
        self._beat_at = self._checkpoint_at = time.monotonic()
        self._anchor_at = -options.anchor_s
        self._busy_since_checkpoint = self._truncated = False
        self._pruned_before_ns, self._prune_cut_ns, self._prune_at = 0, -1, 0.0
        self._log_is_big = False

    def wrote(self) -> None:
        """Take note of a batch that was written, the heartbeat with it."""
        self._beat_at = time.monotonic()
        self._busy_since_checkpoint, self._truncated = True, False

    def tend(self, at: Standing) -> bool:
        """Do what is due, and say whether room was made for what waits.

        Raises:
            sqlite3.Error: Something could not be done; it comes due again.
        """
        now = time.monotonic()
        if now - self._beat_at >= self._options.heartbeat_s:
            self._beat_at = now
            self._file.beat(at.n_dropped, 0 if at.idle else at.lag_ns)
        if not at.blocked and now - self._anchor_at >= self._options.anchor_s:
            self._anchor_at = now
            self._file.anchor(at.now_ns, at.wall_ns)
        # Room is needed most when nothing can be written.
        made_room = (at.idle or at.blocked) and self._prune(now, at)
        if not at.blocked and now - self._checkpoint_at >= self._options.checkpoint_s:
            self._checkpoint_at = now
            self._checkpoint()
        return made_room

    def _checkpoint(self) -> None:
        """Move the log into the file, and empty the log the first time that nothing had come since the last."""
        truncate = not self._busy_since_checkpoint and not self._truncated
        self._file.checkpoint(truncate)
        self._truncated, self._busy_since_checkpoint = not self._busy_since_checkpoint, False
        n_bytes = self._file.log_bytes()
        if n_bytes > self._options.log_warn_bytes and not self._log_is_big:
            self._log_is_big = True
            self._warn(
                f"the write-ahead log has grown to {n_bytes:,} bytes: a reader keeps this run file open, "
                "so the log cannot be truncated; close that reader"
            )
        elif n_bytes < self._options.log_warn_bytes // 2:
            self._log_is_big = False

    def _prune(self, now: float, at: Standing) -> bool:
        """Prune a slice of old spans when there are too many."""
        if self._prune_cut_ns < 0 and now - self._prune_at >= self._options.prune_s:
            self._prune_at = now
            retention = replace(self._options.retention, max_bytes=at.max_bytes)
            cut = cut_ns(retention, self._file.used_bytes(), at.last_ns, self._pruned_before_ns)
            self._prune_cut_ns = -1 if cut is None else cut
        if self._prune_cut_ns < 0:
            return False
        if self._file.prune(self._prune_cut_ns, SLICE_ROWS):
            return True
        self._pruned_before_ns, self._prune_cut_ns = self._prune_cut_ns, -1
        return False
