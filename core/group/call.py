"""One call through a group: gate, dispatch, execute, wait, collect, unpad."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from core.cluster import Submitted
from core.data.direct import noting, with_tensors
from core.data.future import DataProtoFuture, without_padding
from core.data.join_buffer import JoinBuffer
from core.data.rows import join, row_count
from core.data.shares import Receipt
from core.data.zero_copy import BorrowedBuffers, borrowing
from core.dispatch import Arguments, CallOptions, Dispatch, Execute, ModeRule, Registration, rule_for
from core.dispatch.modes import OpenEnum
from core.errors import UnevenSplitError, WorkerDiedError, WorkerError, raise_detached
from core.events import CallStarted, Notice
from core.group.bind import Method
from core.group.call_tracker import CallTracker
from core.group.deadline import limit_s
from core.group.execute import Load, execute, submit, weigh
from core.group.group_state import GroupState
from core.group.live_workers import LiveWorkers
from core.group.wait import fetch_again, fetch_answers, undelivered_of, wait_for_answers
from core.pool import Gate
from core.runtime import CallFacts


class _Route(NamedTuple):
    """A call past its gate: the group as functions of a user's mode see it, the mode's rule, and the workers."""

    group: Any
    live: LiveWorkers
    rule: ModeRule
    options: CallOptions
    method: Method


class _Received(NamedTuple):
    """A call's result, its rows, and the bytes that came back."""

    result: Any
    rows_out: int
    bytes_in: int


