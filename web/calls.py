"""Calls: a line of the list, and one with its ranks. All times are as ``web.source`` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from web.rows import CallRow, RankSpan


@dataclass(frozen=True, slots=True)
class CallDetail:
    """Everything on the page of one call. ``shard_sizes`` are rows per rank, padding included."""

    call: CallRow
    generation: int
    gate_ms: float
    dispatch_ms: float
    execute_ms: float
    wait_ms: float
    collect_ms: float
    unpad_ms: float
    awaited_ms: float | None
    shard_sizes: tuple[int, ...]
    rows_out: int
    spans: tuple[RankSpan, ...]
    slowest_rank: int | None
    median_ms: float
    max_ms: float
    previous_id: int | None
    next_id: int | None
    error_type: str = ""
    error_message: str = ""
    error_traceback: str = ""
    error_rank: int = -1


@dataclass(frozen=True, slots=True)
class CallPage:
    """A page of the list of calls, newest first; ``next_cursor`` is None on the last one.

    A filter without an index scans a bounded number of calls per page: a page may be empty and not the last.
    """

    items: tuple[CallRow, ...]
    next_cursor: int | None


@dataclass(frozen=True, slots=True)
class CallFilter:
    """The filter of the list of calls; empty means all.

    ``min_ms`` is the least time that a call took, or has been in flight; ``above_p95`` takes those slower than the p95
    of their method over the whole run; ``padding_above`` is a share of the rows sent, 0..1.
    """

    group: str = ""
    method: str = ""
    status: str = ""
    step: int | None = None
    min_ms: float | None = None
    above_p95: bool = False
    padding_above: float | None = None


class CallSource(Protocol):
    """Answers about calls. Every method may be called from several threads at once."""

    def call(self, call_id: int) -> CallDetail | None:
        """Return one call with its ranks, or None when there is no such call."""
        ...

    def calls(self, limit: int, cursor: int | None, narrowed: CallFilter) -> CallPage:
        """Return calls newest first, those with an id below ``cursor``."""
        ...
