"""One call through a group: gate, dispatch, execute, wait, collect, unpad."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from core.cluster import ActorHandle, Cluster, Outcome, Ref, Submitted
from core.data.batch import payload_bytes
from core.data.future import DataProtoFuture, without_padding
from core.data.rows import join, row_count
from core.data.shares import Receipt, Uneven
from core.dispatch import Arguments, Call, Deal, Dispatch, Execute, ModeRule, RankArguments, Registration, rule_for
from core.dispatch.modes import OpenEnum
from core.errors import WorkerDiedError, WorkerError
from core.events import CallStarted, Notice
from core.group.bind import Method
from core.group.clock import ClockAlignment
from core.group.track import CallFacts, CallTracker
from core.pool import Gate
from core.runtime import Runtime
from core.worker import Header, plain_answer_name

_PUT_ONCE_BYTES = 64 * 1024
"""From this size on an argument of several ranks is stored once and passed by reference."""


@dataclass(frozen=True)
class Crew:
    """The workers a call runs on, in rank order, and what stands around them."""

    runtime: Runtime
    group: str
    pool: str
    generation: int
    gate: Gate
    actors: tuple[ActorHandle, ...]
    names: tuple[str, ...]
    nodes: tuple[str, ...]
    clocks: tuple[ClockAlignment, ...]
    uneven: Uneven | None
    drained: Callable[[CallTracker], None]
    behind: Callable[[], Sequence[str]]
    unfinished: dict[int, CallTracker]
    dead: set[int] = field(default_factory=set)

    @property
    def cluster(self) -> Cluster:
        """Return the cluster the workers are on."""
        return self.runtime.cluster

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.actors)


def perform(crew: Crew, owner: Any, method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make one call and return what its mode returns.

    ``owner`` is the worker group that functions of a user's mode are handed.

    Raises:
        UsageError: The arguments cannot be dealt; no rank was asked.
        WorkerError: A rank failed; the first one that did ends the call.
        PoolClosedError: The pool is closed.
    """
    what = f"{crew.group}.{method.name}"
    rule = rule_for(Call(what, method.registration, crew.uneven))
    if rule.prepare is not None:
        rule.prepare(owner)
    called_ns = crew.runtime.clock.now_ns()
    gate_ns = crew.gate.enter()
    tracker = _started(crew, method, called_ns, gate_ns)
    try:
        loads = _dispatch(crew, owner, rule, Arguments(args, kwargs), tracker)
        trims = ("rows" if rule.joins_rows else "batches") if rule.rows else ""
        if not method.registration.blocking:
            return _later(crew, owner, rule, method, _submit_all(crew, method, loads, trims, tracker), tracker)
        parts, receipts = _wait(crew, _ask_all(crew, method, loads, trims, tracker), tracker)
        result, rows_out, bytes_in = _joined(owner, rule, method, parts, receipts, tracker)
    except BaseException as error:
        told = _placed(crew, method.name, error)
        # First the failure, then that no more ranks are asked: a call that asked none would else end as "ok".
        tracker.failed(told)
        tracker.sealed()
        if told is error:
            raise
        raise told from None
    tracker.finished(rows_out, bytes_in)
    return result


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
            generation=crew.generation,
            method=method.name,
            dispatch_mode=registration.dispatch_name,
            execute_mode=Execute.RANK_ZERO.name if registration.rank_zero_only else Execute.ALL.name,
            blocking=registration.blocking,
            gate_ns=gate_ns,
            step=crew.runtime.step,
        )
    )
    facts = CallFacts(call_id, crew.group, method.name, ranks, registration.blocking)
    tracker = CallTracker(crew.runtime, facts, crew.clocks, crew.drained, crew.dead)
    crew.unfinished[call_id] = tracker
    return tracker


def _dispatch(
    crew: Crew, owner: Any, rule: ModeRule, arguments: Arguments, tracker: CallTracker
) -> list[tuple[int, _Load]]:
    began = time.monotonic_ns()
    try:
        dealt = rule.deal(owner, arguments)
        tracker.dealt(dealt)
        return _loads(crew, dealt, tracker)
    finally:
        tracker.phases.dispatch_ns = time.monotonic_ns() - began


@dataclass(frozen=True, slots=True)
class _Load:
    """What one rank is sent, and the bytes of it."""

    arguments: RankArguments
    n_bytes: int


