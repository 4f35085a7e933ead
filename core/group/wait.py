"""Taking the answers of the ranks that were asked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from core.cluster import Outcome, Ref
from core.cluster.deadline import block_timeout_s
from core.cluster.ray_errors import Unread
from core.data.join_buffer import JoinBuffer
from core.data.rows import row_count
from core.data.shares import Receipt
from core.errors import PodiumError, WorkerDiedError, WorkerMethodError, raise_detached
from core.events import Notice
from core.group.call_tracker import CallTracker
from core.group.deadline import ready_in_time
from core.group.live_workers import LiveWorkers
from core.health.in_flight import states_of, words_for


class Answer:
    """Passes a rank's receipt on to the call's tracker; ``joined`` when it comes behind the result in one object."""

    __slots__ = ("_joined", "_rank", "_tracker")

    def __init__(self, tracker: CallTracker, rank: int, joined: bool = False) -> None:
        self._tracker = tracker
        self._rank = rank
        self._joined = joined

    def __call__(self, outcome: Outcome) -> None:
        if self._joined and outcome.error is None:
            outcome = Outcome(_opened(outcome.value)[1])
        if isinstance(outcome.error, Unread):
            facts = self._tracker.facts
            outcome = Outcome(error=undelivered(outcome.error, facts.group, facts.method, self._rank))
        self._tracker.answered(self._rank, outcome)


def _opened(answer: Any) -> tuple[Any, bytes]:
    """Return an answer's result and receipt; the receipt alone is an answer without a result."""
    return (None, answer) if type(answer) is bytes else (answer[0], answer[1])


def follow(live: LiveWorkers, refs: Sequence[Ref], indices: Iterable[int], tracker: CallTracker) -> None:
    """Let ranks that are still pending report later: the driver has its error and goes on."""
    for index in indices:
        live.cluster.on_ready(refs[index], Answer(tracker, tracker.facts.ranks[index], joined=True))


def wait_for_answers(
    live: LiveWorkers, refs: Sequence[Ref], tracker: CallTracker, join_buffer: JoinBuffer
) -> tuple[list[Any], list[Receipt]]:
    """Take each rank's answer when it is there; the first failure, or the call's deadline, ends the wait.

    Results that arrive while other ranks are pending are copied into the join buffer meanwhile.
    """
    began = time.monotonic_ns()
    answers: dict[int, Any] = {}
    taken: set[int] = set()
    try:
        at_once = live.cluster.fetch_quick(refs, tracker.facts.timeout_s)
        if at_once is not None:
            opened = [_opened(answer) for answer in at_once]
            return [result for result, _ in opened], tracker.all_answered([packed for _, packed in opened])
        for ready in ready_in_time(live, refs, tracker, tracker.facts.timeout_s):
            if not ready:
                _raise_for_dead(live, tracker, taken)
            ready_ns = live.runtime.clock.now_ns()
            outcomes = deque(_outcomes(live, [refs[index] for index in ready]))
            for index in ready:
                taken.add(index)
                rank = tracker.facts.ranks[index]
                if outcomes[0].error is not None:
                    raise_detached(_failed_on(live, tracker, rank, outcomes.popleft(), ready_ns))
                answers[index], packed = _opened(outcomes.popleft().value)
                tracker.answered(rank, Outcome(packed), ready_ns)
            for index in ready:
                answers[index] = _joined(join_buffer, tracker, index, answers[index])
    except BaseException:
        follow(live, refs, [index for index in range(len(refs)) if index not in taken], tracker)
        raise
    finally:
        tracker.phases.wait_ns = time.monotonic_ns() - began
    return [answers[index] for index in range(len(refs))], tracker.receipts


def _failed_on(live: LiveWorkers, tracker: CallTracker, rank: int, outcome: Outcome, ready_ns: int) -> BaseException:
    """Record that a rank failed, and what the others were doing; return the error that ends the wait."""
    failure = undelivered(outcome.error or RuntimeError("no error"), live.group, tracker.facts.method, rank)
    tracker.answered(rank, Outcome(error=failure), ready_ns)
    _record_others(live, rank, failure, tracker)
    return failure


