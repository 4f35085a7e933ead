"""Events in, rows out: what the writer writes, decided without touching a file.

The reducer assigns row ids and keeps the rows that change. ``take`` turns a batch of events into a
`Batch` of statements that can be tried again as often as needed: whole rows replace whole rows, and only roll-ups add.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.store.buckets import counts_with_coarser, with_coarser
from app.store.calls import AWAIT_CALL, CALL_COLUMNS, awaited_row, finished_row, running_row
from app.store.codes import level_code, pack_sizes
from app.store.entity_rows import EntityRows
from app.store.facts import AuditFacts
from app.store.models import (
    AuditEntry,
    Call,
    ConfigValue,
    Event,
    Gap,
    Lane,
    Latency,
    Method,
    RankSpan,
    Roll,
    Stall,
    Step,
    StepMetric,
)
from app.store.redact import without_values
from app.store.sql import column_names, field_names, insert_or_ignore, upsert
from app.store.texts import LINE, NAME, bounded
from app.store.totals import SPAN_COLUMNS, LaneRow, MethodRow, OpenCall, Totals
from core.events import (
    CallAwaited,
    CallFinished,
    CallStalled,
    CallStarted,
    ConfigLogged,
    ErrorFacts,
    GroupClosed,
    GroupCreated,
    GroupRebuilt,
    Notice,
    OperationChanged,
    PoolChanged,
    PoolCreated,
    PoolStateChanged,
    RankFinished,
    StepFinished,
    StepStarted,
    WorkerClock,
    WorkerEnded,
    WorkerStarted,
)

_log = logging.getLogger("podium.store")

Row = tuple[Any, ...]

_ROLL_COLUMNS = ("level", "lane_id", "bucket", "n", "busy_ns", "max_ns", "max_call_id", "err_n")
_ADD_ROLL = upsert(
    Roll,
    _ROLL_COLUMNS,
    merge={
        "n": "n + excluded.n",
        "busy_ns": "busy_ns + excluded.busy_ns",
        "err_n": "err_n + excluded.err_n",
        # Expressions see the row as it was, so the call of the longest span and its length cannot part.
        "max_call_id": "CASE WHEN excluded.max_ns > max_ns THEN excluded.max_call_id ELSE max_call_id END",
        "max_ns": "max(max_ns, excluded.max_ns)",
    },
)
_PUT_CALL = upsert(Call, CALL_COLUMNS)
_ADD_SPAN = insert_or_ignore(RankSpan, SPAN_COLUMNS)
_PUT_LANE = upsert(Lane, field_names(LaneRow))
_PUT_METHOD = upsert(Method, field_names(MethodRow))
_PUT_STEP = upsert(Step)
_PUT_CONFIG = upsert(ConfigValue)
_PUT_METRIC = upsert(StepMetric, ("step_id", "name", "value"))
_ADD_EVENT = insert_or_ignore(Event, ("id", "at_ns", "level", "kind", "text"))
_ADD_AUDIT = insert_or_ignore(AuditEntry)
_PUT_STALL = upsert(Stall, ("call_id", "at_ns", "seconds", "ranks"))
_ADD_GAP = insert_or_ignore(Gap, ("id", "from_ns", "to_ns", "n_events", "reason"))
_ADD_LATENCY = upsert(Latency, ("level", "method_id", "bucket", "slot", "n"), merge={"n": "n + excluded.n"})
_LANE_FIELDS, _METHOD_FIELDS, _STEP_FIELDS = field_names(LaneRow), field_names(MethodRow), column_names(Step)


@dataclass(frozen=True, slots=True)
class Batch:
    """Statements with their rows, in an order that foreign keys allow.

    ``durable`` asks for a commit that survives a power cut. ``n_refused`` events could not be understood.
    """

    statements: tuple[tuple[str, list[Row]], ...]
    n_events: int
    n_refused: int
    durable: bool
    last_ns: int
    n_calls: int
    n_failed_calls: int


class EventReducer:
    """Turns events into rows. One thread at a time."""

    def __init__(self, started_ns: int, tracebacks: bool = True) -> None:
        """Start an empty run; without ``tracebacks`` an error is kept as its type and rank only."""
        self._started_ns = started_ns
        self._values = tracebacks
        self._entities = EntityRows(started_ns, self._happened)
        self._totals = Totals(started_ns)
        self._last_ns = started_ns
        self._n_calls = self._n_failed_calls = 0
        self._n_events_noted = self._n_audits = self._n_steps = self._n_gaps = 0
        self._calls: dict[int, Row] = {}
        self._awaited: list[Row] = []
        self._spans: list[Row] = []
        self._events: list[Row] = []
        self._audits: list[Row] = []
        self._metrics: list[Row] = []
        self._config: list[Row] = []
        self._gaps: list[Row] = []
        self._stalls: list[Row] = []
        self._open_steps: dict[int, Step] = {}
        self._steps_changed: dict[int, Step] = {}
        self._methods_changed: dict[int, MethodRow] = {}
        self._durable = False
        self._on: dict[type, Callable[[Any], None]] = {
            RankFinished: self._rank_finished,
            CallStarted: self._call_started,
            CallFinished: self._call_finished,
            CallAwaited: self._call_awaited,
            StepStarted: self._step_started,
            StepFinished: self._step_finished,
            ConfigLogged: self._config_logged,
            PoolCreated: self._entities.pool_created,
            PoolStateChanged: self._entities.pool_state_changed,
            PoolChanged: self._entities.pool_changed,
            GroupCreated: self._entities.group_created,
            GroupRebuilt: self._entities.group_rebuilt,
            GroupClosed: self._entities.group_closed,
            WorkerStarted: self._entities.worker_started,
            WorkerEnded: self._worker_ended,
            WorkerClock: self._entities.worker_clock,
            CallStalled: self._call_stalled,
            OperationChanged: self._operation_changed,
            Notice: self._notice,
            AuditFacts: self._audit,
        }

    def take(self, events: Iterable[object], now_ns: int | None = None, closing: bool = False) -> Batch:
        """Turn ``events`` into rows.

        Args:
            events: Core's events and `AuditFacts`, in the order they came.
            now_ns: The time on the driver clock, where it is known.
            closing: Nothing more comes, so every ended call is compared rank by rank now.
        """
        n_events = n_refused = 0
        for event in events:
            n_events += 1
            try:
                self._on[type(event)](event if self._values else without_values(event))
            except Exception:
                n_refused += 1
                if n_refused == 1:
                    _log.exception("a %s could not be recorded", type(event).__name__)
        self._last_ns = max(self._last_ns, now_ns or 0)
        self._totals.settle_before(None if closing else self._last_ns - self._started_ns)
        return self._pack(n_events, n_refused)

    def note_dropped(self, n: int, from_ns: int, to_ns: int, reason: str) -> None:
        """Keep that ``n`` events between two driver times were not recorded, and why."""
        self._n_gaps += 1
        self._gaps.append((self._n_gaps, from_ns - self._started_ns, to_ns - self._started_ns, n, reason))
        self._happened(to_ns, "error", "recorder", f"{n:,} events were not recorded: {reason}")

    def note(self, level: str, kind: str, text: str, at_ns: int) -> None:
        """Put a line of the recorder's own among the events."""
        self._happened(at_ns, level, kind, text)

    def _pack(self, n_events: int, n_refused: int) -> Batch:
        totals = self._totals
        totals.lanes_changed.update(self._entities.take_new_lanes())
        cells = with_coarser(totals.cells) if totals.cells else {}
        counts = counts_with_coarser(totals.counts) if totals.counts else {}
        rolls = [(*key, c.n, c.busy_ns, c.max_ns, c.max_call_id, c.err_n) for key, c in cells.items()]
        statements = (
            *self._entities.take_rows(),
            (_PUT_LANE, _rows(totals.lanes_changed, _LANE_FIELDS)),
            *self._entities.take_worker_rows(),
            (_PUT_METHOD, _rows(self._methods_changed, _METHOD_FIELDS)),
            (_PUT_STEP, _rows(self._steps_changed, _STEP_FIELDS)),
            (_PUT_METRIC, self._metrics),
            (_PUT_CONFIG, self._config),
            (_PUT_CALL, list(self._calls.values())),
            (AWAIT_CALL, self._awaited),
            (_ADD_SPAN, self._spans),
            (_ADD_ROLL, rolls),
            (_ADD_LATENCY, [(*key, n) for key, n in counts.items()]),
            (_ADD_EVENT, self._events),
            (_ADD_AUDIT, self._audits),
            (_ADD_GAP, self._gaps),
            (_PUT_STALL, self._stalls),
        )
        batch = Batch(
            tuple(pair for pair in statements if pair[1]),
            n_events,
            n_refused,
            self._durable,
            self._last_ns - self._started_ns,
            self._n_calls,
            self._n_failed_calls,
        )
        self._calls, self._awaited, self._spans = {}, [], []
        self._events, self._audits, self._metrics, self._config = [], [], [], []
        self._gaps, self._stalls = [], []
        totals.cells, totals.counts = {}, {}
        totals.lanes_changed.clear()
        self._methods_changed.clear()
        self._steps_changed.clear()
        self._durable = False
        return batch

    def _call_started(self, event: CallStarted) -> None:
        self._seen(event.at_ns)
        places = self._entities
        dispatch_mode_id, execute_mode_id = places.word_id(event.dispatch_mode), places.word_id(event.execute_mode)
        group = places.group(event.group, event.pool)
        method = places.method(group, event.method, dispatch_mode_id, execute_mode_id, event.blocking)
        self._methods_changed[method.id] = method
        pool_id = places.pool(event.pool).id
        n_expected = len(event.ranks) or group.world_size or 1
        call = OpenCall(event, method, pool_id, dispatch_mode_id, execute_mode_id, n_expected)
        self._totals.begin(call)
        self._n_calls += 1
        self._calls[event.call_id] = running_row(call, self._started_ns)

    def _call_finished(self, event: CallFinished) -> None:
        self._seen(event.at_ns)
        call = self._totals.open.get(event.call_id)
        if call is None or call.finished:
            raise LookupError(f"call {event.call_id} ended, but its start was not recorded")
        self._calls[event.call_id] = finished_row(call, event, self._started_ns)
        self._totals.end(event, call)
        self._methods_changed[call.method.id] = call.method
        if event.status != "ok" and self._totals.fail(call):
            self._failed(call, event.at_ns, event.status, event.error)

    def _call_awaited(self, event: CallAwaited) -> None:
        self._seen(event.awaited_at_ns)
        self._awaited.append(awaited_row(event, self._started_ns))
        call = self._totals.awaited(event)
        if call is None:
            return
        self._methods_changed[call.method.id] = call.method
        if event.error is not None and self._totals.fail(call):
            self._failed(call, event.awaited_at_ns + event.wait_ns, "error", event.error)

    def _failed(self, call: OpenCall, at_ns: int, status: str, error: ErrorFacts | None) -> None:
        self._n_failed_calls += 1
        where = "" if error is None or error.rank < 0 else f" on rank {error.rank}"
        why = "" if error is None else f": {error.type}: {_first_line(error.message)}"
        name = f"{call.started.group}.{call.started.method}"
        self._happened(at_ns, "error", "call", f"call {call.started.call_id} {name} {status}{where}{why}")

    def _rank_finished(self, event: RankFinished) -> None:
        lane = self._entities.lane(event.group, event.rank)
        self._spans.append(self._totals.span(event, lane))

    def _call_stalled(self, event: CallStalled) -> None:
        ranks = ", ".join(map(str, event.ranks))
        text = (
            f"call {event.call_id} {event.group}.{event.method} has been in flight for {event.seconds:.0f} s; "
            f"no answer yet from rank {ranks}"
        )
        self._stalls.append((event.call_id, event.at_ns - self._started_ns, event.seconds, pack_sizes(event.ranks)))
        self._happened(event.at_ns, "warning", "stall", text)

    def _worker_ended(self, event: WorkerEnded) -> None:
        self._durable |= event.died
        self._entities.worker_ended(event)

    def _step_started(self, event: StepStarted) -> None:
        self._seen(event.at_ns)
        self._n_steps += 1
        step = Step(id=self._n_steps, number=event.index, total=event.total, started_ns=event.at_ns - self._started_ns)
        self._open_steps[event.index] = self._steps_changed[step.id] = step

    def _step_finished(self, event: StepFinished) -> None:
        self._seen(event.at_ns)
        step = self._open_steps.pop(event.index, None)
        if step is None:
            raise LookupError(f"step {event.index} ended, but its start was not recorded")
        step.ended_ns = event.at_ns - self._started_ns
        self._steps_changed[step.id] = step
        self._metrics.extend((step.id, bounded(name, NAME), float(value)) for name, value in event.metrics)

    def _config_logged(self, event: ConfigLogged) -> None:
        self._seen(event.at_ns)
        self._config.extend(event.values)

    def _operation_changed(self, event: OperationChanged) -> None:
        self._seen(event.at_ns)
        self._durable = True
        if not self._entities.operation_changed(event):
            return
        level = "error" if event.state == "failed" else "info"
        why = f": {event.error}" if event.error else ""
        self._happened(
            event.at_ns, level, "operation", f"{event.kind} {event.pool} by {event.who} is {event.state}{why}"
        )

    def _notice(self, event: Notice) -> None:
        self._happened(event.at_ns, event.level, "notice", event.text)

    def _audit(self, event: AuditFacts) -> None:
        self._durable = True
        self._n_audits += 1
        self._audits.append(
            (
                self._n_audits,
                event.at_ns - self._started_ns,
                event.actor,
                event.remote,
                event.user_agent,
                event.request_id,
                event.action,
                event.target,
                event.expected_generation,
                event.outcome,
                bounded(event.detail, LINE),
                event.operation_id,
            )
        )

    def _happened(self, at_ns: int, level: str, kind: str, text: str) -> None:
        self._seen(at_ns)
        self._n_events_noted += 1
        self._events.append(
            (self._n_events_noted, at_ns - self._started_ns, level_code(level), kind, bounded(text, LINE))
        )

    def _seen(self, at_ns: int) -> None:
        if at_ns > self._last_ns:
            self._last_ns = at_ns


def _rows(changed: dict[int, Any], names: tuple[str, ...]) -> list[Row]:
    return [tuple(getattr(row, name) for name in names) for row in changed.values()]


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else ""
