"""Sums kept while events pass: per lane, per method, per bucket of time; and who was slowest."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from app.store.buckets import BUCKET_NS, Cells, Counts, add_busy, add_run
from app.store.codes import OK, SAID_END, SAID_START, status_code
from app.store.histogram_bins import bin_of
from core.events import CallAwaited, CallFinished, CallStarted, RankFinished

# Spans come from another thread than the end of their call: a call's ranks are compared once all are there, or this
# long after its end.
GRACE_NS = 10_000_000_000
_N_REMEMBERED = 10_000
# Futures that nobody asked for yet; one asked for later than that many others is written, but not added up.
_N_UNAWAITED = 50_000
DRIVER_LANE = 0


@dataclass(slots=True)
class LaneRow:
    """The row of a lane, in the order of its columns."""

    id: int
    group_id: int
    rank: int
    n_calls: int = 0
    busy_ns: int = 0
    lost_ns: int = 0
    n_slowest: int = 0
    longest_ns: int = 0
    streak: int = 0
    streak_from_ns: int = 0
    longest_streak: int = 0
    longest_streak_from_ns: int = 0

    def compared(self, slowest: bool, lost_ns: int, asked_ns: int) -> None:
        """Take in whether the rank was the slowest of a call that was made at ``asked_ns``, and what it cost."""
        self.lost_ns += lost_ns
        if not slowest:
            self.streak = 0
            return
        self.n_slowest += 1
        self.streak += 1
        if self.streak == 1:
            self.streak_from_ns = asked_ns
        if self.streak > self.longest_streak:
            self.longest_streak, self.longest_streak_from_ns = self.streak, self.streak_from_ns


@dataclass(slots=True)
class MethodRow:
    """The row of a method, in the order of its columns."""

    id: int
    group_id: int
    name: str
    dispatch_mode_id: int
    execute_mode_id: int
    blocking: bool
    n_calls: int = 0
    n_failed: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    gate_ns: int = 0
    dispatch_ns: int = 0
    execute_ns: int = 0
    wait_ns: int = 0
    collect_ns: int = 0
    unpad_ns: int = 0
    rows: int = 0
    padding_rows: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def add(self, started: CallStarted, finished: CallFinished) -> None:
        """Count one call that has ended."""
        length_ns = finished.at_ns - started.at_ns
        self.n_calls += 1
        self.total_ns += length_ns
        self.longest_ns = max(self.longest_ns, length_ns)
        self.gate_ns += started.gate_ns
        self.dispatch_ns += finished.dispatch_ns
        self.execute_ns += finished.execute_ns
        self.wait_ns += finished.wait_ns
        self.collect_ns += finished.collect_ns
        self.unpad_ns += finished.unpad_ns
        self.rows += finished.rows
        self.padding_rows += finished.padding_rows
        self.bytes_out += finished.bytes_out
        self.bytes_in += finished.bytes_in


@dataclass(slots=True)
class OpenCall:
    """A call of which more may come: its end, its ranks, or the driver asking for its value.

    ``runs`` are run times in ns by lane; ``failed`` is whether the call has been counted as failed.
    """

    started: CallStarted
    method: MethodRow
    pool_id: int
    dispatch_mode_id: int
    execute_mode_id: int
    n_expected: int
    n_spans: int = 0
    finished: bool = False
    failed: bool = False
    awaited: CallAwaited | None = None
    runs: list[tuple[LaneRow, int]] = field(default_factory=list)


SpanRow = tuple[int, ...]
SPAN_COLUMNS = (
    "lane_id",
    "began_ns",
    "call_id",
    "ended_ns",
    "method_id",
    "status",
    "said",
    "submitted_ns",
    "ready_ns",
    "clock_error_ns",
    "rows_in",
    "rows_out",
    "bytes_in",
    "bytes_out",
    "serialise_ns",
)


class Totals:
    """Adds up spans and calls. ``lanes_changed``, ``cells`` and ``counts`` are taken by whoever writes them down."""

    def __init__(self, started_ns: int) -> None:
        """Start at zero; ``started_ns`` is the run's start on the driver clock."""
        self._started_ns = started_ns
        self.open: dict[int, OpenCall] = {}
        self._settling: deque[tuple[int, int]] = deque()
        self._unawaited: OrderedDict[int, OpenCall] = OrderedDict()
        self._methods_of_settled: OrderedDict[int, int] = OrderedDict()
        self.lanes_changed: dict[int, LaneRow] = {}
        self.cells: Cells = {}
        self.counts: Counts = {}

    def begin(self, call: OpenCall) -> None:
        """Take note of a call in flight."""
        self.open[call.started.call_id] = call

    def span(self, event: RankFinished, lane: LaneRow) -> SpanRow:
        """Count one rank's span and return its row."""
        began_ns = (event.submitted_ns if event.started_ns is None else event.started_ns) - self._started_ns
        ended_ns = (event.ready_ns if event.finished_ns is None else event.finished_ns) - self._started_ns
        ended_ns = max(began_ns, ended_ns)
        said = (event.started_ns is not None) * SAID_START + (event.finished_ns is not None) * SAID_END
        status = status_code(event.status)
        self._count_span(event.call_id, lane, began_ns, ended_ns, status)
        return (
            lane.id,
            began_ns,
            event.call_id,
            ended_ns,
            self._method_of(event, lane, ended_ns - began_ns if said == SAID_START | SAID_END else None),
            status,
            said,
            event.submitted_ns - self._started_ns,
            event.ready_ns - self._started_ns,
            event.clock_error_ns,
            event.rows_in,
            event.rows_out,
            event.bytes_in,
            event.bytes_out,
            event.serialise_ns,
        )

    def end(self, event: CallFinished, call: OpenCall) -> None:
        """Count a call that has ended, and the driver's own time with it."""
        call.finished = True
        call.method.add(call.started, event)
        if not call.started.blocking and call.awaited is None:
            self._unawaited[event.call_id] = call
            if len(self._unawaited) > _N_UNAWAITED:
                self._unawaited.popitem(last=False)
        asked_ns = call.started.at_ns - self._started_ns
        key = (0, call.method.id, asked_ns // BUCKET_NS[0], bin_of(event.at_ns - call.started.at_ns))
        self.counts[key] = self.counts.get(key, 0) + 1
        began_ns = asked_ns + call.started.gate_ns
        taken_ns = event.dispatch_ns + event.execute_ns
        if call.started.blocking:
            taken_ns = max(0, event.at_ns - self._started_ns - began_ns)
        add_run(self.cells, DRIVER_LANE, began_ns, taken_ns, event.call_id, event.status != "ok")
        self._settling.append((event.at_ns - self._started_ns, event.call_id))
        if call.n_spans >= call.n_expected:
            self._settle(event.call_id)

    def awaited(self, event: CallAwaited) -> OpenCall | None:
        """Count what the driver spent on a future's value, and return its call where it is still known."""
        began_ns = event.awaited_at_ns - self._started_ns
        add_busy(self.cells, DRIVER_LANE, began_ns, began_ns + event.wait_ns + event.collect_ns + event.unpad_ns)
        call = self._unawaited.pop(event.call_id, None) or self.open.get(event.call_id)
        if call is None or call.awaited is not None:
            return None
        call.awaited = event
        call.method.wait_ns += event.wait_ns
        call.method.collect_ns += event.collect_ns
        call.method.unpad_ns += event.unpad_ns
        return call

    def fail(self, call: OpenCall) -> bool:
        """Count ``call`` as failed, and say whether it was not counted yet."""
        new, call.failed = not call.failed, True
        call.method.n_failed += new
        return new

    def settle_before(self, now_ns: int | None) -> None:
        """Compare the ranks of calls that ended long enough before ``now_ns``; all that ended when it is None."""
        while self._settling and (now_ns is None or self._settling[0][0] + GRACE_NS <= now_ns):
            self._settle(self._settling.popleft()[1])

    def _count_span(self, call_id: int, lane: LaneRow, began_ns: int, ended_ns: int, status: int) -> None:
        length_ns = ended_ns - began_ns
        lane.n_calls += 1
        lane.busy_ns += length_ns
        if length_ns > lane.longest_ns:
            lane.longest_ns = length_ns
        self.lanes_changed[lane.id] = lane
        add_run(self.cells, lane.id, began_ns, length_ns, call_id, status != OK)

    def _method_of(self, event: RankFinished, lane: LaneRow, run_ns: int | None) -> int:
        """Remember the span with its call, and return the call's method (0 when the call is not known)."""
        call = self.open.get(event.call_id)
        if call is None:
            return self._methods_of_settled.get(event.call_id, 0)
        call.n_spans += 1
        if run_ns is not None and event.status in {"ok", "error"}:
            call.runs.append((lane, run_ns))
        if call.finished and call.n_spans >= call.n_expected:
            self._settle(event.call_id)
        return call.method.id

    def _settle(self, call_id: int) -> None:
        call = self.open.pop(call_id, None)
        if call is None:
            return
        runs, call.runs = call.runs, []
        self._methods_of_settled[call_id] = call.method.id
        if len(self._methods_of_settled) > _N_REMEMBERED:
            self._methods_of_settled.popitem(last=False)
        if len(runs) < 2:
            return
        median_ns = median(sorted(run_ns for _, run_ns in runs))
        slowest, _ = max(runs, key=lambda run: run[1])
        asked_ns = call.started.at_ns - self._started_ns
        for lane, run_ns in runs:
            lane.compared(lane is slowest, max(0, run_ns - median_ns), asked_ns)
            self.lanes_changed[lane.id] = lane


def median(ordered: list[int]) -> int:
    """Return the middle of ``ordered`` run times, between the two middle ones when their number is even."""
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