def _loads(crew: Crew, dealt: Deal, tracker: CallTracker) -> list[tuple[int, _Load]]:
    """Weigh what each rank gets; store once what several ranks get, so that it is serialised once."""
    ranks = tracker.facts.ranks
    n_sharing = Counter(id(dealt.ranks[rank]) for rank in ranks)
    loads: dict[int, _Load] = {}
    for rank in ranks:
        given = dealt.ranks[rank]
        if id(given) not in loads:
            loads[id(given)], n_bytes_out = _load(crew.cluster, given, n_sharing[id(given)])
            tracker.bytes_out += n_bytes_out
    return [(rank, loads[id(dealt.ranks[rank])]) for rank in ranks]


def _load(cluster: Cluster, given: RankArguments, n_ranks: int) -> tuple[_Load, int]:
    """Return what each of ``n_ranks`` ranks is sent, and how many bytes leave the driver for them all."""
    n_bytes = _weight(given)
    if n_ranks == 1 or n_bytes < _PUT_ONCE_BYTES:
        return _Load(given, n_bytes), n_bytes * n_ranks
    stored, n_stored = _stored(cluster, given)
    return _Load(stored, n_bytes), n_bytes * n_ranks - n_stored * (n_ranks - 1)


def _weight(given: RankArguments) -> int:
    return payload_bytes(given.args) + payload_bytes(given.kwargs)


def _stored(cluster: Cluster, given: RankArguments) -> tuple[RankArguments, int]:
    """Put the large ones of the arguments into the cluster's store; return what goes out instead, and their bytes."""
    n_stored = 0

    def stored(value: Any) -> Any:
        nonlocal n_stored
        size = payload_bytes(value)
        if size < _PUT_ONCE_BYTES:
            return value
        n_stored += size
        return cluster.put(value)

    args = tuple(stored(value) for value in given.args)
    return RankArguments(args, {name: stored(value) for name, value in given.kwargs.items()}, given.share), n_stored


def _submit_all(
    crew: Crew, method: Method, loads: Sequence[tuple[int, _Load]], trims: str, tracker: CallTracker
) -> list[Submitted]:
    """Ask the ranks of a non-blocking call: results stay on the cluster, receipts come when they are ready."""
    submitted: list[Submitted] = []
    with _executing(tracker):
        for rank, load in loads:
            _note(rank, load, tracker)
            with _asking(rank, tracker):
                one = crew.cluster.submit(
                    crew.actors[rank],
                    "_podium_run",
                    (_header(method, load, trims).pack(), *load.arguments.args),
                    load.arguments.kwargs,
                )
            crew.cluster.on_ready(one.receipt, _Answer(tracker, rank))
            submitted.append(one)
    return submitted


def _ask_all(
    crew: Crew, method: Method, loads: Sequence[tuple[int, _Load]], trims: str, tracker: CallTracker
) -> list[Ref]:
    """Ask the ranks of a blocking call: result and receipt come as one object."""
    refs: list[Ref] = []
    try:
        with _executing(tracker):
            for rank, load in loads:
                _note(rank, load, tracker)
                given = load.arguments
                plain = given.share is None and not trims and not method.by_name
                entry = plain_answer_name(method.remote_name) if plain else "_podium_answer"
                args = given.args if plain else (_header(method, load, trims).pack(), *given.args)
                with _asking(rank, tracker):
                    refs.append(crew.cluster.ask(crew.actors[rank], entry, args, given.kwargs))
    except BaseException:
        _follow(crew, refs, range(len(refs)), tracker)
        raise
    return refs


@contextmanager
def _executing(tracker: CallTracker) -> Iterator[None]:
    began = time.monotonic_ns()
    try:
        yield
        tracker.sealed()
    finally:
        tracker.phases.execute_ns = time.monotonic_ns() - began


@contextmanager
def _asking(rank: int, tracker: CallTracker) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        tracker.answered(rank, Outcome(error=error))
        raise


def _note(rank: int, load: _Load, tracker: CallTracker) -> None:
    share = load.arguments.share
    tracker.submitted(rank, 0 if share is None else share.size, load.n_bytes)


def _header(method: Method, load: _Load, trims: str) -> Header:
    share = load.arguments.share
    return Header(
        method.remote_name,
        -1 if share is None else share.n_real,
        0 if share is None else share.n_padding,
        method.registration.materialize_futures,
        trims,
    )


class _Answer:
    """Passes a rank's receipt on to the call's tracker; ``joined`` when it comes behind the result in one object."""

    __slots__ = ("_joined", "_rank", "_tracker")

    def __init__(self, tracker: CallTracker, rank: int, joined: bool = False) -> None:
        self._tracker = tracker
        self._rank = rank
        self._joined = joined

    def __call__(self, outcome: Outcome) -> None:
        if self._joined and outcome.error is None:
            outcome = Outcome(outcome.value[1])
        self._tracker.answered(self._rank, outcome)


