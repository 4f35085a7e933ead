"""Recording that groups and their workers come and go."""

from __future__ import annotations

from collections.abc import Sequence

from core.cluster import ActorHandle
from core.dispatch import Execute
from core.events import GroupClosed, GroupCreated, GroupRebuilt, MethodFacts, WorkerClock, WorkerEnded, WorkerStarted
from core.group.bind import Method
from core.group.clock import ClockAlignment
from core.group.worker_set import WorkerSet
from core.pool import RayResourcePool
from core.runtime import Runtime


def announce_group(
    group: str, pool: RayResourcePool, user_class: type, workers: WorkerSet, methods: Sequence[Method]
) -> None:
    """Record that a group is up, with its methods and its workers."""
    runtime = pool.runtime
    runtime.bus.emit(
        GroupCreated(
            at_ns=runtime.clock.now_ns(),
            group=group,
            pool=pool.name,
            worker_class=f"{user_class.__module__}.{user_class.__qualname__}",
            world_size=workers.world_size,
            methods=tuple(
                MethodFacts(
                    method.name,
                    method.registration.dispatch_name,
                    Execute.RANK_ZERO.name if method.registration.rank_zero_only else Execute.ALL.name,
                    method.registration.blocking,
                )
                for method in methods
            ),
        )
    )
    _announce_workers(group, pool, workers)


def announce_replaced(group: str, pool: RayResourcePool, workers: WorkerSet, reason: str) -> None:
    """Record that a group has other workers now."""
    runtime = pool.runtime
    runtime.bus.emit(
        GroupRebuilt(
            at_ns=runtime.clock.now_ns(),
            group=group,
            pool=pool.name,
            world_size=workers.world_size,
            generation=pool.generation,
            reason=reason,
        )
    )
    _announce_workers(group, pool, workers)


def announce_end(runtime: Runtime, group: str, world_size: int, dead: set[int], reason: str) -> None:
    """Record that every worker that is not dead ends on purpose; from here on its end is not a death."""
    ended = [rank for rank in range(world_size) if rank not in dead]
    dead.update(ended)
    now_ns = runtime.clock.now_ns()
    for rank in ended:
        runtime.bus.emit(WorkerEnded(now_ns, group, rank, died=False, reason=reason))


def announce_clock(runtime: Runtime, group: str, rank: int, clock: ClockAlignment) -> None:
    """Record a worker's clock offset to the driver's clock, if that is new, or known much better than before."""
    news = clock.news()
    if news is not None:
        # The estimate leads to wall time; how far the two monotonic clocks are apart is the rest of it.
        ahead_ns = runtime.clock.anchor_ns - news[0]
        runtime.bus.emit(WorkerClock(runtime.clock.now_ns(), group, rank, ahead_ns, news[1]))


def _announce_workers(group: str, pool: RayResourcePool, workers: WorkerSet) -> None:
    runtime = pool.runtime
    rows = zip(workers.placement.slots, workers.names, workers.identities, workers.actors, strict=True)
    for slot, name, identity, actor in rows:
        runtime.bus.emit(
            WorkerStarted(
                at_ns=runtime.clock.now_ns(),
                group=group,
                pool=pool.name,
                rank=slot.index,
                local_rank=slot.local_index,
                name=name,
                pid=identity.pid,
                node=slot.node,
                actor_id=runtime.cluster.actor_id(actor),
                devices=identity.devices,
            )
        )
        announce_clock(runtime, group, slot.index, workers.clocks[slot.index])


def end_group(
    runtime: Runtime,
    group: str,
    pool: str,
    world_size: int,
    actors: Sequence[ActorHandle],
    dead: set[int],
    reason: str = "the group was closed",
) -> None:
    """End ``actors`` and record that the group is gone; runs on close, when it is collected, or at the driver's exit.

    A group that shares its processes with others passes no actors: their own group ends them. Nor does one whose
    workers live on; ``reason`` then says so.
    """
    runtime.safe_point.withdraw_for(group)
    ended = [rank for rank in range(world_size) if rank not in dead]
    # Before they are killed: a call still in flight would else report each as a death.
    dead.update(ended)
    living = set(ended)
    runtime.cluster.retire(
        [actor for rank, actor in enumerate(actors) if rank in living], runtime.health_settings.close_timeout_s
    )
    now_ns = runtime.clock.now_ns()
    for rank in ended:
        runtime.bus.emit(WorkerEnded(now_ns, group, rank, died=False, reason=reason))
    runtime.bus.emit(GroupClosed(now_ns, group, pool))