def _raise_for_dead(live: LiveWorkers, tracker: CallTracker, taken: set[int]) -> None:
    """Raise for a rank that is known to have died, and that the cluster has not answered for."""
    ranks = tracker.facts.ranks
    case = live.deaths.overdue([rank for index, rank in enumerate(ranks) if index not in taken])
    if case is not None:
        rank = case.victim.rank
        taken.add(ranks.index(rank))
        tracker.answered(rank, Outcome(error=case.copy_of_error()), live.runtime.clock.now_ns())
        raise_detached(case.copy_of_error())


def fetch_answers(live: LiveWorkers, refs: Sequence[Ref], tracker: CallTracker, join_buffer: JoinBuffer) -> list[Any]:
    """Return the results of a non-blocking call, within the deadline of the block around the ``get``, or its own.

    Raises:
        CallTimeoutError: They were not there in time.
        WorkerDiedError: A rank is known to have died before it answered.
    """
    block_s = block_timeout_s()
    timeout_s = tracker.facts.timeout_s if block_s is None else block_s or None
    answers: dict[int, Any] = {}
    for ready in ready_in_time(live, refs, tracker, timeout_s):
        if not ready and (case := live.deaths.overdue(tracker.out)) is not None:
            raise_detached(case.copy_of_error())
        for index, result in zip(ready, live.cluster.fetch([refs[index] for index in ready]), strict=True):
            answers[index] = _joined(join_buffer, tracker, index, result)
    return [answers[index] for index in range(len(refs))]


def _joined(join_buffer: JoinBuffer, tracker: CallTracker, index: int, result: Any) -> Any:
    """Copy a result's rows into the join buffer, if the call joins rows and they fit."""
    sources = tracker.sources or range(len(tracker.facts.ranks))
    if not join_buffer.is_on or index not in sources:
        return result
    return join_buffer.add_part(sources.index(index), result, row_count(result))


def fetch_again(live: LiveWorkers, refs: Sequence[Ref]) -> list[Any]:
    """Return the results of answers that were taken before, as other objects."""
    return [_opened(answer)[0] for answer in live.cluster.fetch(refs)]


def _record_others(live: LiveWorkers, rank: int, error: BaseException, tracker: CallTracker) -> None:
    """Record what the pending ranks were doing when one failed; the report of a death has that already."""
    if not tracker.out or isinstance(error, WorkerDiedError):
        return
    facts = tracker.facts
    states = states_of(live.runtime, facts.group, live.world_size, live.deaths.dead)
    others = words_for([state for state in states if state.rank != rank and state.rank in facts.ranks])
    text = f"call {facts.call_id} {facts.group}.{facts.method} failed on rank {rank}; at that moment: {others}"
    live.runtime.bus.emit(Notice(live.runtime.clock.now_ns(), "warning", text))


def undelivered(error: BaseException, group: str, method: str, rank: int = -1) -> BaseException:
    """Say whose answer it was that could not be brought here; what already says so passes as it is."""
    if isinstance(error, PodiumError) or not isinstance(error, Exception):
        return error
    who = f"rank {rank}" if rank >= 0 else "a rank"
    if isinstance(error, Unread):
        return error.as_method_error(f"{group}.{method}", who, group=group, rank=rank, method=method)
    cause = error.__cause__ or error
    return WorkerMethodError(
        f"the result of {group}.{method} on {who} could not be sent to the driver: {type(cause).__name__}: {cause}",
        group=group,
        rank=rank,
        method=method,
        cause_type=type(cause).__name__,
        cause=cause,
    )


def undelivered_of(
    error: BaseException, live: LiveWorkers, refs: Sequence[Ref], ranks: Sequence[int], method: str
) -> BaseException:
    """Return ``undelivered`` for the results of a non-blocking call, with the rank whose it is."""
    if isinstance(error, PodiumError) or not isinstance(error, Exception):
        return error
    ready, _ = live.cluster.wait(refs, len(refs), 0.0)
    there = set(ready)
    for rank, ref in zip(ranks, refs, strict=False):
        if ref in there and (failed := _outcomes(live, [ref])[0].error) is not None:
            return undelivered(failed, live.group, method, rank)
    return undelivered(error, live.group, method)


def _outcomes(live: LiveWorkers, refs: Sequence[Ref]) -> list[Outcome]:
    """Fetch what is ready: all at once, or one by one if there is an error among them."""
    try:
        return [Outcome(value) for value in live.cluster.fetch(refs)]
    except Exception as error:
        if len(refs) == 1:
            return [Outcome(error=error)]
    return [outcome for ref in refs for outcome in _outcomes(live, [ref])]
