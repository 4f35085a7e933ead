"""One call through a group: gate, dispatch, execute, wait, collect, unpad."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from core.cluster import Submitted
from core.data.direct import landed, noting
from core.data.future import DataProtoFuture, without_padding
from core.data.landing import Landing
from core.data.receive import Loans, borrowing
from core.data.rows import join, row_count
from core.data.shares import Receipt
from core.dispatch import Arguments, Call, Dispatch, Execute, ModeRule, Registration, rule_for
from core.dispatch.modes import OpenEnum
from core.errors import UnevenSplitError, WorkerDiedError, WorkerError
from core.events import CallStarted, Notice
from core.group.bind import Method
from core.group.call_tracker import CallFacts, CallTracker
from core.group.deadline import limit_s
from core.group.execute import Load, ask_all, submit_all, weigh
from core.group.wait import fetch_answers, fetched_again, undelivered_of, wait_for_answers
from core.group.worker_set import Crew
from core.lifecycle.restart import restart_if_due
from core.pool import Gate
from core.runtime import Runtime

if TYPE_CHECKING:
    from core.group.worker_group import RayWorkerGroup


class Calling(Protocol):
    """A worker group, as far as a call looks at it; functions of a user's mode are handed it too."""

    _runtime: Runtime
    _crew: Crew | None

    def crew_for(self, method: str) -> Crew:
        """Return the workers of now; raise ``PoolClosedError`` when the group is closed."""
        ...


