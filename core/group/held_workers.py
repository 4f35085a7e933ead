"""Workers that outlive their group: a handle that the group gave out is still held."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from core.cluster import ActorHandle
from core.events import GroupClosed, WorkerEnded
from core.finalizers import Finalizer
from core.pool import RayResourcePool
from core.runtime import Runtime


class HeldWorkers:
    """The workers of a group that was dropped while handles of them are held.

    Each ends with its last handle, as an actor does, and all end with the pool, which lives as long as one of them.
    They keep the group's place on the slots.
    """

    def __init__(self, name: str, pool: RayResourcePool, actors: Sequence[ActorHandle], ranks: Sequence[int]) -> None:
        """Watch over the handles of ``ranks``; none is held here."""
        self.name = name
        self._pool = pool
        self._lock = threading.Lock()
        self._handles = {rank: weakref.ref(actors[rank]) for rank in ranks}
        pool.place(self)
        for rank in ranks:
            Finalizer(actors[rank], self._handle_dropped, rank)

    def close(self) -> None:
        """End the workers; may be called twice."""
        with self._lock:
            handles, self._handles = self._handles, {}
        runtime = self._pool.runtime
        living = [actor for handle in handles.values() if (actor := handle()) is not None]
        runtime.cluster.retire(living, runtime.health_settings.close_timeout_s)
        self._record(tuple(handles), "the pool was closed", is_last=bool(handles))

    def release(self) -> None:
        """End the workers: only those of a detached group are to outlive the driver."""
        self.close()

    def _handle_dropped(self, rank: int) -> None:
        """Record that a worker ended with its handle; at the driver's exit, while it is held, end it."""
        with self._lock:
            handle = self._handles.get(rank)
        if handle is None:
            return
        if handle() is not None:
            self.close()
            return
        with self._lock:
            self._handles.pop(rank, None)
            is_last = not self._handles
        self._record((rank,), "no handle of it was held any more", is_last)

    def _record(self, ranks: Sequence[int], reason: str, is_last: bool) -> None:
        runtime = self._pool.runtime
        now_ns = runtime.clock.now_ns()
        for rank in ranks:
            runtime.bus.emit(WorkerEnded(now_ns, self.name, rank, died=False, reason=reason))
        if is_last:
            self._pool.dismiss(self.name)
            runtime.bus.emit(GroupClosed(now_ns, self.name, self._pool.name))


def leave_to_holders(
    runtime: Runtime, pool: RayResourcePool, name: str, actors: Sequence[ActorHandle], dead: set[int]
) -> None:
    """Leave a group's workers to who holds their handles; runs when the group is collected, or at the driver's exit."""
    runtime.safe_point.withdraw_for(name)
    living = [rank for rank in range(len(actors)) if rank not in dead]
    # They end with their handles from now on: on purpose.
    dead.update(living)
    HeldWorkers(name, pool, actors, living)
