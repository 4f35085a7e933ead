"""Workers that exist already: found by their names or handles, asked who they are, and led as a group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.cluster import ActorHandle, Placement, Slot
from core.errors import CallTimeoutError, PlacementError, UsageError
from core.finalizers import Finalizer
from core.group.start import align_clocks, check_versions
from core.group.worker_set import WorkerSet
from core.pool import RayResourcePool
from core.pool.tenant import Tenant
from core.runtime import Runtime
from core.worker import RankFacts, WorkerIdentity, entries


class FoundSlots(RayResourcePool):
    """Stands for slots that others have reserved: nothing is reserved here and nothing given back.

    ``group`` is the one name in the record of all groups of a class over the same workers: some drivers make one at
    each transfer of weights. Its end is recorded when one is closed, or at the driver's exit.
    """

    group = ""
    is_announced = False
    ending: Finalizer | None = None

    def admit(self, group: Tenant) -> None:
        """Take the group of the workers that were found.

        Raises:
            PlacementError: Another group is wanted here; only who reserved the slots can place one.
        """
        if group.name != self.group:
            raise PlacementError(
                f"pool {self.name} stands for workers that were found, group {group.name} cannot be started on slots "
                f"that are not this driver's; make another pool for it",
                pool=self.name,
            )
        super().admit(group)

    @property
    def is_in_use(self) -> bool:
        """Whether the end of its group was not recorded yet."""
        return self.ending is not None and self.ending.is_due

    def release(self) -> None:
        """Leave the workers to their owner."""
        super().release()
        if self.ending is not None:
            self.ending()

    def _slot_keys(self) -> list[tuple[int, int]]:
        return []


@dataclass(frozen=True, slots=True)
class Found:
    """Workers that were found, in the order they were named; ``home`` is the name of their group, or of their pool."""

    runtime: Runtime
    home: str
    workers: WorkerSet


def slots_of_found(user_class: type, wanted: str, found: Found) -> FoundSlots:
    """Return what stands for the slots of workers that were found: the same for the same class, name and workers."""
    runtime, workers = found.runtime, found.workers
    key = (user_class, wanted, tuple(runtime.cluster.actor_id(actor) for actor in workers.actors))
    known = runtime.found_slots.get(key)
    if isinstance(known, FoundSlots) and known.is_in_use:
        return known
    name = runtime.free_pool_name(found.home or "found")
    pool = FoundSlots([workers.world_size], name_prefix=name, detached=True, runtime=runtime)
    pool.group = runtime.claim_group_name(wanted)
    pool.adopt_slots(replace(workers.placement, pool=pool.name), ())
    runtime.found_slots[key] = pool
    return pool


def find_workers(
    runtime: Runtime,
    names: Sequence[str] | None,
    handles: Sequence[ActorHandle] | None,
    timeout_s: float,
) -> Found:
    """Find workers by name, or take their handles, and ask each who it is.

    A worker's rank in the group is its place in the list; it keeps the rank that it was given when it was built.
    Handles are held strongly.

    Raises:
        UsageError: There are none, one is named twice, names and handles differ in number, or one is not a worker of
            Podium's.
        UnknownNameError: No worker of that name lives.
        WorkerDiedError: One is gone.
        VersionSkewError: One runs another Podium than this driver.
        CallTimeoutError: One did not answer in time: it may be busy.
    """
    deadline = time.monotonic() + timeout_s
    cluster = runtime.cluster
    if names is not None and handles is not None and len(names) != len(handles):
        raise UsageError(f"{len(names)} worker_names and {len(handles)} worker_handles do not belong together")
    actors = tuple(handles) if handles is not None else tuple(cluster.find(name) for name in names or ())
    known = tuple(names) if names is not None else tuple(cluster.actor_id(actor) for actor in actors)
    if not known or len(set(known)) != len(known):
        raise UsageError(f"a group needs workers, and each once; got {', '.join(known) or 'none'}")
    described = [_describe(runtime, actor, name, deadline) for actor, name in zip(actors, known, strict=True)]
    identities = tuple(identity for identity, _ in described)
    check_versions(identities, known)
    facts = described[0][1]
    placement = _placement("", [cluster.node_of(actor) for actor in actors])
    clocks = align_clocks(cluster, runtime.clock, actors, deadline)
    rendezvous = facts.master_addr, int(facts.master_port or 0)
    return Found(runtime, facts.group.rstrip("_"), WorkerSet(actors, known, identities, clocks, placement, *rendezvous))


def _describe(runtime: Runtime, actor: ActorHandle, name: str, deadline: float) -> tuple[WorkerIdentity, RankFacts]:
    runtime.cluster.adopt_actor(actor)
    try:
        asked = runtime.cluster.submit(actor, entries.DESCRIBE, (), {})
        (described,) = runtime.cluster.fetch([asked.result], max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise CallTimeoutError(
            f"worker {name} did not say who it is in time; it may be busy with another driver's call",
            method=entries.DESCRIBE,
        ) from None
    except AttributeError:
        raise UsageError(f"{name} is not a worker that Podium started; a group cannot use it") from None
    identity, facts = described
    return identity, facts


def _placement(pool: str, nodes: Sequence[str]) -> Placement:
    """Number the workers' slots by the nodes they are on."""
    order = list(dict.fromkeys(nodes))
    slots = []
    for index, node in enumerate(nodes):
        local_index = nodes[:index].count(node)
        slots.append(Slot(index, node, order.index(node), local_index, order.index(node), local_index))
    return Placement(pool, tuple(slots), ())
