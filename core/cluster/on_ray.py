"""The cluster's verbs on Ray: placement groups, actors, object references. The only file that imports ray."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from core.cluster import ray_names
from core.cluster.base import Outcome, Placement, Ref, ReserveRequest, SpawnRequest, StoreRoom, Submitted
from core.cluster.forks import forked_from, noting_hooks, watch_forks
from core.cluster.processes import children, end_after_me, end_children, keep_sigterm_handler, let_live
from core.cluster.ray_address import LOCAL, cannot_be_joined, cannot_be_started, wanted_address
from core.cluster.ray_errors import unread_in
from core.cluster.ray_forks import abandon_in_child
from core.cluster.ray_options import actor_options, offers_directly, two_return_entries
from core.cluster.ray_placement import placement_of, reservations_of, rooms_of
from core.cluster.ray_transport import NoDirectTransport, Offer, copied, keep
from core.cluster.shortage import Shortage, explain_shortage, not_in_time, pinned
from core.errors import PlacementError, PodiumError, UnknownNameError, WorkerDiedError, raise_detached

_log = logging.getLogger("podium.cluster")
_A_MOMENT_S = 0.0005
"""The precision of the time at which a result was ready. A round of wait and fetch costs about a third of this."""
_QUICK_S = 0.004  # results that are all ready this soon are fetched in one round; a failure is noticed this late
_RAY_FOLDER = os.path.dirname(ray.__file__)
_actor_classes: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()


class RayCluster:
    """A Ray cluster: this process's own connection, the one RAY_ADDRESS names, or one started for this driver."""

    def __init__(self, started_here: bool) -> None:
        """Wrap the connection that this process has; ``connect`` is the way to get one."""
        if ray.is_initialized():  # to ask for its context would start one
            watch_forks(ray.shutdown, abandon=abandon_in_child(ray.get_runtime_context()))
        self._started_here = started_here
        # Ray's processes end with the driver, but two agents run on for up to a minute.
        self._after = end_after_me(children(_RAY_FOLDER)) if started_here else None
        self._adopted: set[Any] = set()
        self._store_bytes: int | None = None
        self._ended: set[Any] = set()

    @classmethod
    def connect(cls, num_cpus: float | None = None, num_gpus: float | None = None, **options: Any) -> RayCluster:
        """Use Ray's present connection, join the cluster of RAY_ADDRESS, or start Ray on this machine.

        ``num_cpus`` and ``num_gpus`` are logical resources of a Ray that is started here; ``options`` go to
        ``ray.init``. A local Ray is started with address="local", so that a stale address file is never used.
        A cluster that cannot be reached is a ``ClusterUnreachableError``.
        """
        # Ray prints errors that are not fetched; Podium has recorded them, and raises the first one of a call.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        watch_forks(ray.shutdown)
        if ray.is_initialized():
            _require_connection()
            return cls(started_here=False)
        address = wanted_address(options.pop("address", None), os.environ)
        quiet = {"include_dashboard": False, "logging_level": logging.WARNING}
        with noting_hooks(), keep_sigterm_handler():
            if address == LOCAL:
                try:
                    ray.init(address=address, **{**quiet, "num_cpus": num_cpus, "num_gpus": num_gpus, **options})
                except OSError as error:
                    if (too_deep := cannot_be_started(error)) is not None:
                        raise too_deep from error
                    raise
                return cls(started_here=True)
            try:
                ray.init(address=address, **{"log_to_driver": True, **options})
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise cannot_be_joined(address, error) from error
            return cls(started_here=False)

    @property
    def kind(self) -> str:
        """Return "ray" and its version."""
        return f"ray {ray.__version__}"

    def reserve(self, request: ReserveRequest, timeout_s: float) -> Placement:
        """Create one placement group per node and wait until all are ready."""
        _require_connection()
        deadline = time.monotonic() + timeout_s
        short = self._shortage(request)
        # Nodes can still join an existing cluster, but not one that was started here.
        if short is not None and short.hopeless and self._started_here:
            raise short.error
        sizes = request.process_on_nodes
        made: dict[int, PlacementGroup] = {}
        try:
            # Largest first: a small one could otherwise take the only node where a large one fits.
            for node_index in sorted(range(len(sizes)), key=lambda index: sizes[index], reverse=True):
                made[node_index] = placement_group(
                    [dict(pinned(request).bundle)] * sizes[node_index],
                    strategy=request.strategy,
                    name=ray_names.native_name(request, node_index),
                    lifetime=request.lifetime,
                )
            for group in made.values():
                if not group.wait(timeout_seconds=max(0.0, deadline - time.monotonic())):
                    raise self.shortage(request, list(made.values())) or not_in_time(request, timeout_s)
        except BaseException:
            _remove(list(made.values()))
            raise
        groups = [made[node_index] for node_index in range(len(sizes))]
        return placement_of(request.pool, groups, _node_ids, _addresses(alive=True), in_rank_order=True)

    def shortage(self, request: ReserveRequest, without: Sequence[Any] = ()) -> PlacementError | None:
        """Compare a request with what the nodes have."""
        short = self._shortage(request, without)
        return None if short is None else short.error

    def adopt(self, pool: str, native: Sequence[Any]) -> Placement:
        """Look up where the bundles of placement groups are."""
        return placement_of(pool, list(native), _node_ids, _addresses(alive=True))

    def release(self, placement: Placement) -> None:
        """Remove the placement groups."""
        if self.is_up():
            _remove(placement.native)

    def spawn(self, request: SpawnRequest) -> Any:
        """Start an actor on its bundle."""
        actor_class = _actor_classes.get(request.actor_class)
        if actor_class is None:
            for method in two_return_entries(request.actor_class):
                ray.method(num_returns=2)(method)
            keeps = offers_directly(request.actor_class)
            remote: Any = ray.remote(enable_tensor_transport=True) if keeps else ray.remote  # type: ignore[call-overload]
            actor_class = _actor_classes[request.actor_class] = remote(request.actor_class)
        options = {**_where(request), **actor_options(request)}
        try:
            return actor_class.options(**options).remote(*request.args, **request.kwargs)
        except ValueError as error:
            if "already" not in str(error):
                raise
            raise ray_names.name_taken(request.name) from None

    def submit(self, actor: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submitted:
        """Call an actor's method with two returns."""
        _require_connection()
        bound = getattr(actor, method)
        if self._adopted and actor._actor_id in self._adopted:
            bound = bound.options(num_returns=2)
        try:
            result, receipt = bound.remote(*args, **kwargs)
        except RayActorError as error:
            raise _translated(error) from None
        return Submitted(result, receipt)

    def ask(self, actor: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Ref:
        """Call an actor's method with one return."""
        _require_connection()
        return self.bound(actor, method)(*args, **kwargs)

    def bound(self, actor: Any, method: str) -> Callable[..., Ref]:
        """Bind once what Ray binds for each ``actor.method``: a twentieth of the cost of a call."""
        remote = getattr(actor, method).remote

        def ask(*args: Any, **kwargs: Any) -> Ref:
            _require_connection()
            try:
                return remote(*args, **kwargs)
            except RayActorError as error:
                raise _translated(error) from None

        return ask

    def as_ready(self, refs: Sequence[Ref], timeout_s: float | None = None) -> Iterator[list[int]]:
        """Wait for the next one and a moment longer, so that there are few rounds even for a thousand ranks."""
        index_of = {ref: index for index, ref in enumerate(refs)}
        pending = list(refs)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while pending:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, pending = ray.wait(pending, num_returns=1, timeout=left_s)
            if not ready:
                raise TimeoutError(f"{len(pending)} of {len(refs)} values were not ready after {timeout_s} s")
            if pending:
                also, pending = ray.wait(pending, num_returns=len(pending), timeout=_A_MOMENT_S)
                ready += also
            yield [index_of[ref] for ref in ready]

    def fetch_quick(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any] | None:
        """Get all in one round, the minimum cost of a quick call; Ray returns early if one is an error."""
        try:
            values: list[Any] = ray.get(list(refs), timeout=_QUICK_S if timeout_s is None else min(_QUICK_S, timeout_s))
        except Exception:
            return None
        return values

    def store_room(self, n_bytes: int) -> StoreRoom | None:
        """Compare with the memory of this node's object store; the free size is Ray's latest figure."""
        if self._store_bytes is None:
            own = ray.get_runtime_context().get_node_id()
            sizes = [node["Resources"].get("object_store_memory") for node in _nodes() if node["NodeID"] == own]
            self._store_bytes = int(sizes[0]) if sizes and sizes[0] else 0
        if not self._store_bytes or n_bytes <= self._store_bytes:
            return None
        free = int(ray.available_resources().get("object_store_memory", 0))  # type: ignore[no-untyped-call]
        return StoreRoom(self._store_bytes, min(free, self._store_bytes))

    def put(self, value: object) -> Ref:
        """Store a value in the object store."""
        return ray.put(value)

    def fetch(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any]:
        """Get the values in one round; Ray raises as soon as one of them is an error."""
        values: list[Any] = []
        failures: list[BaseException] = []
        try:
            values = ray.get(list(refs), timeout=timeout_s)
        except GetTimeoutError as error:
            raise TimeoutError(f"{len(refs)} values were not all ready after {timeout_s} s") from error
        except Exception as error:
            failures.append(_translated(error))
        if failures:
            # Not in the except block: Ray's error would be its context, and has it as its cause.
            raise_detached(failures.pop())
        return values

    def offer(self, memory: Any, transport: str) -> Offer:
        """Keep a tensor in this worker for others, by one of Ray's one-sided transports."""
        try:
            ref = ray.put([memory], _tensor_transport=transport)
        except Exception as error:
            raise NoDirectTransport(f"{type(error).__name__}: {error}") from error
        keep(ref.hex(), memory)
        return Offer(ref, ray.get_runtime_context().current_actor, ref.hex())

    def take(self, offers: Sequence[Offer]) -> list[Any]:
        """Read other workers' tensors, even while these are busy; the driver cannot use direct transport."""
        if ray.get_runtime_context().get_actor_id() is None:
            raise NoDirectTransport("the driver fetched it")
        try:
            return [memory for (memory,) in ray.get([offer.ref for offer in offers])]
        except Exception as error:
            raise NoDirectTransport(f"{type(error).__name__}: {error}") from error

    def take_by_store(self, offers: Sequence[Offer], timeout_s: float) -> list[Any]:
        """Let the workers put copies into the store, on Ray's system thread there."""
        options = {"concurrency_group": "_ray_system"}
        copies = [offer.source.__ray_call__.options(**options).remote(copied, offer.key) for offer in offers]
        return self.fetch(copies, timeout_s)

    def wait(self, refs: Sequence[Ref], n_ready: int, timeout_s: float | None) -> tuple[list[Ref], list[Ref]]:
        """Wait without moving the values here."""
        if not refs:
            return [], []
        ready, pending = ray.wait(list(refs), num_returns=min(n_ready, len(refs)), timeout=timeout_s, fetch_local=False)
        return ready, pending

    def on_ready(self, ref: Ref, callback: Callable[[Outcome], None]) -> None:
        """Call back from Ray's own thread."""

        def report(future: Any) -> None:
            error = future.exception()
            callback(Outcome(future.result()) if error is None else Outcome(error=_translated(error)))

        ref.future().add_done_callback(report)

    def is_ref(self, value: object) -> bool:
        """Return whether ``value`` is an ``ObjectRef``."""
        return isinstance(value, ray.ObjectRef)

    def find(self, name: str) -> Any:
        """Look the actor up by its name in this driver's namespace."""
        try:
            return ray.get_actor(name)
        except ValueError:
            raise ray_names.unknown_name(name, ray.get_runtime_context().namespace) from None

    def adopt_actor(self, actor: Any) -> None:
        """Record that the handle may not have ``num_returns``: another process created the actor class."""
        self._adopted.add(actor._actor_id)

    def actor_id(self, actor: Any) -> str:
        """Return Ray's id of the actor."""
        return str(actor._actor_id.hex())

    def node_of(self, actor: Any) -> str:
        """Call the actor to get its node."""
        return _addresses().get(_node_id(actor), "")

    def kill(self, actor: Any) -> None:
        """Kill an actor without a restart."""
        self._ended.add(actor._actor_id)
        if self.is_up():
            try:
                ray.kill(actor, no_restart=True)
            except ValueError:  # it is gone already, or belongs to another driver
                _log.debug("actor %s was gone already", actor)

    def retire(self, actors: Sequence[Any], limit_s: float) -> None:
        """Let the actors clean up in parallel, then kill them: ``ray.kill`` alone runs no code in them."""
        cleanups: list[Any] = []
        try:
            if limit_s > 0 and self.is_up():
                cleanups = [actor._podium_clean_up.remote() for actor in actors if not self.was_ended(actor)]
            self._ended.update(actor._actor_id for actor in actors)
            self.wait(cleanups, len(cleanups), limit_s)
        except (RayActorError, AttributeError):
            _log.debug("an actor was gone before it could clean up", exc_info=True)
        finally:
            for actor in actors:
                self.kill(actor)

    def was_ended(self, actor: Any) -> bool:
        """Return whether ``kill`` was called for the actor."""
        return actor._actor_id in self._ended

    def is_up(self) -> bool:
        """Return whether this process is connected to Ray."""
        return bool(ray.is_initialized()) and not forked_from()

    def on_death(self, actor: Any, callback: Callable[[WorkerDiedError], None]) -> bool:
        """Return False: Ray reports an actor's death only to callers with a pending call."""
        del actor, callback
        return False

    def run_on(self, node: str, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        """Run a task that needs no CPU on that node, so that it also runs if all CPUs are reserved."""
        _require_connection()
        remote = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=_there(node))
        (value,) = self.fetch([remote.remote(*args)], timeout_s)
        return value

    def abandon(self) -> None:
        """Kill the Ray that this process started: its agents would outlive a driver that is killed."""
        end_children(_RAY_FOLDER)

    def close(self) -> None:
        """Shut Ray down if this object started it; a forked child has nothing to shut down."""
        if forked_from():
            return
        if self._started_here and ray.is_initialized():
            ray.shutdown()
        let_live(self._after)
        self._started_here = False

    def _shortage(self, request: ReserveRequest, own: Sequence[PlacementGroup] = ()) -> Shortage | None:
        return explain_shortage(
            pinned(request),
            rooms_of(_nodes()),
            reservations_of(placement_group_table(), [group.id.hex() for group in own]),
        )


def assigned_devices() -> tuple[str, ...]:
    """Return the ids of the accelerators that Ray assigned to this process; more may be visible to it."""
    if not ray.is_initialized():
        return ()
    watch_forks(ray.shutdown, abandon=abandon_in_child(context := ray.get_runtime_context()))
    return next((tuple(map(str, ids)) for ids in context.get_accelerator_ids().values() if ids), ())


def node_address() -> str:
    """Return the address that Ray has for this node."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def remote_function(function: Callable[..., Any]) -> Any:
    """Make a function one of Ray's, which takes no CPU."""
    return ray.remote(num_cpus=0)(function)


def _require_connection() -> None:
    """Raise if Ray is not connected: it would start another cluster and look for this one's actors there."""
    if forked_from():
        raise ray_names.is_forked(forked_from())
    if not ray.is_initialized():
        raise ray_names.was_shut_down()


def _where(request: SpawnRequest) -> dict[str, Any]:
    """Return the option that puts an actor on its bundle, or on another actor's node."""
    if request.beside is not None:
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=_node_id(request.beside), soft=False)}
    if request.node:
        return {"scheduling_strategy": _there(request.node)}
    if request.placement is None or request.slot is None:
        return {}
    return {
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=request.placement.native[request.slot.group_index],
            placement_group_bundle_index=request.slot.bundle_index,
        )
    }