def perform(owner: Calling, method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make one call and return what its mode returns.

    Raises:
        UsageError: The arguments cannot be dealt; no rank was asked.
        WorkerError: A rank failed; the first one that did ends the call.
        PoolClosedError: The pool is closed.
    """
    crew, rule, called_ns, gate_ns = _passed(owner, method)
    tracker = _started(crew, method, called_ns, gate_ns)
    try:
        crew.deaths.refuse(tracker.facts.ranks, method.name)
        loads = _dispatch(crew, owner, rule, method, Arguments(args, kwargs), tracker)
        trims = ("rows" if rule.joins_rows else "batches") if rule.rows else ""
        if not method.registration.blocking:
            return _later(crew, owner, rule, method, submit_all(crew, method, loads, trims, tracker), tracker)
        refs = ask_all(crew, method, loads, trims, tracker)
        with borrowing(rule.joins_rows) as loans:
            landing = Landing(tracker.sizes_to_join if rule.joins_rows else (), loans)
            parts, receipts = wait_for_answers(crew, refs, tracker, landing)
        if not loans.all_in(parts):
            parts, loans = fetched_again(crew, refs), Loans()
        with landing:
            result, rows_out, bytes_in = _joined(owner, rule, method, parts, receipts, loans, tracker)
    except BaseException as error:
        told = _placed(crew, method.name, error)
        # First the failure, then that no more ranks are asked: a call that asked none would else end as "ok".
        tracker.failed(told)
        tracker.sealed()
        try:
            if told is error:
                raise
            raise told from None
        finally:
            # An error that a frame of its own traceback names is a cycle: arguments, results and references would stay
            # until the collector comes, and a driver that tries again has them all once more. So below, and in answers.
            del told
    tracker.finished(rows_out, bytes_in)
    return result


def _passed(owner: Calling, method: Method) -> tuple[Crew, ModeRule, int, int]:
    """Pass the pool's gate; return the workers of then, the mode's rule, when the call was made and what it waited.

    This is a safe point: a live change that is due is made here, by this thread. The workers are those the group has
    once the gate is passed: a call that waited while its group was given others, or another pool, goes on with them.
    """
    runtime = owner._runtime
    within = _dispatching.gates
    waited_since_ns = 0
    while True:
        if not within and (due := runtime.due_here) is not None:
            waited_since_ns = waited_since_ns or runtime.clock.now_ns()
            due()
        crew = owner.crew_for(method.name)
        rule = rule_for(Call(f"{crew.group}.{method.name}", method.registration, crew.uneven))
        if rule.prepare is not None:
            rule.prepare(owner)
        now_ns = runtime.clock.now_ns()
        called_ns = waited_since_ns or now_ns
        if not crew.gate.is_open:
            waited_since_ns = called_ns
        # A call that a user's own dispatch function makes is a part of the one being dealt, which is past its gate.
        if crew.gate in within:
            crew.gate.join()
            return crew, rule, called_ns, 0
        if crew.gate.enter(_Wanted(owner, crew, not within)):
            if owner._crew is crew and not (crew.deaths.any_known and _restarted(owner, crew)):
                return crew, rule, called_ns, runtime.clock.now_ns() - called_ns if waited_since_ns else 0
            crew.gate.leave()


def _restarted(owner: Calling, crew: Crew) -> bool:
    """Restart the group if a worker's death and its policy ask for that; the call is past the gate meanwhile."""
    try:
        return restart_if_due(cast("RayWorkerGroup", owner), crew)
    except BaseException:
        crew.gate.leave()
        raise


class _Wanted:
    """Says to a gate whether a call still wants to pass: not when its group has gone elsewhere or a change is due."""

    __slots__ = ("_at_border", "_crew", "_owner")

    def __init__(self, owner: Calling, crew: Crew, at_border: bool) -> None:
        self._owner, self._crew, self._at_border = owner, crew, at_border

    def __call__(self) -> bool:
        if self._owner._crew is not self._crew:
            return False
        return self._owner._runtime.due_here is None or not self._at_border


class _Dispatching(threading.local):
    """The gates that calls of this thread have passed and whose arguments are being dealt, usually none."""

    gates: tuple[Gate, ...] = ()


_dispatching = _Dispatching()


def _started(crew: Crew, method: Method, called_ns: int, gate_ns: int) -> CallTracker:
    registration = method.registration
    ranks = (0,) if registration.rank_zero_only else tuple(range(crew.world_size))
    call_id = crew.runtime.next_call_id()
    bus = crew.runtime.bus
    for text in crew.behind():
        bus.emit(Notice(called_ns, "warning", f"call {call_id} {crew.group}.{method.name} waits behind {text}"))
    bus.emit(
        CallStarted(
            call_id=call_id,
            at_ns=called_ns,
            group=crew.group,
            pool=crew.pool,
            generation=crew.gate.generation,
            method=method.name,
            dispatch_mode=registration.dispatch_name,
            execute_mode=Execute.RANK_ZERO.name if registration.rank_zero_only else Execute.ALL.name,
            blocking=registration.blocking,
            gate_ns=gate_ns,
            step=crew.runtime.step,
        )
    )
    facts = CallFacts(
        call_id,
        crew.group,
        method.name,
        ranks,
        registration.blocking,
        crew.pool,
        crew.runtime.step,
        called_ns,
        limit_s(crew, registration),
    )
    tracker = CallTracker(crew.runtime, facts, crew.clocks, crew.drained, crew.deaths.hear)
    crew.unfinished[call_id] = tracker
    return tracker


def _dispatch(
    crew: Crew, owner: Any, rule: ModeRule, method: Method, arguments: Arguments, tracker: CallTracker
) -> list[tuple[int, Load]]:
    began = time.monotonic_ns()
    before = _dispatching.gates
    _dispatching.gates = (*before, crew.gate)
    try:
        dealt = rule.deal(owner, arguments)
        tracker.dealt(dealt)
        return weigh(crew, method, dealt, tracker)
    finally:
        _dispatching.gates = before
        tracker.phases.dispatch_ns = time.monotonic_ns() - began


def _joined(
    owner: Any,
    rule: ModeRule,
    method: Method,
    parts: Sequence[Any],
    receipts: Sequence[Receipt],
    loans: Loans,
    tracker: CallTracker,
) -> tuple[Any, int, int]:
    """Unpad and collect; return the result, its rows, and the bytes that came back.

    Parts that are joined lie in the cluster's store, on loan: that fills one allocation from there, and what is left
    of them is copied.
    """
    phases = tracker.phases
    bytes_in = sum(receipt.bytes_out for receipt in receipts)
    began = time.monotonic_ns()
    if tracker.sources is not None:
        parts = [parts[rank] for rank in tracker.sources]
        receipts = [receipts[rank] for rank in tracker.sources]
    if tracker.may_hold_padding:
        tracker.dealt_on_arrival(receipts)
        kept = without_padding(parts, receipts)
    else:
        kept = list(parts)
    unpadded = time.monotonic_ns()
    phases.unpad_ns = unpadded - began
    try:
        result = loans.settled(rule.collect(owner, kept[0] if method.registration.rank_zero_only else kept))
    finally:
        phases.collect_ns = time.monotonic_ns() - unpadded
    rows_out = (row_count(result) or 0) if rule.joins_rows else 0
    return result, rows_out, bytes_in


def _later(
    crew: Crew, owner: Any, rule: ModeRule, method: Method, submitted: Sequence[Submitted], tracker: CallTracker
) -> Any:
    """Return what stands for the results of a non-blocking call."""
    refs = [one.result for one in submitted]
    receipts = [one.receipt for one in submitted]
    if tracker.sources is not None:
        refs, receipts = ([some[rank] for rank in tracker.sources] for some in (refs, receipts))
    if not rule.joins_rows:
        return rule.collect(owner, refs[0] if method.registration.rank_zero_only else refs)
    return DataProtoFuture(
        collect_fn=_Join(f"{crew.group}.{method.name}"),
        futures=refs,
        receipts=receipts,
        padded=tracker.may_hold_padding,
        resolve=_Resolve(crew, owner, rule, method, tuple(submitted), tracker),
    )


@dataclass(frozen=True, slots=True)
class _Join:
    """Joins a future's parts, on the driver or in a worker."""

    what: str

    def __call__(self, parts: Sequence[Any]) -> Any:
        return join(parts, self.what)


@dataclass(eq=False)
class _Resolve:
    """Gets a future's value on the driver, and tells the record of the first time."""

    crew: Crew
    owner: Any
    rule: ModeRule
    method: Method
    submitted: tuple[Submitted, ...]
    tracker: CallTracker
    told: bool = False

    def __call__(self) -> Any:
        at_ns = self.crew.runtime.clock.now_ns()
        failure: BaseException | None = None
        try:
            with borrowing() as loans:
                landing = Landing(self.tracker.sizes_to_join, loans)
                parts, receipts = self._fetched(landing)
            if not loans.all_in(parts):
                parts, loans = self._landed(self.crew.cluster.fetch([one.result for one in self.submitted])), Loans()
            with landing:
                return _joined(self.owner, self.rule, self.method, parts, receipts, loans, self.tracker)[0]
        except BaseException as error:
            failure = _placed(self.crew, self.method.name, error)
            if failure is error:
                raise
            raise failure from None
        finally:
            if not self.told:
                self.told = True
                self.tracker.awaited(at_ns, failure)
            del failure

    def _fetched(self, landing: Landing) -> tuple[list[Any], list[Receipt]]:
        began = time.monotonic_ns()
        try:
            parts = fetch_answers(self.crew, [one.result for one in self.submitted], self.tracker, landing)
            packed = self.crew.cluster.fetch([one.receipt for one in self.submitted])
            return self._landed(parts), [Receipt.unpack(one) for one in packed]
        except Exception as error:
            refs = [one.result for one in self.submitted]
            told = undelivered_of(error, self.crew, refs, self.tracker.facts.ranks, self.method.name)
            try:
                raise told from told.__cause__
            finally:
                del told
        finally:
            self.tracker.phases.wait_ns = time.monotonic_ns() - began

    def _landed(self, parts: list[Any]) -> list[Any]:
        """Take what stayed on the workers' devices, and tell the record that the driver had it brought here."""
        runtime = self.crew.runtime
        notes: list[str] = []
        with noting(notes):
            here = list(landed(parts))
        for text in notes:
            runtime.bus.emit(Notice(runtime.clock.now_ns(), "warning", text))
        return here


def _placed(crew: Crew, method: str, error: BaseException) -> BaseException:
    """Add to an error what only the driver knows: a dead worker's rank, a rank's node, since when there are so many."""
    if isinstance(error, UnevenSplitError) and crew.since:
        return replace(error, message=f"{error.message}; {crew.since}")
    if isinstance(error, WorkerDiedError):
        return crew.deaths.explained(error, method)
    if isinstance(error, WorkerError) and not error.node and 0 <= error.rank < len(crew.nodes):
        error.node = crew.nodes[error.rank]
    return error


def called_by_name(name: str, execute_mode: OpenEnum, blocking: bool, role: str) -> Method:
    """Return a method that is called by name, registered or not, with ``execute_all``'s convention for lists."""
    registration = Registration(Dispatch.ALL_TO_ALL, execute_mode, blocking, True, None)
    return Method(name, registration, called_by_name, by_name=True, role=role)
