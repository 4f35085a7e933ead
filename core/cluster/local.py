"""The cluster's verbs inside this process: one thread per worker, everything pickled that Ray would pickle.

For fast tests, and for a user's ``breakpoint()`` inside a worker. Ranks run side by side, but they share one
interpreter: ``torch.distributed`` and changes to ``os.environ`` need real processes.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION
from concurrent.futures import wait as wait_for_futures
from typing import Any

from core.cluster.base import (
    Outcome,
    Placement,
    Ref,
    ReserveRequest,
    Slot,
    SpawnRequest,
    StoreRoom,
    Submitted,
)
from core.cluster.local_actor import Job, LocalActor, ask
from core.cluster.local_refs import LocalRef, packed, set_value
from core.cluster.ray_errors import outcome_of, unpacked
from core.cluster.shortage import no_room
from core.errors import PlacementError, UnknownNameError, WorkerDiedError

LOCAL_NODE = "127.0.0.1"


class LocalGroup:
    """Bundles that were reserved together: what a placement group is on Ray."""

    def __init__(self, n_bundles: int, bundle: Mapping[str, float]) -> None:
        """Describe ``n_bundles`` equal bundles."""
        self.n_bundles = n_bundles
        self.amounts = {name: amount * n_bundles for name, amount in bundle.items()}


class LocalCluster:
    """A cluster of one node inside this process.

    ``resources`` are the node's resources, such as ``{"CPU": 16, "GPU": 8}``; None means no limit.
    """

    def __init__(self, resources: Mapping[str, float] | None = None) -> None:
        """Describe the machine; threads start with the workers."""
        self._free = None if resources is None else dict(resources)
        self._total = dict(resources or {})
        self._held: dict[LocalGroup, dict[str, float]] = {}
        self._actors: weakref.WeakSet[LocalActor] = weakref.WeakSet()
        self._detached: set[LocalActor] = set()
        self._lock = threading.Lock()

    @property
    def kind(self) -> str:
        """Return "local"."""
        return "local"

    def reserve(self, request: ReserveRequest, timeout_s: float) -> Placement:
        """Reserve the slots, or raise at once: no other thread could release slots while this one waits."""
        with self._lock:
            short = self._short(request)
            if short is not None:
                raise short
            groups = [LocalGroup(n_processes, dict(request.bundle)) for n_processes in request.process_on_nodes]
            for group in groups:
                self._held[group] = group.amounts
                self._take(group.amounts, -1)
        return self.adopt(request.pool, groups)

    def shortage(self, request: ReserveRequest, without: Sequence[Any] = ()) -> PlacementError | None:
        """Compare a request with what is free."""
        with self._lock:
            return self._short(request, without)

    def adopt(self, pool: str, native: Sequence[Any]) -> Placement:
        """Number the bundles of groups."""
        slots: list[Slot] = []
        for group_index, group in enumerate(native):
            for bundle_index in range(group.n_bundles):
                slots.append(Slot(len(slots), LOCAL_NODE, group_index, bundle_index, group_index, bundle_index))
        return Placement(pool, tuple(slots), tuple(native))

    def release(self, placement: Placement) -> None:
        """Give the slots back."""
        with self._lock:
            for group in placement.native:
                self._take(self._held.pop(group, {}), 1)

    def _short(self, request: ReserveRequest, without: Sequence[Any] = ()) -> PlacementError | None:
        if self._free is None:
            return None
        free = dict(self._free)
        for group in without:
            for name, amount in self._held.get(group, {}).items():
                free[name] += amount
        n_bundles = sum(request.process_on_nodes)
        needed = {name: amount * n_bundles for name, amount in request.bundle.items()}
        if all(free.get(name, 0.0) >= amount for name, amount in needed.items()):
            return None
        return no_room(request, needed, free, self._total)

    def _take(self, amounts: Mapping[str, float], sign: int) -> None:
        if self._free is not None:
            for name, amount in amounts.items():
                self._free[name] += sign * amount

    @property
    def free(self) -> dict[str, float] | None:
        """Return what is not reserved, or None when there is no limit."""
        with self._lock:
            return None if self._free is None else dict(self._free)

    def spawn(self, request: SpawnRequest) -> LocalActor:
        """Start a worker thread."""
        actor = LocalActor(request)
        self._actors.add(actor)
        if request.options.get("lifetime") == "detached":
            self._detached.add(actor)
        return actor

    def submit(self, actor: LocalActor, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submitted:
        """Pickle the arguments and queue the job."""
        payload, holds = packed((args, dict(kwargs)))
        result, receipt = LocalRef(), LocalRef()
        actor.give(Job(method, payload, result, receipt, holds))
        return Submitted(result, receipt)

    def ask(self, actor: LocalActor, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LocalRef:
        """Pickle the arguments and queue the job for its one result."""
        return ask(actor, method, args, kwargs)

    def bound(self, actor: LocalActor, method: str) -> Callable[..., LocalRef]:
        """Bind the names."""
        return lambda *args, **kwargs: self.ask(actor, method, args, kwargs)

    def as_ready(self, refs: Sequence[Ref], timeout_s: float | None = None) -> Iterator[list[int]]:
        """Wait for the next one, then yield all that are ready by then."""
        pending = dict(enumerate(refs))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while pending:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait_for_futures([ref.future for ref in pending.values()], left_s, return_when=FIRST_COMPLETED)
            ready = [index for index, ref in pending.items() if ref.future.done()]
            if not ready:
                raise TimeoutError(f"{len(pending)} of {len(refs)} values were not ready after {timeout_s} s")
            for index in ready:
                del pending[index]
            yield ready

    def fetch_quick(self, refs: Sequence[LocalRef], timeout_s: float | None = None) -> list[Any] | None:
        """Return None: ``as_ready`` costs nothing here."""
        del refs, timeout_s
        return None

    def store_room(self, n_bytes: int) -> StoreRoom | None:
        """Compare with the resource of Ray's name if one was given: values are kept as bytes of this process."""
        capacity = self._total.get("object_store_memory")
        return None if capacity is None or n_bytes <= capacity else StoreRoom(int(capacity), int(capacity))

    def put(self, value: object) -> LocalRef:
        """Pickle a value once."""
        ref = LocalRef()
        set_value(ref, *packed(value))
        return ref

    def fetch(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any]:
        """Return copies of the values, or raise the first error."""
        done, pending = wait_for_futures([ref.future for ref in refs], timeout_s, return_when=FIRST_EXCEPTION)
        for future in done:
            if (error := future.exception()) is not None:
                raise error
        if pending:
            raise TimeoutError(f"{len(pending)} of {len(refs)} values were not ready after {timeout_s} s")
        return [unpacked(ref.future.result()) for ref in refs]

    def wait(self, refs: Sequence[Ref], n_ready: int, timeout_s: float | None) -> tuple[list[Ref], list[Ref]]:
        """Wait until enough are there."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        n_ready = min(n_ready, len(refs))
        while True:
            ready = [ref for ref in refs if ref.future.done()]
            if len(ready) >= n_ready or (deadline is not None and time.monotonic() >= deadline):
                return ready, [ref for ref in refs if ref not in ready]
            left_s = 1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            pending = [ref.future for ref in refs if ref not in ready]
            wait_for_futures(pending, min(left_s, 1.0), return_when="FIRST_COMPLETED")

    def on_ready(self, ref: Ref, callback: Callable[[Outcome], None]) -> None:
        """Call back from the worker's thread."""

        ref.future.add_done_callback(lambda future: callback(outcome_of(future)))

    def is_ref(self, value: object) -> bool:
        """Return whether ``value`` is a ``LocalRef``."""
        return isinstance(value, LocalRef)

    def find(self, name: str) -> LocalActor:
        """Return the living worker of that name."""
        living = {actor.name: actor for actor in list(self._actors) if not actor.killed.is_set()}
        if name not in living:
            raise UnknownNameError(f"there is no worker named {name!r}", name=name, known=tuple(sorted(living)))
        return living[name]

    def adopt_actor(self, actor: LocalActor) -> None:
        """Do nothing: all workers can be called the same way."""

    def actor_id(self, actor: LocalActor) -> str:
        """Return the worker's name."""
        return actor.name

    def node_of(self, actor: LocalActor) -> str:
        """Return the one node's address."""
        if actor.killed.is_set():
            raise WorkerDiedError(f"worker {actor.name} has ended", worker=actor.name, pid=os.getpid())
        return LOCAL_NODE

    def kill(self, actor: LocalActor) -> None:
        """End a worker."""
        actor.was_ended = True
        actor.kill()
        self._detached.discard(actor)

    def retire(self, actors: Sequence[LocalActor], limit_s: float) -> None:
        """Let the workers that have a hook for it clean up, then end all."""
        cleanups = [self.ask(actor, "_podium_clean_up", (), {}).future for actor in actors if actor.has_hook]
        try:
            wait_for_futures(cleanups, limit_s)
        finally:
            for actor in actors:
                self.kill(actor)

    def was_ended(self, actor: LocalActor) -> bool:
        """Return whether ``kill`` was called for the worker."""
        return actor.was_ended

    def is_up(self) -> bool:
        """Return True: this process is the cluster."""
        return True

    def on_death(self, actor: LocalActor, callback: Callable[[WorkerDiedError], None]) -> bool:
        """Call ``callback`` when the worker's thread ends."""
        actor.on_death(callback)
        return True

    def run_on(self, node: str, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        """Call the function: there is one node."""
        if node != LOCAL_NODE:
            raise UnknownNameError(f"no node with the address {node!r} is up", name=node, known=(LOCAL_NODE,))
        return function(*args)

    def abandon(self) -> None:
        """Do nothing: there is no other process."""

    def close(self) -> None:
        """End every worker."""
        for actor in list(self._actors):
            self.kill(actor)
