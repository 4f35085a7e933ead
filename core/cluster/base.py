"""What core needs of a cluster, in a few verbs: reserve release spawn submit fetch wait kill.

Two implementations are held to one contract suite (``tests/contract``): ``on_ray.RayCluster`` and
``local.LocalCluster``. References, placements' native parts and actor handles are opaque to everybody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from core.errors import PlacementError, WorkerDiedError

Ref: TypeAlias = Any
"""A value somewhere on the cluster: ``ray.ObjectRef`` or ``LocalRef``; only the cluster looks inside."""

ActorHandle: TypeAlias = Any
"""A worker process: a Ray actor handle or a ``LocalActor``."""

ONE_RETURN_PREFIXES = ("_podium_answer", "_podium_is_alive", "_podium_clean_up")
"""How the names of methods begin that ``Cluster.ask`` calls; ``submit`` calls the other ``_podium_`` methods."""


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """Slots wanted: ``process_on_nodes[i]`` equal bundles together on one node, for each ``i``.

    ``node`` is the address of the only node that will do, empty when any will.
    """

    pool: str
    process_on_nodes: tuple[int, ...]
    bundle: Mapping[str, float]
    strategy: str = "STRICT_PACK"
    lifetime: str | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """One reserved bundle. ``index`` is its place in rank order, ``node`` the node's address.

    ``group_index`` says which native group holds it and ``bundle_index`` which bundle of that group it is.
    """

    index: int
    node: str
    node_index: int
    local_index: int
    group_index: int
    bundle_index: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Reserved slots in rank order; ``native`` are the cluster's own handles (Ray placement groups)."""

    pool: str
    slots: tuple[Slot, ...]
    native: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A worker process wanted on a slot, on the node of the worker ``beside``, or on the node of an address.

    ``name`` is empty for a worker without a name. ``args`` and ``kwargs`` are the constructor's, none for the shells
    of a group's workers. ``num_gpus`` may be a fraction; ``env`` is set before the process starts;
    ``options`` are passed to the cluster unchanged.
    """

    actor_class: type
    name: str
    placement: Placement | None = None
    slot: Slot | None = None
    beside: ActorHandle | None = None
    node: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    device: str = "GPU"
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted method: the reference of its result and that of its receipt (times and sizes)."""

    result: Ref
    receipt: Ref


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a reference: a value or an error."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class StoreRoom:
    """The shared memory of the cluster's store on this node, and how much of it is free."""

    capacity_bytes: int
    free_bytes: int