def _follow(crew: Crew, refs: Sequence[Ref], places: Iterable[int], tracker: CallTracker) -> None:
    """Let ranks that are still out tell of themselves later: the driver has its error and goes on."""
    for place in places:
        crew.cluster.on_ready(refs[place], _Answer(tracker, tracker.facts.ranks[place], joined=True))


def _wait(crew: Crew, refs: Sequence[Ref], tracker: CallTracker) -> tuple[list[Any], list[Receipt]]:
    """Take each rank's answer when it is there; the first failure ends the wait."""
    began = time.monotonic_ns()
    answers: dict[int, Any] = {}
    taken: set[int] = set()
    try:
        for ready in crew.cluster.as_ready(refs):
            ready_ns = crew.runtime.clock.now_ns()
            for place, outcome in zip(ready, _outcomes(crew, [refs[place] for place in ready]), strict=True):
                taken.add(place)
                rank = tracker.facts.ranks[place]
                if outcome.error is not None:
                    tracker.answered(rank, outcome, ready_ns)
                    raise outcome.error from outcome.error.__cause__
                answers[place], packed = outcome.value
                tracker.answered(rank, Outcome(packed), ready_ns)
    except BaseException:
        _follow(crew, refs, [place for place in range(len(refs)) if place not in taken], tracker)
        raise
    finally:
        tracker.phases.wait_ns = time.monotonic_ns() - began
    return [answers[place] for place in range(len(refs))], tracker.receipts


def _outcomes(crew: Crew, refs: Sequence[Ref]) -> list[Outcome]:
    """Fetch what is ready: all in one go, or one by one when an error is among them."""
    try:
        return [Outcome(value) for value in crew.cluster.fetch(refs)]
    except Exception as error:
        if len(refs) == 1:
            return [Outcome(error=error)]
    return [outcome for ref in refs for outcome in _outcomes(crew, [ref])]


def _joined(
    owner: Any,
    rule: ModeRule,
    method: Method,
    parts: Sequence[Any],
    receipts: Sequence[Receipt],
    tracker: CallTracker,
) -> tuple[Any, int, int]:
    """Unpad and collect; return the result, its rows, and the bytes that came back."""
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
        result = rule.collect(owner, kept[0] if method.registration.rank_zero_only else kept)
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
            parts, receipts = self._fetched()
            return _joined(self.owner, self.rule, self.method, parts, receipts, self.tracker)[0]
        except BaseException as error:
            failure = _placed(self.crew, self.method.name, error)
            if failure is error:
                raise
            raise failure from None
        finally:
            if not self.told:
                self.told = True
                self.tracker.awaited(at_ns, failure)

    def _fetched(self) -> tuple[list[Any], list[Receipt]]:
        began = time.monotonic_ns()
        try:
            parts = self.crew.cluster.fetch([one.result for one in self.submitted])
            packed = self.crew.cluster.fetch([one.receipt for one in self.submitted])
            return parts, [Receipt.unpack(one) for one in packed]
        finally:
            self.tracker.phases.wait_ns = time.monotonic_ns() - began


def _placed(crew: Crew, method: str, error: BaseException) -> BaseException:
    """Add to a worker's error what only the driver knows: the rank of a dead worker, the node of a rank."""
    if isinstance(error, WorkerDiedError) and error.rank < 0 and error.worker in crew.names:
        rank = crew.names.index(error.worker)
        return WorkerDiedError(
            f"rank {rank} of {crew.group} (worker {error.worker}, pid {error.pid}, node {crew.nodes[rank]}) died in "
            f"{method}: {error.message}",
            group=crew.group,
            rank=rank,
            node=crew.nodes[rank],
            method=method,
            worker=error.worker,
            pid=error.pid,
        )
    if isinstance(error, WorkerError) and not error.node and 0 <= error.rank < len(crew.nodes):
        error.node = crew.nodes[error.rank]
    return error


def called_by_name(name: str, execute_mode: OpenEnum, blocking: bool, role: str) -> Method:
    """Return a method that is called by name, registered or not, with ``execute_all``'s convention for lists."""
    registration = Registration(Dispatch.ALL_TO_ALL, execute_mode, blocking, True, None)
    return Method(name, registration, called_by_name, by_name=True, role=role)
