"""Giving a group other workers while the object that the driver holds stays valid.

First ``prepare``: new workers come up beside the old ones, nothing is switched. Then, with no call in flight,
``hand_over`` moves the state and ``switch`` puts the new workers in the old ones' place. Until ``switch`` everything
can be taken back by ``abandon``. Groups that are views of a role share its processes: they switch with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from core.cluster import ActorHandle, Placement, Ref
from core.errors import CallTimeoutError, PoolClosedError, WorkerDiedError
from core.group.announce import announce_end, announce_rebuilt
from core.group.start import Started, fetch_patiently, start_workers
from core.lifecycle.survivors import check_survivors, handed_out, survivors_of
from core.pool import RayResourcePool
from core.runtime import Runtime
from core.worker import Header, Keeping, keeping, savers

if TYPE_CHECKING:
    from core.group.worker_group import RayWorkerGroup

_SAVE = Header("save_state", -1, 0, False, "").pack()


@dataclass(frozen=True, slots=True)
class Prepared:
    """New workers of a group on slots, built and idle."""

    started: Started
    placement: Placement


def _never() -> bool:
    return False


def prepare(
    group: RayWorkerGroup,
    placement: Placement,
    pool: RayResourcePool | None = None,
    timeout_s: float | None = None,
    given_up: Callable[[], bool] = _never,
) -> Prepared:
    """Start new workers of ``group`` on ``placement`` and build them; the group goes on with those it has.

    The slots must have room for them beside the old ones, and the caller sees to that nobody else takes it. ``pool`` is
    where the group will be, its own when not given. ``given_up`` is asked now and then whether to stop.

    Raises:
        WorkerStartError: A constructor raised or a process ended; all new workers are gone again.
        CallTimeoutError: They were not up in time, or ``given_up`` said so.
    """
    root = root_of(group)
    runtime, settings = root._runtime, root._settings
    root._n_rebuilds += 1
    # Names are unique on the cluster, and those of the old workers are taken while they live.
    prefix = f"{root.name_prefix.rstrip('_')}_r{root._n_rebuilds}_"
    request = settings.request(root.name, prefix, root._class_args, pool or root._pool, placement)
    if timeout_s is not None:
        request = replace(request, timeout_s=min(timeout_s, request.timeout_s))
    return Prepared(start_workers(runtime.cluster, runtime.clock, request, given_up), placement)


def abandon(group: RayWorkerGroup, prepared: Prepared) -> None:
    """End new workers that will not be used; where the cluster was let go of meanwhile, they ended with it."""
    if group._runtime.connected:
        for actor in prepared.started.actors:
            group._runtime.cluster.kill(actor)


def save_state(group: RayWorkerGroup, timeout_s: float, has_way_back: bool = True) -> tuple[Ref, ...]:
    """Ask every worker for its state; return the references by rank, empty for a stateless class.

    The driver owns them: they outlive the workers, and their values do not come here. Where ranks are known to be dead
    the others are asked, and None stands for theirs. ``has_way_back`` says that the old workers stay until the new ones
    have taken the state over.

    Raises:
        LiveStateError: Ranks are dead, and what the others hold is not enough, or may not be.
        WorkerError: ``save_state`` raised, or a worker is dead.
        CallTimeoutError: They were not done in time.
    """
    root = root_of(group)
    if keeping(root._class_args.user_class) is Keeping.STATELESS:
        return ()
    crew = root.crew_for("save_state")
    if crew.dead:
        check_survivors(root, crew, has_way_back)
        with told(root, "save_state", crew.names, timeout_s):
            return handed_out(crew, savers(root._class_args.user_class), survivors_of(crew), timeout_s)
    return tuple(ask_each(root, crew.actors, "_podium_run", (_SAVE,), timeout_s, crew.names))


def hand_over(group: RayWorkerGroup, prepared: Prepared, states: Sequence[Ref], timeout_s: float) -> None:
    """Let every new worker take over ``states``; nothing happens when there are none.

    Raises:
        WorkerError: ``load_state`` raised, or a worker is dead.
        CallTimeoutError: They were not done in time.
    """
    if states:
        started = prepared.started
        ask_each(root_of(group), started.actors, "_podium_load_state", tuple(states), timeout_s, started.names)


def switch(group: RayWorkerGroup, prepared: Prepared, reason: str, pool: RayResourcePool | None = None) -> None:
    """Put the new workers in the old ones' place, in ``pool`` if that is another, and end the old ones.

    No call may be in flight, or it ends with its workers. The group's place on the slots is the caller's to settle.

    Raises:
        PoolClosedError: The group was closed meanwhile; the new workers are ended too.
    """
    root = root_of(group)
    crew = root._crew
    if crew is None:
        abandon(root, prepared)
        raise PoolClosedError(f"group {root.name} was closed while it was rebuilt", state="closed")
    for one in _family(root):
        old = one._crew
        if old is None:
            continue
        one._ending.detach()
        announce_end(one._runtime, one.name, old.world_size, old.dead, reason)
        one._pool = pool or one._pool
        before, after = old.world_size, len(prepared.started.actors)
        if before != after:
            one._since = f"{one.name} has {after} ranks since {_clock(one._runtime)}, it had {before}: {reason}"
        one._take_on(prepared.started)
        announce_rebuilt(one.name, one._pool, prepared.started, reason)
    for actor in crew.actors:
        if not any(actor is staying for staying in prepared.started.actors):
            root._runtime.cluster.kill(actor)


def check_up(group: RayWorkerGroup, prepared: Prepared, timeout_s: float) -> None:
    """See that every new worker still lives: it may have been up for a while.

    Raises:
        WorkerDiedError: One is gone.
        CallTimeoutError: One does not answer.
    """
    started = prepared.started
    ask_each(root_of(group), started.actors, "_podium_ping", (), timeout_s, started.names)


def retire(group: RayWorkerGroup, reason: str) -> None:
    """End the workers of a group that is to be given others which need their room; its calls must be kept off."""
    root = root_of(group)
    for one in _family(root):
        if one._crew is not None:
            announce_end(one._runtime, one.name, one._crew.world_size, one._crew.dead, reason)
    for actor in root._crew.actors if root._crew is not None else ():
        root._runtime.cluster.kill(actor)


def root_of(group: RayWorkerGroup) -> RayWorkerGroup:
    """Return the group that started the processes: itself, or the one that a role's view is of."""
    return group if group._parent is None else root_of(group._parent)


