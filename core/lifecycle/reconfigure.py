"""A change of a group whose processes stay: they are told their new places, others are started or ended.

For classes with a ``reconfigure`` hook. New processes come up beforehand but are not built: a constructor that joins a
process group would wait there for those that stay. ``regroup`` builds them and reconfigures the others at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from core.cluster import ActorHandle, Placement
from core.cluster.holdings import slot_keys
from core.errors import CallTimeoutError, StateError, WorkerDiedError
from core.group.start import (
    Started,
    StartRequest,
    align_clocks,
    construct_on,
    fetch_patiently,
    place_variables,
    rendezvous_at,
    spawn_worker,
    worker_names,
)
from core.lifecycle.replace_workers import Prepared, ask_each, died_in, root_of
from core.pool import RayResourcePool
from core.worker import Header

if TYPE_CHECKING:
    from core.group.worker_group import RayWorkerGroup

_log = logging.getLogger("podium.control")
_RECONFIGURE = Header("reconfigure", -1, 0, False, "").pack()


@dataclass(frozen=True, slots=True)
class Regrouping:
    """Processes for every rank to come; ``stays`` has the old rank of those that are in the group already, by rank."""

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
    group: RayWorkerGroup,
    placement: Placement,
    pool: RayResourcePool,
    timeout_s: float,
    given_up: Callable[[], bool],
) -> Regrouping:
    """Start processes on the slots of ``placement`` where the group has none, and wait until they answer.

    Raises:
        WorkerDiedError: One ended at once; all new ones are gone again.
        TimeoutError: They were not up in time, or ``given_up`` said so.
    """
    root = root_of(group)
    crew = root.crew_for("reconfigure")
    root._n_rebuilds += 1
    prefix = f"{root.name_prefix.rstrip('_')}_r{root._n_rebuilds}_"
    request = root._settings.request(root.name, prefix, root._class_args, pool, placement)
    request = replace(request, timeout_s=min(timeout_s, request.timeout_s))
    old_rank = {key: rank for rank, key in enumerate(slot_keys(root._pool.placement_now))}
    stays = tuple(old_rank.get(key) for key in slot_keys(placement))
    names, actors = list(worker_names(request)), []
    cluster = root._runtime.cluster
    made: list[ActorHandle] = []
    try:
        for rank, old in enumerate(stays):
            if old is None:
                made.append(spawn_worker(cluster, request, rank, names[rank]))
                actors.append(made[-1])
            else:
                names[rank] = crew.names[old]
                actors.append(crew.actors[old])
        pings = [cluster.submit(actor, "_podium_ping", (), {}).receipt for actor in made]
        fetch_patiently(cluster, pings, time.monotonic() + request.timeout_s, given_up)
    except BaseException:
        for actor in made:
            cluster.kill(actor)
        raise
    return Regrouping(request, tuple(names), tuple(actors), stays)


def check_stays(group: RayWorkerGroup, regrouping: Regrouping | None, timeout_s: float) -> None:
    """See that the processes that are to stay live, and are those that ``regrouping`` counts on if there is one yet.

    Before anything is told to any of them: a group that was restarted meanwhile can only be left as it is.

    Raises:
        StateError: The group was restarted since.
        WorkerDiedError: One is gone.
        CallTimeoutError: One does not answer.
    """
    root = root_of(group)
    crew = root.crew_for("reconfigure")
    kept = () if regrouping is None else regrouping.kept
    if regrouping is not None and any(regrouping.actors[rank] is not crew.actors[old] for rank, old in kept):
        raise StateError(
            f"group {root.name} was restarted since this change was prepared; ask again", state="restarted"
        )
    # A process that is to end anyhow may be gone already.
    asked = [old for _, old in kept] or list(range(crew.world_size))
    actors, names = [crew.actors[old] for old in asked], [crew.names[old] for old in asked]
    ask_each(root, actors, "_podium_ping", (), timeout_s, names)


def regroup(group: RayWorkerGroup, regrouping: Regrouping, timeout_s: float) -> Prepared:
    """Tell those that stay their new place and build the others; both may wait for each other.

    On failure ``take_back`` is due.

    Raises:
        WorkerError: ``reconfigure`` or a constructor raised, or a process is gone.
        CallTimeoutError: They were not done in time.
    """
    root = root_of(group)
    cluster, request, actors = root._runtime.cluster, regrouping.request, regrouping.actors
    began = time.monotonic()
    deadline = began + timeout_s
    try:
        rendezvous = request.rendezvous or rendezvous_at(cluster, actors[0], request, deadline)
        settled = [
            cluster.submit(
                actors[rank], "_podium_settle", (rank, place_variables(request.placement, rank, rendezvous)), {}
            ).receipt
            for rank, _ in regrouping.kept
        ]
        fetch_patiently(cluster, settled, deadline)
        told = [cluster.submit(actors[rank], "_podium_run", (_RECONFIGURE,), {}).receipt for rank, _ in regrouping.kept]
        built = [construct_on(cluster, actors[rank], request, rank, rendezvous) for rank in regrouping.new]
        values = fetch_patiently(cluster, [*built, *told], deadline)
    except WorkerDiedError as error:
        raise died_in(root, "reconfigure", regrouping.names, error) from None
    except TimeoutError:
        raise CallTimeoutError(
            f"{root.name} was not reconfigured on all {len(actors)} ranks after {timeout_s:.1f} s",
            group=root.name,
            method="reconfigure",
            timeout_s=timeout_s,
        ) from None
    new_identities = dict(zip(regrouping.new, values, strict=False))
    new_clocks = align_clocks(cluster, root._runtime.clock, [actors[rank] for rank in regrouping.new], deadline)
    clocks = dict(zip(regrouping.new, new_clocks, strict=True))
    before = root._started
    started = Started(
        actors=actors,
        names=regrouping.names,
        identities=tuple(
            new_identities[rank] if old is None else before.identities[old] for rank, old in enumerate(regrouping.stays)
        ),
        clocks=tuple(clocks[rank] if old is None else before.clocks[old] for rank, old in enumerate(regrouping.stays)),
        master_addr=rendezvous[0],
        master_port=rendezvous[1],
        took_s=time.monotonic() - began,
    )
    return Prepared(started, request.placement)


def discard(group: RayWorkerGroup, regrouping: Regrouping) -> None:
    """End the new processes, unless the cluster was let go of meanwhile."""
    if group._runtime.connected:
        for rank in regrouping.new:
            group._runtime.cluster.kill(regrouping.actors[rank])


def take_back(group: RayWorkerGroup, regrouping: Regrouping, timeout_s: float) -> None:
    """Tell those that stay their old place again, after ``regroup`` failed.

    One that died meanwhile is the group's to deal with, as a death at any other time is. The others are not asked to
    reconfigure then: they would wait for it, and no call is made on them before the group was restarted.

    Raises:
        WorkerError: ``reconfigure`` raised: the group cannot be used any more.
        TimeoutError: They were not done in time.
    """
    root = root_of(group)
    cluster, before = root._runtime.cluster, root._started
    placement = root._pool.placement_now
    rendezvous = before.master_addr, before.master_port
    deadline = time.monotonic() + timeout_s
    places = {rank: (old, place_variables(placement, old, rendezvous)) for rank, old in regrouping.kept}
    try:
        for entry in ("_podium_settle", "_podium_run"):
            asked = [
                cluster.submit(
                    regrouping.actors[rank], entry, place if entry == "_podium_settle" else (_RECONFIGURE,), {}
                )
                for rank, place in places.items()
            ]
            fetch_patiently(cluster, [one.receipt for one in asked], deadline)
    except WorkerDiedError as error:
        _log.warning("%s", died_in(root, "reconfigure", before.names, error))
