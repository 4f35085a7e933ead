"""Changing a group whose processes stay: they get new rank facts, others are started or ended.

For classes with a ``reconfigure`` hook. New processes come up beforehand but are not built: a constructor that joins a
process group would wait there for those that stay. ``reconfigure`` builds them and reconfigures the others at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.cluster import ActorHandle, Placement
from core.cluster.holdings import slot_keys
from core.errors import CallTimeoutError, StateError, WorkerDiedError
from core.group.group_state import GroupState
from core.group.start import (
    StartRequest,
    align_clocks,
    construct_on,
    fetch_patiently,
    rank_variables,
    rendezvous_at,
    spawn_worker,
    worker_names,
)
from core.group.worker_set import WorkerSet
from core.lifecycle.replace_workers import died_in, run_hook
from core.pool import RayResourcePool
from core.worker import entries
from core.worker.call_header import plain_header

_log = logging.getLogger("podium.control")
_RECONFIGURE = plain_header("reconfigure", materialize=False, views=False).pack()


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """A process for every rank to come; ``stays`` has the old rank of those that are in the group already, by rank."""

    request: StartRequest
    names: tuple[str, ...]
    actors: tuple[ActorHandle, ...]
    stays: tuple[int | None, ...]

    @property
    def new(self) -> tuple[int, ...]:
        """Return the ranks of new processes."""
        return tuple(rank for rank, old in enumerate(self.stays) if old is None)

    @property
    def kept(self) -> tuple[tuple[int, int], ...]:
        """Return new and old rank of the processes that stay."""
        return tuple((rank, old) for rank, old in enumerate(self.stays) if old is not None)


def spawn_missing(
    group: GroupState,
    placement: Placement,
    pool: RayResourcePool,
    timeout_s: float,
    is_cancelled: Callable[[], bool],
) -> Reconfiguration:
    """Start processes on the slots of ``placement`` where the group has none, and wait until they answer.

    Raises:
        WorkerDiedError: One ended at once; all new ones are gone again.
        TimeoutError: They were not up in time, or the start was cancelled.
    """
    root = group.root
    workers = root.workers_for("reconfigure").workers
    settings = root.settings
    request = settings.start.request(root.name, root.next_name_prefix(), settings.class_args, pool, placement)
    request = replace(request, timeout_s=min(timeout_s, request.timeout_s))
    old_rank = {key: rank for rank, key in enumerate(slot_keys(root.pool.placement_now))}
    stays = tuple(old_rank.get(key) for key in slot_keys(placement))
    names, actors = list(worker_names(request)), []
    cluster = root.runtime.cluster
    made: list[ActorHandle] = []
    try:
        for rank, old in enumerate(stays):
            if old is None:
                made.append(spawn_worker(cluster, request, rank, names[rank]))
                actors.append(made[-1])
            else:
                names[rank] = workers.names[old]
                actors.append(workers.actors[old])
        pings = [cluster.submit(actor, entries.PING, (), {}).receipt for actor in made]
        fetch_patiently(cluster, pings, time.monotonic() + request.timeout_s, is_cancelled)
    except BaseException:
        for actor in made:
            cluster.kill(actor)
        raise
    return Reconfiguration(request, tuple(names), tuple(actors), stays)


def check_stays(group: GroupState, change: Reconfiguration | None, timeout_s: float) -> None:
    """Check that the processes that are to stay live, and are those that ``change`` counts on if there is one yet.

    Before any of them is changed: a group that was restarted meanwhile can only be left as it is.

    Raises:
        StateError: The group was restarted since.
        WorkerDiedError: One is gone.
        CallTimeoutError: One does not answer.
    """
    root = group.root
    workers = root.workers_for("reconfigure").workers
    kept = () if change is None else change.kept
    if change is not None and any(change.actors[rank] is not workers.actors[old] for rank, old in kept):
        raise StateError(
            f"group {root.name} was restarted since this change was prepared; ask again", state="restarted"
        )
    # A process that is to end anyhow may be gone already.
    asked = [old for _, old in kept] or list(range(workers.world_size))
    actors, names = [workers.actors[old] for old in asked], [workers.names[old] for old in asked]
    run_hook(root, actors, names, "ping", entries.PING, (), timeout_s)


def reconfigure(group: GroupState, change: Reconfiguration, timeout_s: float) -> WorkerSet:
    """Give those that stay their new ranks and build the others; both may wait for each other.

    On failure ``take_back`` is due.

    Raises:
        WorkerError: ``reconfigure`` or a constructor raised, or a process is gone.
        CallTimeoutError: They were not done in time.
    """
    root = group.root
    cluster, request, actors = root.runtime.cluster, change.request, change.actors
    began = time.monotonic()
    deadline = began + timeout_s
    try:
        rendezvous = request.rendezvous or rendezvous_at(cluster, actors[0], request, deadline)
        placed = [
            cluster.submit(
                actors[rank], entries.SET_RANK, (rank, rank_variables(request.placement, rank, rendezvous)), {}
            ).receipt
            for rank, _ in change.kept
        ]
        fetch_patiently(cluster, placed, deadline)
        reconfigured = [
            cluster.submit(actors[rank], entries.RUN, (_RECONFIGURE,), {}).receipt for rank, _ in change.kept
        ]
        built = [construct_on(cluster, actors[rank], request, rank, rendezvous) for rank in change.new]
        values = fetch_patiently(cluster, [*built, *reconfigured], deadline)
    except WorkerDiedError as error:
        raise died_in(root, "reconfigure", change.names, error) from None
    except TimeoutError:
        raise CallTimeoutError(
            f"{root.name} was not reconfigured on all {len(actors)} ranks after {timeout_s:.1f} s",
            group=root.name,
            method="reconfigure",
            timeout_s=timeout_s,
        ) from None
    new_identities = dict(zip(change.new, values, strict=False))
    new_clocks = align_clocks(cluster, root.runtime.clock, [actors[rank] for rank in change.new], deadline)
    clocks = dict(zip(change.new, new_clocks, strict=True))
    before = root.started
    return WorkerSet(
        actors=actors,
        names=change.names,
        identities=tuple(
            new_identities[rank] if old is None else before.identities[old] for rank, old in enumerate(change.stays)
        ),
        clocks=tuple(clocks[rank] if old is None else before.clocks[old] for rank, old in enumerate(change.stays)),
        placement=request.placement,
        master_addr=rendezvous[0],
        master_port=rendezvous[1],
        took_s=time.monotonic() - began,
    )


def discard(group: GroupState, change: Reconfiguration) -> None:
    """End the new processes, unless the cluster was shut down meanwhile."""
    if group.runtime.connected:
        for rank in change.new:
            group.runtime.cluster.kill(change.actors[rank])


def take_back(group: GroupState, change: Reconfiguration, timeout_s: float) -> None:
    """Give those that stay their old ranks again, after ``reconfigure`` failed.

    One that died meanwhile is handled by the group, as a death at any other time is. The others are not asked to
    reconfigure then: they would wait for it, and no call is made on them before the group was restarted.

    Raises:
        WorkerError: ``reconfigure`` raised: the group cannot be used any more.
        TimeoutError: They were not done in time.
    """
    root = group.root
    cluster, before = root.runtime.cluster, root.started
    placement = root.pool.placement_now
    rendezvous = before.master_addr, before.master_port
    deadline = time.monotonic() + timeout_s
    ranks_and_variables = {rank: (old, rank_variables(placement, old, rendezvous)) for rank, old in change.kept}
    try:
        for entry in (entries.SET_RANK, entries.RUN):
            submitted = [
                cluster.submit(change.actors[rank], entry, place if entry == entries.SET_RANK else (_RECONFIGURE,), {})
                for rank, place in ranks_and_variables.items()
            ]
            fetch_patiently(cluster, [one.receipt for one in submitted], deadline)
    except WorkerDiedError as error:
        _log.warning("%s", died_in(root, "reconfigure", before.names, error))