def _clock(runtime: Runtime) -> str:
    return datetime.fromtimestamp(runtime.clock.now_ns() / 1e9, UTC).strftime("%H:%M:%S UTC")


def _family(root: RayWorkerGroup) -> Iterator[RayWorkerGroup]:
    yield root
    for view in list(root._views):
        yield from _family(view)


def ask_each(
    root: RayWorkerGroup,
    actors: Sequence[ActorHandle],
    entry: str,
    args: tuple[object, ...],
    timeout_s: float,
    names: Sequence[str],
) -> list[Ref]:
    """Run a hook on every worker and wait until all are done; return the references of what they returned."""
    cluster = root._runtime.cluster
    method = "save_state" if args == (_SAVE,) else entry.removeprefix("_podium_")
    with told(root, method, names, timeout_s):
        submitted = [cluster.submit(actor, entry, args, {}) for actor in actors]
        fetch_patiently(cluster, [one.receipt for one in submitted], time.monotonic() + timeout_s)
    return [one.result for one in submitted]


@contextmanager
def told(root: RayWorkerGroup, method: str, names: Sequence[str], timeout_s: float) -> Iterator[None]:
    """Say of a worker that dies in a hook who it was, and of one that is not done in time in which hook."""
    try:
        yield
    except WorkerDiedError as error:
        raise died_in(root, method, names, error) from None
    except CallTimeoutError:
        raise
    except TimeoutError:
        raise CallTimeoutError(
            f"{method} of {root.name} was not done on all {len(names)} ranks after {timeout_s:.1f} s",
            group=root.name,
            method=method,
            timeout_s=timeout_s,
        ) from None


def died_in(root: RayWorkerGroup, method: str, names: Sequence[str], error: WorkerDiedError) -> WorkerDiedError:
    """Return the error of a worker that died in a hook, with its place among ``names``."""
    rank = names.index(error.worker) if error.worker in names else error.rank
    return WorkerDiedError(
        f"rank {rank} of {root.name} (worker {error.worker or '?'}) died in {method}: {error}",
        group=root.name,
        rank=rank,
        node=error.node,
        method=method,
        worker=error.worker,
        pid=error.pid,
    )