def perform(state: GroupState, group: Any, method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make one call and return what its mode returns; ``group`` is what functions of a user's mode are handed.

    Raises:
        UsageError: The arguments cannot be split; no rank was asked.
        WorkerError: A rank failed; the first one that did ends the call.
        PoolClosedError: The pool is closed.
    """
    route, called_ns, gate_ns = _pass_gate(state, group, method)
    live = route.live
    tracker = _start(live, method, called_ns, gate_ns)
    try:
        live.deaths.refuse(tracker.facts.ranks, method.name)
        loads = _dispatch(route, Arguments(args, kwargs), tracker)
        trims = ("rows" if route.rule.joins_rows else "batches") if route.rule.rows else ""
        if not method.registration.blocking:
            return _pending_result(route, submit(live, method, loads, trims, tracker), tracker)
        refs = execute(live, method, loads, trims, tracker)
        received = _receive(
            route,
            tracker,
            lambda join_buffer: wait_for_answers(live, refs, tracker, join_buffer),
            lambda: fetch_again(live, refs),
        )
    except BaseException as error:
        raise_detached(_failed(live, tracker, error))
    tracker.finished(received.rows_out, received.bytes_in)
    return received.result


def _failed(live: LiveWorkers, tracker: CallTracker, error: BaseException) -> BaseException:
    """Record that a call failed; return the error that the driver gets."""
    completed = _completed(live, tracker.facts, error)
    # First the failure, then that no more ranks are asked: a call that asked none would else end as "ok".
    tracker.failed(completed)
    tracker.sealed()
    return completed


def _pass_gate(state: GroupState, group: Any, method: Method) -> tuple[_Route, int, int]:
    """Pass the pool's gate; return the route, when the call was made and how long it waited, in ns.

    This is a safe point: what waits for one is done here, by this thread. The workers are those the group has once the
    gate is passed: a call that waited while its group was given others, or another pool, goes on with them.
    """
    runtime = state.runtime
    safe_point = runtime.safe_point
    within = _dispatching.gates
    waited_since_ns = 0
    while True:
        if not within and safe_point.is_due:
            waited_since_ns = waited_since_ns or runtime.clock.now_ns()
            safe_point.run()
        live = state.workers_for(method.name)
        registration = method.registration
        options = CallOptions(
            f"{live.group}.{method.name}", registration.uneven or live.uneven, registration.rank_zero_only
        )
        rule = rule_for(registration.dispatch_mode, options)
        if rule.prepare is not None:
            rule.prepare(group)
        now_ns = runtime.clock.now_ns()
        called_ns = waited_since_ns or now_ns
        if not live.gate.is_open:
            waited_since_ns = called_ns
        # A call that a user's own dispatch function makes is a part of the one being dispatched, past its gate already.
        if live.gate in within:
            live.gate.join()
            return _Route(group, live, rule, options, method), called_ns, 0
        if live.gate.enter(_StillWanted(state, live, not within)):
            try:
                # In this order: workers are replaced before the action that did it is withdrawn.
                has_changed = safe_point.run_for(state.name) or state.live is not live
            except BaseException:
                live.gate.leave()
                raise
            if not has_changed:
                gate_ns = runtime.clock.now_ns() - called_ns if waited_since_ns else 0
                return _Route(group, live, rule, options, method), called_ns, gate_ns
            live.gate.leave()


class _StillWanted:
    """Whether a call still wants to pass a gate: not when its group has gone elsewhere or a safe point is due."""

    __slots__ = ("_at_border", "_live", "_state")

    def __init__(self, state: GroupState, live: LiveWorkers, at_border: bool) -> None:
        self._state, self._live, self._at_border = state, live, at_border

    def __call__(self) -> bool:
        if self._state.live is not self._live:
            return False
        return not (self._at_border and self._state.runtime.safe_point.is_due)


class _Dispatching(threading.local):
    """The gates that calls of this thread have passed and whose arguments are being dispatched, usually none."""

    gates: tuple[Gate, ...] = ()


_dispatching = _Dispatching()


def _start(live: LiveWorkers, method: Method, called_ns: int, gate_ns: int) -> CallTracker:
    registration = method.registration
    ranks = (0,) if registration.rank_zero_only else tuple(range(live.world_size))
    call_id = live.runtime.next_call_id()
    bus = live.runtime.bus
    for text in live.pending.blockers():
        bus.emit(Notice(called_ns, "warning", f"call {call_id} {live.group}.{method.name} waits behind {text}"))
    bus.emit(
        CallStarted(
            call_id=call_id,
            at_ns=called_ns,
            group=live.group,
            pool=live.pool,
            generation=live.gate.generation,
            method=method.name,
            dispatch_mode=registration.dispatch_name,
            execute_mode=Execute.RANK_ZERO.name if registration.rank_zero_only else Execute.ALL.name,
            blocking=registration.blocking,
            gate_ns=gate_ns,
            step=live.runtime.step,
            ranks=ranks,
        )
    )
    facts = CallFacts(
        call_id,
        live.group,
        method.name,
        ranks,
        registration.blocking,
        live.pool,
        live.runtime.step,
        called_ns,
        limit_s(live, registration),
    )
    tracker = CallTracker(live.runtime, facts, live.workers.clocks, live.drained, live.deaths.hear)
    live.pending.add(tracker)
    return tracker


def _dispatch(route: _Route, arguments: Arguments, tracker: CallTracker) -> list[tuple[int, Load]]:
    began = time.monotonic_ns()
    before = _dispatching.gates
    _dispatching.gates = (*before, route.live.gate)
    try:
        dispatched = route.rule.split(route.group, arguments, route.options)
        tracker.dispatched(dispatched)
        return weigh(route.live, route.method, dispatched, tracker)
    finally:
        _dispatching.gates = before
        tracker.phases.dispatch_ns = time.monotonic_ns() - began


def _receive(
    route: _Route,
    tracker: CallTracker,
    fetch: Callable[[JoinBuffer], tuple[list[Any], list[Receipt]]],
    fetch_once_more: Callable[[], list[Any]],
) -> _Received:
    """Fetch the ranks' results and make one result of them: the way back of every call whose result the driver wants.

    ``fetch`` is called once; ``fetch_once_more`` returns the results as other objects, for those of which parts were
    borrowed from the cluster's store and cannot be found again.
    """
    joins_rows = route.rule.joins_rows
    with borrowing(joins_rows) as borrowed:
        join_buffer = JoinBuffer(tracker.sizes_to_join if joins_rows else (), borrowed)
        parts, receipts = fetch(join_buffer)
    if not borrowed.all_within(parts):
        parts, borrowed = fetch_once_more(), BorrowedBuffers()
    with join_buffer:
        return _joined(route, tracker, parts, receipts, borrowed)


def _joined(
    route: _Route, tracker: CallTracker, parts: Sequence[Any], receipts: Sequence[Receipt], borrowed: BorrowedBuffers
) -> _Received:
    """Unpad and collect.

    Parts that are joined are borrowed from the cluster's store: the join copies them into one allocation, and whatever
    else is borrowed is copied afterwards.
    """
    phases, rule = tracker.phases, route.rule
    bytes_in = sum(receipt.bytes_out for receipt in receipts)
    began = time.monotonic_ns()
    if tracker.sources is not None:
        parts = [parts[rank] for rank in tracker.sources]
        receipts = [receipts[rank] for rank in tracker.sources]
    if tracker.may_hold_padding:
        tracker.learn_sizes(receipts)
        kept = without_padding(parts, receipts)
    else:
        kept = list(parts)
    unpadded = time.monotonic_ns()
    phases.unpad_ns = unpadded - began
    try:
        collected = rule.collected(route.group, kept[0] if route.options.rank_zero_only else kept, route.options.method)
        result = borrowed.owned(collected)
    finally:
        phases.collect_ns = time.monotonic_ns() - unpadded
    rows_out = (row_count(result) or 0) if rule.joins_rows else 0
    return _Received(result, rows_out, bytes_in)


def _pending_result(route: _Route, submitted: Sequence[Submitted], tracker: CallTracker) -> Any:
    """Return what stands for the results of a non-blocking call."""
    refs = [one.result for one in submitted]
    receipts = [one.receipt for one in submitted]
    if tracker.sources is not None:
        refs, receipts = ([some[rank] for rank in tracker.sources] for some in (refs, receipts))
    if not route.rule.joins_rows:
        results = refs[0] if route.options.rank_zero_only else refs
        return route.rule.collected(route.group, results, route.options.method)
    return DataProtoFuture(
        collect_fn=_Join(route.options.method),
        futures=refs,
        receipts=receipts,
        padded=tracker.may_hold_padding,
        resolve=_Resolve(route, tuple(submitted), tracker),
    )


@dataclass(frozen=True, slots=True)
class _Join:
    """Joins a future's parts, on the driver or in a worker."""

    what: str

    def __call__(self, parts: Sequence[Any]) -> Any:
        return join(parts, self.what)


@dataclass(eq=False)
class _Resolve:
    """Gets a future's value on the driver, and records the first time."""

    route: _Route
    submitted: tuple[Submitted, ...]
    tracker: CallTracker
    was_recorded: bool = False

    def __call__(self) -> Any:
        at_ns = self.route.live.runtime.clock.now_ns()
        try:
            received = _receive(self.route, self.tracker, self._fetch, self._fetch_again)
        except BaseException as error:
            raise_detached(self._failed(at_ns, error))
        self._record(at_ns, None)
        return received.result

    def _failed(self, at_ns: int, error: BaseException) -> BaseException:
        completed = _completed(self.route.live, self.tracker.facts, error)
        self._record(at_ns, completed)
        return completed

    def _record(self, at_ns: int, error: BaseException | None) -> None:
        if not self.was_recorded:
            self.was_recorded = True
            self.tracker.awaited(at_ns, error)

    def _fetch(self, join_buffer: JoinBuffer) -> tuple[list[Any], list[Receipt]]:
        live = self.route.live
        began = time.monotonic_ns()
        try:
            parts = fetch_answers(live, [one.result for one in self.submitted], self.tracker, join_buffer)
            packed = live.cluster.fetch([one.receipt for one in self.submitted])
            return self._brought_here(parts), [Receipt.unpack(one) for one in packed]
        except Exception as error:
            raise_detached(self._undelivered(error))
        finally:
            self.tracker.phases.wait_ns = time.monotonic_ns() - began

    def _fetch_again(self) -> list[Any]:
        return self._brought_here(self.route.live.cluster.fetch([one.result for one in self.submitted]))

    def _undelivered(self, error: Exception) -> BaseException:
        """Return the error that says whose result could not be had."""
        refs = [one.result for one in self.submitted]
        return undelivered_of(error, self.route.live, refs, self.tracker.facts.ranks, self.route.method.name)

    def _brought_here(self, parts: list[Any]) -> list[Any]:
        """Take what stayed on the workers' devices, and record that the driver had it brought here."""
        runtime = self.route.live.runtime
        notes: list[str] = []
        with noting(notes):
            here = list(with_tensors(parts))
        for text in notes:
            runtime.bus.emit(Notice(runtime.clock.now_ns(), "warning", text))
        return here


def _completed(live: LiveWorkers, facts: CallFacts, error: BaseException) -> BaseException:
    """Add to an error what only the driver knows: a dead worker's rank, a rank's node, since when there are so many."""
    if isinstance(error, UnevenSplitError) and live.since:
        return replace(error, message=f"{error.message}; {live.since}")
    if isinstance(error, WorkerDiedError):
        so_far_s = (live.runtime.clock.now_ns() - facts.at_ns) / 1e9
        return live.deaths.explained(
            error, facts.method, math.inf if facts.timeout_s is None else facts.timeout_s - so_far_s
        )
    if isinstance(error, WorkerError) and not error.node and 0 <= error.rank < live.world_size:
        error.node = live.workers.node(error.rank)
    return error


def called_by_name(name: str, execute_mode: OpenEnum, blocking: bool, role: str) -> Method:
    """Return a method that is called by name, registered or not, with ``execute_all``'s convention for lists."""
    registration = Registration(Dispatch.ALL_TO_ALL, execute_mode, blocking, True, None)
    return Method(name, registration, called_by_name, by_name=True, role=role)
