"""Replacing a group's workers while the object that the driver holds stays valid.

First ``prepare``: new workers come up beside the old ones, nothing is switched. Then, with no call in flight,
``hand_over`` moves the state and ``switch`` puts the new workers in the old ones' place. Until ``switch`` everything
can be taken back by ``abandon``. Groups that are views of a role share its processes: they switch with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from core.cluster import ActorHandle, Placement, Ref
from core.errors import CallTimeoutError, PoolClosedError, WorkerDiedError
from core.group.group_state import GroupState
from core.group.start import fetch_patiently, start_workers
from core.group.worker_set import WorkerSet
from core.lifecycle.survivors import check_survivors, collect_states, survivors_of
from core.pool import RayResourcePool
from core.worker import StatePolicy, entries, savers, state_policy
from core.worker.call_header import plain_header

_SAVE_STATE = plain_header("save_state", materialize=False, views=False).pack()


def _never() -> bool:
    return False


def prepare(
    group: GroupState,
    placement: Placement,
    pool: RayResourcePool | None = None,
    timeout_s: float | None = None,
    is_cancelled: Callable[[], bool] = _never,
) -> WorkerSet:
    """Start new workers of ``group`` on ``placement`` and build them; the group goes on with those it has.

    The slots must have room for them beside the old ones, and the caller makes sure that no other group takes it.
    ``pool`` is where the group will be, its own when not given. ``is_cancelled`` is called now and then.

    Raises:
        WorkerStartError: A constructor raised or a process ended; all new workers are gone again.
        CallTimeoutError: They were not up in time, or the start was cancelled.
    """
    root = group.root
    settings = root.settings
    request = settings.start.request(
        root.name, root.next_name_prefix(), settings.class_args, pool or root.pool, placement
    )
    if timeout_s is not None:
        request = replace(request, timeout_s=min(timeout_s, request.timeout_s))
    return start_workers(root.runtime.cluster, root.runtime.clock, request, is_cancelled)


def abandon(group: GroupState, workers: WorkerSet) -> None:
    """End new workers that will not be used; where the cluster was shut down meanwhile, they ended with it."""
    if group.runtime.connected:
        for actor in workers.actors:
            group.runtime.cluster.kill(actor)


def save_state(group: GroupState, timeout_s: float, can_roll_back: bool = True) -> tuple[Ref, ...]:
    """Have every worker save its state; return the references by rank, empty for a stateless class.

    The driver owns them: they outlive the workers, and their values do not come here. If ranks are known to be dead,
    only the others save theirs, and dead ranks have None. ``can_roll_back``: the old workers stay until the new ones
    have loaded the state.

    Raises:
        LiveStateError: Ranks are dead, and what the others hold is not enough, or may not be.
        WorkerError: ``save_state`` raised, or a worker is dead.
        CallTimeoutError: They were not done in time.
    """
    root = group.root
    user_class = root.settings.class_args.user_class
    if state_policy(user_class) is StatePolicy.STATELESS:
        return ()
    live = root.workers_for("save_state")
    if live.deaths.dead:
        check_survivors(root, live, can_roll_back)
        with hook_errors(root, "save_state", live.names, timeout_s):
            return collect_states(live, savers(user_class), survivors_of(live), timeout_s)
    return tuple(run_hook(root, live.workers.actors, live.names, "save_state", entries.RUN, (_SAVE_STATE,), timeout_s))


def hand_over(group: GroupState, workers: WorkerSet, states: Sequence[Ref], timeout_s: float) -> None:
    """Have every new worker load ``states``; nothing happens when there are none.

    Raises:
        WorkerError: ``load_state`` raised, or a worker is dead.
        CallTimeoutError: They were not done in time.
    """
    if states:
        load = entries.LOAD_STATE
        run_hook(group.root, workers.actors, workers.names, "load_state", load, tuple(states), timeout_s)


def switch(group: GroupState, workers: WorkerSet, reason: str, pool: RayResourcePool | None = None) -> None:
    """Put the new workers in the old ones' place, in ``pool`` if that is another, and end the old ones.

    No call may be in flight, or it ends with its workers. The group's place on the slots is the caller's to settle.

    Raises:
        PoolClosedError: The group was closed meanwhile; the new workers are ended too.
    """
    root = group.root
    if root.live is None:
        abandon(root, workers)
        raise PoolClosedError(f"group {root.name} was closed while its workers were replaced", state="closed")
    root.replace(workers, pool, reason)


def check_alive(group: GroupState, workers: WorkerSet, timeout_s: float) -> None:
    """Check that every new worker is still alive: it may have been up for a while.

    Raises:
        WorkerDiedError: One is gone.
        CallTimeoutError: One does not answer.
    """
    run_hook(group.root, workers.actors, workers.names, "ping", entries.PING, (), timeout_s)


def run_hook(
    group: GroupState,
    actors: Sequence[ActorHandle],
    names: Sequence[str],
    hook: str,
    entry: str,
    args: tuple[object, ...],
    timeout_s: float,
) -> list[Ref]:
    """Run a hook by an entry of the shell on every worker, wait for all; return references of what they returned."""
    cluster = group.runtime.cluster
    with hook_errors(group, hook, names, timeout_s):
        submitted = [cluster.submit(actor, entry, args, {}) for actor in actors]
        fetch_patiently(cluster, [one.receipt for one in submitted], time.monotonic() + timeout_s)
    return [one.result for one in submitted]


@contextmanager
def hook_errors(group: GroupState, hook: str, names: Sequence[str], timeout_s: float) -> Iterator[None]:
    """Name the rank of a worker that dies in a hook, and the hook that is not done in time."""
    try:
        yield
    except WorkerDiedError as error:
        raise died_in(group, hook, names, error) from None
    except CallTimeoutError:
        raise
    except TimeoutError:
        raise CallTimeoutError(
            f"{hook} of {group.name} was not done on all {len(names)} ranks after {timeout_s:.1f} s",
            group=group.name,
            method=hook,
            timeout_s=timeout_s,
        ) from None


def died_in(group: GroupState, hook: str, names: Sequence[str], error: WorkerDiedError) -> WorkerDiedError:
    """Return the error of a worker that died in a hook, with its rank among ``names``."""
    rank = names.index(error.worker) if error.worker in names else error.rank
    return WorkerDiedError(
        f"rank {rank} of {group.name} (worker {error.worker or '?'}) died in {hook}: {error}",
        group=group.name,
        rank=rank,
        node=error.node,
        method=hook,
        worker=error.worker,
        pid=error.pid,
    )
