"""One call's record in memory, gathered from the driver's thread and from the ranks, and emitted to the bus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.cluster import Outcome
from core.data.shares import Receipt
from core.dispatch import Dispatched
from core.errors import WorkerDiedError, WorkerError, WorkerMethodError, traceback_text
from core.events import CallAwaited, CallFinished, ErrorFacts, Notice, RankFinished
from core.group.clock import ClockAlignment
from core.runtime import CallFacts, Runtime


@dataclass(slots=True)
class Phases:
    """The five steps of a call on the driver's thread, in ns."""

    dispatch_ns: int = 0
    execute_ns: int = 0
    wait_ns: int = 0
    collect_ns: int = 0
    unpad_ns: int = 0


@dataclass(slots=True)
class _RankFacts:
    submitted_ns: int
    rows_in: int
    bytes_in: int
    serialise_ns: int = 0


@dataclass
class CallTracker:
    """Follows one call until every rank has answered.

    ``on_drained`` is called once when none is out any more. Nothing here holds a handle, an argument or a result.
    """

    runtime: Runtime
    facts: CallFacts
    clocks: Sequence[ClockAlignment]
    on_drained: Callable[[CallTracker], None]
    on_death: Callable[[int, WorkerDiedError, str, int], None]
    phases: Phases = field(default_factory=Phases)
    bytes_out: int = 0
    serialise_ns: int = 0
    may_hold_padding: bool = False
    sources: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Start with every rank out."""
        self._lock = threading.Lock()
        self._submitted: dict[int, _RankFacts] = {}
        self._out: set[int] = set()
        self._sealed = self._given_up = False
        self._finished = False
        self._drained = False
        self._receipts: dict[int, Receipt] = {}
        self._error: ErrorFacts | None = None
        self._status = "ok"
        self._status_at_end = ""
        # Counts only: what was dispatched holds the arguments, and this must not.
        self._rows = self._padding_rows = 0
        self._shard_sizes: tuple[int, ...] = ()
        self.runtime.live_calls[self.facts.call_id] = self

    def dispatched(self, arguments: Dispatched) -> None:
        """Record how the rows were split."""
        self._rows, self._padding_rows, self._shard_sizes = (
            arguments.rows,
            arguments.padding_rows,
            arguments.shard_sizes,
        )
        self.may_hold_padding, self.sources = arguments.padded, arguments.sources

    @property
    def sizes_to_join(self) -> tuple[int, ...]:
        """Return the rows behind each result that is to be joined, in order; empty when that is known later only."""
        # Where rank 0 alone executes, rows were split over all and there is nothing to join.
        if self.may_hold_padding or len(self._shard_sizes) != len(self.facts.ranks):
            return ()
        return self._shard_sizes if self.sources is None else tuple(self._shard_sizes[rank] for rank in self.sources)

    def learn_sizes(self, receipts: Sequence[Receipt]) -> None:
        """Record rows that came in a future: only the ranks know how many they got."""
        if not self._shard_sizes and any(receipt.rows_in for receipt in receipts):
            self._shard_sizes = tuple(receipt.rows_in for receipt in receipts)
            self._padding_rows = sum(receipt.n_padding for receipt in receipts)
            self._rows = sum(self._shard_sizes) - self._padding_rows

    def submitted(self, rank: int, rows_in: int, bytes_in: int) -> None:
        """Record that a rank was asked; before its answer can come."""
        with self._lock:
            self._submitted[rank] = _RankFacts(self.runtime.clock.now_ns(), rows_in, bytes_in)
            self._out.add(rank)

    def sent(self, rank: int) -> None:
        """Record that a rank's arguments are in the cluster's hands; before its answer is taken."""
        asked = self._submitted[rank]
        asked.serialise_ns = self.runtime.clock.now_ns() - asked.submitted_ns
        self.serialise_ns += asked.serialise_ns

    @property
    def has_failed(self) -> bool:
        """Whether the call is known to have failed, or the driver has given up waiting for it."""
        return self._status_at_end not in {"", "ok"} or self._error is not None or self._given_up

    def give_up(self) -> None:
        """Say that the driver waits for the call no longer; its ranks go on."""
        self._given_up = True

    @property
    def fate(self) -> str:
        """Return how the driver saw it end, in words."""
        return "was not answered in time" if self._given_up else "failed"

    def sealed(self) -> None:
        """Say that no more ranks will be asked."""
        with self._lock:
            self._sealed = True
        self._check()

    @property
    def out(self) -> tuple[int, ...]:
        """Return the ranks that have not answered."""
        with self._lock:
            return tuple(sorted(self._out))

    @property
    def asked(self) -> tuple[tuple[int, int, bool], ...]:
        """Return each rank that was asked: the rank, when it was, in ns on the driver clock, and whether it is out."""
        with self._lock:
            return tuple((rank, facts.submitted_ns, rank in self._out) for rank, facts in self._submitted.items())

    @property
    def receipts(self) -> list[Receipt]:
        """Return the receipts of the ranks that have answered, in rank order."""
        with self._lock:
            return [self._receipts[rank] for rank in sorted(self._receipts)]

    def answered(self, rank: int, outcome: Outcome, ready_ns: int | None = None) -> None:
        """Take a rank's receipt, or the error in its place, ready at ``ready_ns`` or just now; on any thread."""
        if ready_ns is None:
            ready_ns = self.runtime.clock.now_ns()
        error = outcome.error
        receipt = None if error is not None else Receipt.unpack(outcome.value)
        with self._lock:
            self._out.discard(rank)
            if receipt is not None:
                self._receipts[rank] = receipt
            if error is not None and self._error is None:
                self._error, self._status = error_facts(error, rank), _status(error)
        self._emit_rank(rank, receipt, error, ready_ns)
        if isinstance(error, WorkerDiedError):
            self.on_death(rank, error, self.facts.method, self.facts.call_id)
        if not self._out:
            self._check()

    def all_answered(self, packed: Sequence[bytes]) -> list[Receipt]:
        """Take the receipts of all ranks, in rank order, which are ready just now; return them."""
        ready_ns = self.runtime.clock.now_ns()
        receipts = [Receipt.unpack(one) for one in packed]
        with self._lock:
            self._receipts = dict(zip(self.facts.ranks, receipts, strict=True))
            self._out.clear()
        for rank, receipt in self._receipts.items():
            self._emit_rank(rank, receipt, None, ready_ns)
        self._check()
        return receipts

    def _emit_rank(self, rank: int, receipt: Receipt | None, error: BaseException | None, ready_ns: int) -> None:
        """Emit the event of a rank's part, with its times on the driver clock."""
        asked = self._submitted[rank]
        started: int | None = None
        finished: int | None = None
        error_ns = 0
        rows_in, rows_out, bytes_out = asked.rows_in, 0, 0
        if receipt is not None:
            rows_in = rows_in or receipt.rows_in
            rows_out, bytes_out = max(receipt.rows_out, 0), receipt.bytes_out
        times = receipt or (error if isinstance(error, WorkerMethodError) else None)
        if times is not None and times.started_ns:
            started, finished, error_ns = self.clocks[rank].aligned(
                asked.submitted_ns, times.started_ns, times.finished_ns, ready_ns
            )
        self.runtime.bus.emit(
            RankFinished(
                self.facts.call_id,
                self.facts.group,
                rank,
                asked.submitted_ns,
                started,
                finished,
                ready_ns,
                error_ns,
                _status(error),
                rows_in,
                rows_out,
                asked.bytes_in,
                bytes_out,
                asked.serialise_ns,
            )
        )
        if receipt is not None and receipt.note:
            self.runtime.bus.emit(Notice(ready_ns, "warning", f"{self.facts.group} rank {rank}: {receipt.note}"))

    def finished(self, rows_out: int, bytes_in: int) -> None:
        """Say that a blocking call has its result."""
        self._finish("ok", rows_out, bytes_in, None)

    def failed(self, error: BaseException) -> None:
        """Say that the driver got ``error`` from a blocking call, or before it could ask the ranks."""
        status = _status(error) if isinstance(error, Exception) else "cancelled"
        rank = error.rank if isinstance(error, WorkerError) else -1
        self._finish(status, 0, 0, error_facts(error, rank))

    def awaited(self, at_ns: int, error: BaseException | None) -> None:
        """Say that the driver has asked for a future's value and got it, or ``error``."""
        self.runtime.bus.emit(
            CallAwaited(
                call_id=self.facts.call_id,
                awaited_at_ns=at_ns,
                wait_ns=self.phases.wait_ns,
                collect_ns=self.phases.collect_ns,
                unpad_ns=self.phases.unpad_ns,
                error=None if error is None else error_facts(error, getattr(error, "rank", -1)),
            )
        )

    def _check(self) -> None:
        """When no rank is out: end a non-blocking call, and say once that the call is drained."""
        with self._lock:
            if not self._sealed or self._out or self._drained:
                return
            self._drained = True
            late = not self.facts.blocking
        self.runtime.live_calls.pop(self.facts.call_id, None)
        if late:
            receipts = self.receipts
            rows_out = sum(max(receipt.n_kept, 0) for receipt in receipts)
            self._finish(self._status, rows_out, sum(receipt.bytes_out for receipt in receipts), self._error)
        self.on_drained(self)

    def _finish(self, status: str, rows_out: int, bytes_in: int, error: ErrorFacts | None) -> None:
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self._status_at_end = status
        phases = self.phases
        self.runtime.bus.emit(
            CallFinished(
                call_id=self.facts.call_id,
                at_ns=self.runtime.clock.now_ns(),
                status=status,
                rows=self._rows,
                rows_out=rows_out,
                shard_sizes=self._shard_sizes,
                padding_rows=self._padding_rows,
                bytes_out=self.bytes_out,
                bytes_in=bytes_in,
                dispatch_ns=phases.dispatch_ns,
                execute_ns=phases.execute_ns,
                wait_ns=phases.wait_ns if self.facts.blocking else 0,
                collect_ns=phases.collect_ns if self.facts.blocking else 0,
                unpad_ns=phases.unpad_ns if self.facts.blocking else 0,
                error=error,
                serialise_ns=self.serialise_ns,
            )
        )


def _status(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    return "died" if isinstance(error, WorkerDiedError) else "error"


def error_facts(error: BaseException, rank: int) -> ErrorFacts:
    """Return an exception as text; a worker's error keeps the worker's own traceback."""
    kind = error.cause_type if isinstance(error, WorkerMethodError) and error.cause_type else type(error).__name__
    text = error.traceback_text if isinstance(error, WorkerError) else traceback_text(error)
    return ErrorFacts(kind, str(error), text, rank)
