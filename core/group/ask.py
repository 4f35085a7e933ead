"""Asking the ranks of a call: weigh what each gets, store once what several get, submit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from core.cluster import Cluster, Outcome, Ref, Submitted
from core.data.batch import payload_bytes
from core.dispatch import Arguments, Deal, RankArguments
from core.errors import PodiumError, ShareError
from core.group.answers import Answer, follow
from core.group.bind import Method
from core.group.crew import Crew
from core.group.track import CallTracker
from core.worker import Header, plain_answer_name

_PUT_ONCE_BYTES = 64 * 1024
"""From this size on an argument of several ranks is stored once and passed by reference."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank is sent, and the bytes of it."""

    arguments: RankArguments
    n_bytes: int


def weigh(crew: Crew, dealt: Deal, tracker: CallTracker) -> list[tuple[int, Load]]:
    """Weigh what each rank gets; store once what several ranks get, so that it is serialised once."""
    ranks = tracker.facts.ranks
    n_sharing = Counter(id(dealt.ranks[rank]) for rank in ranks)
    loads: dict[int, Load] = {}
    for rank in ranks:
        given = dealt.ranks[rank]
        if id(given) not in loads:
            loads[id(given)], n_bytes_out = _load(crew.cluster, given, n_sharing[id(given)])
            tracker.bytes_out += n_bytes_out
    return [(rank, loads[id(dealt.ranks[rank])]) for rank in ranks]


def _load(cluster: Cluster, given: RankArguments, n_ranks: int) -> tuple[Load, int]:
    """Return what each of ``n_ranks`` ranks is sent, and how many bytes leave the driver for them all."""
    n_bytes = _weight(given)
    if n_ranks == 1 or n_bytes < _PUT_ONCE_BYTES:
        return Load(given, n_bytes), n_bytes * n_ranks
    stored, n_stored = _stored(cluster, given)
    return Load(stored, n_bytes), n_bytes * n_ranks - n_stored * (n_ranks - 1)


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


def submit_all(
    crew: Crew, method: Method, loads: Sequence[tuple[int, Load]], trims: str, tracker: CallTracker
) -> list[Submitted]:
    """Ask the ranks of a non-blocking call: results stay on the cluster, receipts come when they are ready."""
    submitted: list[Submitted] = []
    with _executing(tracker):
        for rank, load in loads:
            _note(rank, load, tracker)
            with _asking(rank, load.arguments, tracker):
                one = crew.cluster.submit(
                    crew.actors[rank],
                    "_podium_run",
                    (_header(method, load, trims).pack(), *load.arguments.args),
                    load.arguments.kwargs,
                )
            crew.cluster.on_ready(one.receipt, Answer(tracker, rank))
            submitted.append(one)
    return submitted


def ask_all(
    crew: Crew, method: Method, loads: Sequence[tuple[int, Load]], trims: str, tracker: CallTracker
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
                with _asking(rank, given, tracker):
                    refs.append(crew.cluster.ask(crew.actors[rank], entry, args, given.kwargs))
    except BaseException:
        follow(crew, refs, range(len(refs)), tracker)
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
def _asking(rank: int, given: RankArguments, tracker: CallTracker) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        unsendable = (
            None
            if isinstance(error, PodiumError)
            else _unsendable(given, f"{tracker.facts.group}.{tracker.facts.method}")
        )
        tracker.answered(rank, Outcome(error=unsendable or error))
        if unsendable is not None:
            # The cluster's own text is a page long and names no argument.
            raise unsendable from None
        raise


def _unsendable(given: RankArguments, method: str) -> ShareError | None:
    """Return an error that names the first argument that cannot be pickled, None if all can."""
    for name, value in Arguments(given.args, given.kwargs).named():
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            return ShareError(
                f"argument {name} of {method} is a {type(value).__name__} that cannot be sent to the workers: "
                f"{type(error).__name__}: {error}",
                argument=name,
            )
    return None


def _note(rank: int, load: Load, tracker: CallTracker) -> None:
    share = load.arguments.share
    tracker.submitted(rank, 0 if share is None else share.size, load.n_bytes)


def _header(method: Method, load: Load, trims: str) -> Header:
    share = load.arguments.share
    return Header(
        method.remote_name,
        -1 if share is None else share.n_real,
        0 if share is None else share.n_padding,
        method.registration.materialize_futures,
        trims,
    )