def _there(node: str) -> NodeAffinitySchedulingStrategy:
    node_id = next((known for known, address in _addresses(alive=True).items() if address == node), None)
    if node_id is None:
        raise UnknownNameError(f"no node with the address {node!r} is up", name=node)
    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _node_id(actor: Any) -> str:
    try:
        return str(ray.get(actor.__ray_call__.remote(_own_node_id)))
    except RayActorError as error:
        raise _translated(error) from None


def _own_node_id(actor: object) -> str:
    """Run inside an actor: return the id of the node it is on."""
    del actor
    return str(ray.get_runtime_context().get_node_id())


def _node_ids(group: PlacementGroup) -> dict[int, str]:
    """Return the node of each bundle of a placement group."""
    return dict(placement_group_table(group)["bundles_to_node_id"])


def _remove(groups: Sequence[PlacementGroup]) -> None:
    for group in groups:
        try:
            remove_placement_group(group)
        except Exception:
            _log.exception("a placement group could not be removed")


def _nodes() -> list[dict[str, Any]]:
    return list(ray.nodes())  # type: ignore[no-untyped-call]


def _addresses(alive: bool = False) -> dict[str, str]:
    return {node["NodeID"]: node["NodeManagerAddress"] for node in _nodes() if node["Alive"] or not alive}


def _translated(error: BaseException) -> BaseException:
    """Convert Ray's errors to Podium's; the worker's shell has set the fields of the cause already."""
    if isinstance(error, RayTaskError):
        cause = getattr(error, "cause", None)
        if isinstance(cause, PodiumError):
            return cause
        if (unread := unread_in(cause, on_worker=True)) is not None:
            return unread
        error.__cause__ = cause if isinstance(cause, BaseException) else None
        return error
    if isinstance(error, (RayActorError, OutOfMemoryError, NodeDiedError)):
        # Its process has ended in all three cases; an unreachable one may come back.
        return ray_names.death_in(str(error), isinstance(error, ActorUnavailableError))
    return unread_in(error) or error
