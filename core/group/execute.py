"""Executing a call on its ranks: weigh what each gets, store once what several get, submit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import cloudpickle

from core.cluster import Cluster, Outcome, Ref, Submitted
from core.data.batch import payload_bytes
from core.data.shares import Share
from core.data.wire import pack, sending
from core.dispatch import Arguments, Dispatched, RankArguments
from core.errors import BatchError, ObjectStoreFullError, PodiumError, RegistrationError, ShareError
from core.group.bind import Method
from core.group.call_tracker import CallTracker
from core.group.live_workers import LiveWorkers
from core.group.wait import Answer, follow
from core.worker import Header, entries

Sent = TypeVar("Sent")

_PUT_ONCE_BYTES = 64 * 1024
"""From this size on an argument of several ranks is stored once and passed by reference."""


class Load(NamedTuple):
    """What one rank is sent, and the bytes of it."""

    arguments: RankArguments
    n_bytes: int


def weigh(live: LiveWorkers, method: Method, dispatched: Dispatched, tracker: CallTracker) -> list[tuple[int, Load]]:
    """Weigh what each rank gets; store once what several ranks get, so that it is serialised once.

    Raises:
        ObjectStoreFullError: All that is sent does not fit the cluster's store; nothing was sent.
    """
    ranks = tracker.facts.ranks
    first = dispatched.ranks[ranks[0]]
    if not first.args and not first.kwargs:
        nothing = Load(first, 0)
        return [
            (rank, nothing if dispatched.ranks[rank] is first else Load(dispatched.ranks[rank], 0)) for rank in ranks
        ]
    outgoing = Outgoing.of([dispatched.ranks[rank] for rank in ranks])
    if outgoing.n_bytes >= _PUT_ONCE_BYTES:
        require_room(live, method, outgoing.n_bytes)
    tracker.bytes_out = outgoing.n_bytes
    with sending(views=method.registration.zero_copy):
        began = time.monotonic_ns()
        loads = [(rank, outgoing.load(live.cluster, dispatched.ranks[rank])) for rank in ranks]
        tracker.serialise_ns += time.monotonic_ns() - began
    return loads


@dataclass
class Outgoing:
    """All values that a call sends, each weighed and stored once however many ranks get it.

    ``weights`` and ``n_ranks`` go by a value's identity; ``n_bytes`` is what leaves the driver.
    """

    weights: dict[int, int]
    n_ranks: Counter[int]
    n_bytes: int
    out: dict[int, Any] = field(default_factory=dict)
    loads: dict[int, Load] = field(default_factory=dict)

    @classmethod
    def of(cls, ranks: Sequence[RankArguments]) -> Outgoing:
        """Weigh the arguments of the ranks that execute."""
        n_ranks = Counter(id(value) for given in ranks for value in _values(given))
        values = {id(value): value for given in ranks for value in _values(given)}
        weights = {key: payload_bytes(value) for key, value in values.items()}
        n_bytes = sum(weight if weight >= _PUT_ONCE_BYTES else weight * n_ranks[key] for key, weight in weights.items())
        return cls(weights, n_ranks, n_bytes)

    def load(self, cluster: Cluster, given: RankArguments) -> Load:
        """Return what goes out to a rank for ``given``: ranks that are given the same are sent the same."""
        if id(given) not in self.loads:
            args = tuple(self._sent(cluster, value) for value in given.args)
            kwargs = {name: self._sent(cluster, value) for name, value in given.kwargs.items()}
            n_bytes = sum(self.weights[id(value)] for value in _values(given))
            self.loads[id(given)] = Load(RankArguments(args, kwargs, given.share), n_bytes)
        return self.loads[id(given)]

    def _sent(self, cluster: Cluster, value: Any) -> Any:
        key = id(value)
        weight = self.weights[key]
        if weight == 0:
            return value
        if key not in self.out:
            packed = pack(value)
            self.out[key] = cluster.put(packed) if weight >= _PUT_ONCE_BYTES and self.n_ranks[key] > 1 else packed
        return self.out[key]


def _values(given: RankArguments) -> Iterator[Any]:
    yield from given.args
    yield from given.kwargs.values()


def require_room(live: LiveWorkers, method: Method, n_bytes: int) -> None:
    """Make sure that the cluster's store can hold what a call sends: it would spill to disk, hang or die over it.

    Raises:
        ObjectStoreFullError: It cannot.
    """
    room = live.cluster.store_room(n_bytes)
    if room is None:
        return
    raise ObjectStoreFullError(
        f"{live.group}.{method.name} sends {n_bytes:,} bytes, but the object store of this node holds "
        f"{room.capacity_bytes:,} in all, of which {room.free_bytes:,} are free; send the batch in parts, or give the "
        f"store more: core.init(object_store_memory=...), on a cluster `ray start --object-store-memory`",
        group=live.group,
        method=method.name,
        asked_bytes=n_bytes,
        capacity_bytes=room.capacity_bytes,
        free_bytes=room.free_bytes,
    )


def submit(
    live: LiveWorkers, method: Method, loads: Sequence[tuple[int, Load]], trims: str, tracker: CallTracker
) -> list[Submitted]:
    """Submit a non-blocking call to its ranks: results stay on the cluster, receipts come when they are ready.

    Raises:
        RegistrationError: Results are to stay on the workers' devices, and the mode makes no future of them.
    """
    transport = method.registration.tensor_transport
    if transport and trims != "rows":
        raise RegistrationError(
            f"{live.group}.{method.name} is registered with tensor_transport={transport!r}, but its mode gives no "
            f"DataProtoFuture, by which alone the tensors would be found; use Dispatch.DP_COMPUTE_PROTO or a mesh's"
        )
    submitted: list[Submitted] = []

    def submit_one(rank: int, given: RankArguments) -> Submitted:
        args = (_header(method, given.share, trims).pack(), *given.args)
        return live.cluster.submit(live.workers.actors[rank], entries.RUN, args, given.kwargs)

    with _Executing(tracker), sending(views=method.registration.zero_copy):
        for rank, load in loads:
            one = _sent(submit_one, rank, load, tracker)
            live.cluster.on_ready(one.receipt, Answer(tracker, rank))
            submitted.append(one)
    return submitted


def execute(
    live: LiveWorkers, method: Method, loads: Sequence[tuple[int, Load]], trims: str, tracker: CallTracker
) -> list[Ref]:
    """Submit a blocking call to its ranks: result and receipt come as one object."""
    refs: list[Ref] = []
    is_plain = not trims and not method.by_name

    def execute_one(rank: int, given: RankArguments) -> Ref:
        if is_plain and given.share is None:
            name = entries.answer_of(method.remote_name, bool(given.args or given.kwargs))
            return live.entry(rank, name)(*given.args, **given.kwargs)
        args = (_header(method, given.share, trims).pack(), *given.args)
        return live.entry(rank, entries.ANSWER)(*args, **given.kwargs)

    try:
        with _Executing(tracker), sending(views=method.registration.zero_copy):
            for rank, load in loads:
                refs.append(_sent(execute_one, rank, load, tracker))
    except BaseException:
        follow(live, refs, range(len(refs)), tracker)
        raise
    return refs


class _Executing:
    """Times the submission of a call to its ranks; when all were asked, seals the call."""

    __slots__ = ("_began_ns", "_tracker")

    def __init__(self, tracker: CallTracker) -> None:
        self._tracker = tracker

    def __enter__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._tracker.sealed()
        self._tracker.phases.execute_ns = time.monotonic_ns() - self._began_ns


def _sent(send: Callable[[int, RankArguments], Sent], rank: int, load: Load, tracker: CallTracker) -> Sent:
    """Send one rank its arguments, and take note of it: before, as its answer can come at any time, and after."""
    given = load.arguments
    tracker.submitted(rank, 0 if given.share is None else given.share.size, load.n_bytes)
    try:
        sent = send(rank, given)
    except BaseException as error:
        unsendable = (
            None
            if isinstance(error, PodiumError) and not isinstance(error, BatchError)
            else _unsendable(given, f"{tracker.facts.group}.{tracker.facts.method}")
        )
        tracker.answered(rank, Outcome(error=unsendable or error))
        if unsendable is not None:
            # The cluster's own text is a page long and names no argument.
            raise unsendable from None
        raise
    tracker.sent(rank)
    return sent


def _unsendable(given: RankArguments, method: str) -> ShareError | None:
    """Return an error that names the first argument that cannot be pickled, None if all can."""
    for name, value in Arguments(given.args, given.kwargs).named():
        try:
            cloudpickle.dumps(pack(value))
        except Exception as error:
            return ShareError(
                f"argument {name} of {method} is a {type(value).__name__} that cannot be sent to the workers: "
                f"{type(error).__name__}: {error}",
                argument=name,
            )
    return None


def _header(method: Method, share: Share | None, trims: str) -> Header:
    return Header(
        method.remote_name,
        -1 if share is None else share.n_real,
        0 if share is None else share.n_padding,
        method.registration.materialize_futures,
        trims,
        method.registration.zero_copy,
        method.registration.tensor_transport,
    )