class Cluster(Protocol):
    """Processes, slots and references.

    ``fetch`` and ``on_ready`` deliver errors of workers as ``core.errors.WorkerError``; a death as
    ``WorkerDiedError`` whose rank the caller fills in.
    """

    @property
    def kind(self) -> str:
        """Return what this is, such as "ray 2.60.0" or "local"."""
        ...

    def reserve(self, request: ReserveRequest, timeout_s: float) -> Placement:
        """Reserve the slots of a pool.

        Raises:
            PlacementError: They do not fit, or were not free within ``timeout_s``; nothing is left pending.
        """
        ...

    def shortage(self, request: ReserveRequest, without: Sequence[Any] = ()) -> PlacementError | None:
        """Return why ``request`` does not fit right now, None when it does; nothing is reserved.

        The native groups ``without`` count as released.
        """
        ...

    def adopt(self, pool: str, native: Sequence[Any]) -> Placement:
        """Return the slots of native groups that exist, in the order of ``native``."""
        ...

    def release(self, placement: Placement) -> None:
        """Release the slots; no error if they were released already."""
        ...

    def spawn(self, request: SpawnRequest) -> ActorHandle:
        """Start a worker process and return at once; the first ``submit`` fails if it did not start."""
        ...

    def submit(self, actor: ActorHandle, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submitted:
        """Run ``method`` of ``actor``, which returns ``(result, receipt)``; calls on one actor keep their order.

        References among ``args`` and the values of ``kwargs`` arrive as their values.
        """
        ...

    def ask(self, actor: ActorHandle, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Ref:
        """Run ``method`` of ``actor``, whose name starts with one of ``ONE_RETURN_PREFIXES``, for its one result.

        Cheaper than ``submit``, for results that only the caller reads. References arrive as their values.
        """
        ...

    def bound(self, actor: ActorHandle, method: str) -> Callable[..., Ref]:
        """Return what ``ask`` does with this method of this actor, bound once for many calls."""
        ...

    def as_ready(self, refs: Sequence[Ref], timeout_s: float | None = None) -> Iterator[list[int]]:
        """Yield the indices in ``refs`` of those that have a value or an error, as soon as they do.

        Raises:
            TimeoutError: Some had none after ``timeout_s``.
        """
        ...

    def fetch_quick(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any] | None:
        """Return the values if all are there within milliseconds, in one round; None if not, or if one is an error."""
        ...

    def store_room(self, n_bytes: int) -> StoreRoom | None:
        """Return the room of this node's store if ``n_bytes`` at once are more than it holds, None if they fit."""
        ...

    def put(self, value: object) -> Ref:
        """Store a value once for many readers."""
        ...

    def fetch(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any]:
        """Return the values, in order; raise the first error as soon as a reference has one.

        Raises:
            TimeoutError: Not all were ready after ``timeout_s``.
        """
        ...

    def wait(self, refs: Sequence[Ref], n_ready: int, timeout_s: float | None) -> tuple[list[Ref], list[Ref]]:
        """Wait for ``n_ready`` of ``refs``, or all when there are fewer; return the ready ones and the others."""
        ...

    def on_ready(self, ref: Ref, callback: Callable[[Outcome], None]) -> None:
        """Call ``callback`` on another thread as soon as ``ref`` has a value or an error."""
        ...

    def is_ref(self, value: object) -> bool:
        """Return whether ``value`` is a reference of this cluster."""
        ...

    def find(self, name: str) -> ActorHandle:
        """Return the worker process of that name, whichever process started it.

        Raises:
            UnknownNameError: There is none of that name.
        """
        ...

    def adopt_actor(self, actor: ActorHandle) -> None:
        """Prepare to ``submit`` to a worker process that this object has not started."""
        ...

    def actor_id(self, actor: ActorHandle) -> str:
        """Return the cluster's own id of a worker process, as text."""
        ...

    def node_of(self, actor: ActorHandle) -> str:
        """Return the address of a worker process's node; the process itself is called, so it must not be busy.

        Raises:
            WorkerDiedError: It has ended.
        """
        ...

    def kill(self, actor: ActorHandle) -> None:
        """End a worker process at once; no error if it has ended already."""
        ...

    def retire(self, actors: Sequence[ActorHandle], limit_s: float) -> None:
        """Let worker processes clean up, all at the same time and for at most ``limit_s``, then end them.

        A busy one cleans up after its current method; after the limit it is ended in any case.
        """
        ...

    def was_ended(self, actor: ActorHandle) -> bool:
        """Return whether this object ended a worker process on purpose, by ``kill`` or ``retire``."""
        ...

    def is_up(self) -> bool:
        """Return whether the cluster can still be used; False once it was shut down, and its workers with it."""
        ...

    def on_death(self, actor: ActorHandle, callback: Callable[[WorkerDiedError], None]) -> bool:
        """Call ``callback`` on another thread when a worker process ends, on purpose or not.

        Returns False if the cluster cannot do that: the process must then be watched or polled.
        """
        ...

    def run_on(self, node: str, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        """Run a function of an installed module once on the node of that address and return what it returns.

        Raises:
            UnknownNameError: No node of that address is up.
            TimeoutError: It had not finished after ``timeout_s``.
        """
        ...

    def abandon(self) -> None:
        """End at once every process of the cluster that this process started: it is about to be ended by a signal."""
        ...

    def close(self) -> None:
        """End what this object started; may be called twice."""
        ...


_local_environ: ContextVar[dict[str, str] | None] = ContextVar("podium_worker_environ", default=None)


def environ() -> Mapping[str, str]:
    """Return the environment of the worker this code runs in.

    That is ``os.environ``, except for a worker that shares a process with others, which has its own.
    """
    own = _local_environ.get()
    return os.environ if own is None else own


def shares_a_process() -> bool:
    """Return whether the worker this code runs in shares its process with the driver."""
    return _local_environ.get() is not None


def adopt_environ(variables: Mapping[str, str]) -> None:
    """Add ``variables`` to the environment of the worker this code runs in."""
    own = _local_environ.get()
    if own is None:
        os.environ.update(variables)
    else:
        # In place: the threads and tasks of a worker have copies of one context.
        own.update(variables)


def isolate_environ() -> None:
    """Give this thread's worker its own environment, a copy of the process's."""
    _local_environ.set(dict(os.environ))
