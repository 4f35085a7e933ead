"""Restarting a group one of whose workers died: the next call builds it anew, with its state if that can be had.

It happens on the thread that makes that call, before the call is made: the one that had the death has raised, and
nothing of it is repeated. The survivors are ended too, for they may wait in a collective for the one that is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.cluster import Ref
from core.errors import PodiumError, WorkerDiedError, WorkerError
from core.events import Notice
from core.group.crew import Crew
from core.group.deaths import Case
from core.group.detached import FoundSlots
from core.group.inflight import ranks_in_words
from core.group.rebuild import Prepared, abandon, hand_over, prepare, retire, root_of, switch
from core.runtime import OnDeath
from core.worker import Header, hands_over
from core.worker.live import ReplicatedState

if TYPE_CHECKING:
    from core.group.worker_group import RayWorkerGroup

_log = logging.getLogger("podium.health")
STATE_S = 20.0
"""How long survivors have to hand their state out; one that still waits for the dead rank never will."""
_LOAD_S = 300.0


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the survivors handed out, by rank; without it ``lost`` says why the group begins anew."""

    states: tuple[Ref, ...] = ()
    lost: str = ""


def restart_if_due(group: RayWorkerGroup, crew: Crew) -> bool:
    """Restart a group whose workers died, if that is its policy and its budget is not spent; return whether it was.

    Raises:
        WorkerStartError: The new workers did not come up; the next call tries again.
    """
    cases = crew.deaths.looked_into()
    if not cases:
        return False
    root = root_of(group)
    policy = crew.deaths.policy_of(crew)
    if policy.on_death is not OnDeath.RESTART or isinstance(root._pool, FoundSlots):
        return False
    with root._restarts.lock:
        if group._crew is not crew:
            return True  # Another thread's call was here first.
        if root._restarts.n_done >= policy.max_restarts:
            return False
        root._restarts.n_done += 1
        _restart(root, crew, cases)
        return True


def _restart(root: RayWorkerGroup, crew: Crew, cases: Sequence[Case]) -> None:
    began = time.monotonic()
    dead = ranks_in_words(sorted(case.victim.rank for case in cases))
    saved = _saved_once(root, crew)
    reason = f"restarted after {dead} died"
    retire(root, reason)
    prepared = prepare(root, root.resource_pool.placement_now)
    if saved.states:
        try:
            hand_over(root, prepared, saved.states, _LOAD_S)
        except (WorkerError, TimeoutError) as error:
            # Half a state is worse than none: these workers are not the ones to go on with.
            abandon(root, prepared)
            saved = _Saved(lost=f"load_state could not do with what was left: {_first_line(error)}")
            root._restarts.saved = (crew, saved)
            prepared = prepare(root, root.resource_pool.placement_now)
        except BaseException:
            abandon(root, prepared)
            raise
    how = "with the survivors' state" if saved.states else f"without any state, {saved.lost}"
    _go_on(root, prepared, f"{reason}, {how}", time.monotonic() - began)


def _go_on(root: RayWorkerGroup, prepared: Prepared, reason: str, seconds: float) -> None:
    switch(root, prepared, reason)
    root._restarts.saved = None
    text = f"group {root.name} was {reason} (restart {root._restarts.n_done}, {seconds:.1f} s)"
    root._runtime.bus.emit(Notice(root._runtime.clock.now_ns(), "warning", text))
    _log.warning(text)


def _saved_once(root: RayWorkerGroup, crew: Crew) -> _Saved:
    """Have the survivors hand their state out; if they ended in a restart that failed, return what they did then."""
    asked, saved = root._restarts.saved or (None, None)
    if asked is not crew or not isinstance(saved, _Saved):
        saved = _saved(root, crew)
        root._restarts.saved = (crew, saved)
    return saved


def _saved(root: RayWorkerGroup, crew: Crew) -> _Saved:
    """Have the survivors hand their state out; those that are dead stand as None in it."""
    user_class = root._class_args.user_class
    if getattr(user_class, "stateless", False):
        return _Saved(lost="its class says that it has none")
    if not hands_over(user_class):
        return _Saved(lost=f"{user_class.__name__} has no save_state and load_state")
    survivors = [rank for rank in range(crew.world_size) if rank not in crew.dead]
    if not survivors:
        return _Saved(lost="nobody survived")
    replicated = issubclass(user_class, ReplicatedState)
    method, asked = ("save_replica", survivors[:1]) if replicated else ("save_state", survivors)
    header = Header(method, -1, 0, False, "").pack()
    cluster = crew.cluster
    try:
        submitted = {rank: cluster.submit(crew.actors[rank], "_podium_run", (header,), {}) for rank in asked}
        cluster.fetch([one.receipt for one in submitted.values()], STATE_S)
    except TimeoutError:
        return _Saved(lost=f"{ranks_in_words(asked)} did not hand it out within {STATE_S:g} s, still in a call")
    except WorkerDiedError as error:
        return _Saved(lost=f"a survivor died meanwhile: {_first_line(error)}")
    except PodiumError as error:
        return _Saved(lost=f"{method} failed: {_first_line(error)}")
    nothing = cluster.put(None)
    return _Saved(tuple(submitted[rank].result if rank in submitted else nothing for rank in range(crew.world_size)))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
