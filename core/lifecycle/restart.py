"""Restarting a group one of whose workers died: the next call builds it anew, with its state if that can be had.

It happens on the thread that makes that call, before the call is made: the one that had the death has raised, and
nothing of it is repeated. The survivors are ended too, for they may wait in a collective for the one that is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.cluster import Ref
from core.errors import CallTimeoutError, PodiumError, WorkerDiedError, WorkerMethodError, WorkerStartError
from core.events import Notice
from core.group.deaths import Case
from core.group.detached import FoundSlots
from core.group.in_flight import ranks_in_words
from core.group.worker_set import Crew
from core.health.evidence import NODE_DIED
from core.lifecycle.replace_workers import Prepared, abandon, check_up, hand_over, prepare, retire, root_of, switch
from core.lifecycle.replacement import slots_after
from core.lifecycle.survivors import handed_out, survivors_of
from core.runtime import OnDeath
from core.worker import Keeping, keeping, savers, unkept

if TYPE_CHECKING:
    from core.group.worker_group import RayWorkerGroup

_log = logging.getLogger("podium.health")
STATE_S = 20.0
"""How long survivors have to hand their state out; one that still waits for the dead rank never will."""
_LOAD_S = 300.0
_ALIVE_S = 2.0
"""How long a death among new workers may take to be known after another one's ``load_state`` raised."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the survivors handed out, by rank, and whose state not; without any ``lost`` says why all begins anew."""

    states: tuple[Ref, ...] = ()
    lost: str = ""
    anew: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.states:
            return f"without any state, {self.lost}"
        anew = f", but without that of {' and '.join(self.anew)}, no save_state and load_state" if self.anew else ""
        return f"with the survivors' state{anew}"


def restart_if_due(group: RayWorkerGroup, crew: Crew) -> bool:
    """Restart a group whose workers died, if that is its policy and its budget is not spent; return whether it was.

    What the survivors handed out is kept until a restart has succeeded: when this one fails the next call tries again.

    Raises:
        WorkerStartError: The new workers did not come up, or one of them died while it took the state over.
        CallTimeoutError: They were not up, or had not taken the state over, in time.
        PlacementError: A node died, and there is no other place for its slots.
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
        if root._restarts.n_tried >= policy.max_restarts:
            return False
        root._restarts.n_tried += 1
        try:
            _restart(root, crew, cases)
        except PodiumError as error:
            _tell_failure(root, error, policy.max_restarts)
            raise
        return True


def _restart(root: RayWorkerGroup, crew: Crew, cases: Sequence[Case]) -> None:
    began = time.monotonic()
    dead = ranks_in_words(sorted(case.victim.rank for case in cases))
    reason = f"restarted after {dead} died"
    saved = _saved_once(root, crew, reason)
    lost = {case.victim.node for case in cases if case.error is not None and case.error.how == NODE_DIED}
    placement = slots_after(root.resource_pool, lost) if lost else root.resource_pool.placement_now
    prepared = prepare(root, placement)
    if saved.states:
        try:
            _take_over(root, prepared, saved.states)
        except WorkerMethodError as error:
            # Half a state is worse than none: these workers are not the ones to go on with.
            abandon(root, prepared)
            saved = _Saved(lost=f"load_state could not do with what was left: {_first_line(error)}")
            root._restarts.saved = (root._crew, saved)
            prepared = prepare(root, placement)
        except BaseException:
            abandon(root, prepared)
            raise
    _go_on(root, prepared, f"{reason}, {saved}", time.monotonic() - began)


def _take_over(root: RayWorkerGroup, prepared: Prepared, states: Sequence[Ref]) -> None:
    """Have the new workers take the states over.

    Raises:
        WorkerMethodError: ``load_state`` raised while all of them lived.
        WorkerStartError: One of them died.
        CallTimeoutError: They were not done in time.
    """
    try:
        try:
            hand_over(root, prepared, states, _LOAD_S)
        except WorkerMethodError:
            # One that lost another in a collective says so before the other's end is known.
            with suppress(CallTimeoutError):
                check_up(root, prepared, _ALIVE_S)
            raise
    except WorkerDiedError as error:
        raise WorkerStartError(
            f"the restart of group {root.name} failed, its state is kept: {error.message}",
            group=root.name,
            rank=error.rank,
            node=error.node,
            method="load_state",
        ) from None


def _go_on(root: RayWorkerGroup, prepared: Prepared, reason: str, seconds: float) -> None:
    switch(root, prepared, reason)
    root._restarts.saved = None
    text = f"group {root.name} was {reason} (restart {root._restarts.n_tried}, {seconds:.1f} s)"
    root._runtime.bus.emit(Notice(root._runtime.clock.now_ns(), "warning", text))
    _log.warning(text)


def _tell_failure(root: RayWorkerGroup, error: PodiumError, max_restarts: int) -> None:
    n_tried = root._restarts.n_tried
    left = "the next call tries again" if n_tried < max_restarts else "no restart is left"
    text = f"restart {n_tried} of {max_restarts} of group {root.name} failed, {left}: {_first_line(error)}"
    root._runtime.bus.emit(Notice(root._runtime.clock.now_ns(), "error", text))
    _log.error(text)


def _saved_once(root: RayWorkerGroup, crew: Crew, reason: str) -> _Saved:
    """Have the survivors hand their state out and end them; after a restart that failed, return what they did then."""
    asked, saved = root._restarts.saved or (None, None)
    if asked is not root._crew or not isinstance(saved, _Saved):
        saved = _saved(root, crew)
        root._restarts.saved = (root._crew, saved)
        retire(root, reason)
    return saved


def _saved(root: RayWorkerGroup, crew: Crew) -> _Saved:
    """Have the survivors hand their state out; those that are dead stand as None in it."""
    user_class = root._class_args.user_class
    if keeping(user_class) is Keeping.STATELESS:
        return _Saved(lost="its class says that it has none")
    kept, anew = savers(user_class), unkept(user_class)
    if not kept:
        return _Saved(lost=f"{' and '.join(anew)} {'have' if len(anew) > 1 else 'has'} no save_state and load_state")
    survivors = survivors_of(crew)
    while survivors:
        try:
            return _Saved(handed_out(crew, kept, survivors, STATE_S), anew=anew)
        except TimeoutError:
            who = ranks_in_words(survivors)
            return _Saved(lost=f"{who} did not hand it out within {STATE_S:g} s, still in a call")
        except WorkerDiedError as error:
            rank = crew.names.index(error.worker) if error.worker in crew.names else -1
            if rank not in survivors:
                return _Saved(lost=f"a survivor died meanwhile: {_first_line(error)}")
            survivors.remove(rank)
        except PodiumError as error:
            return _Saved(lost=f"save_state failed: {_first_line(error)}")
    return _Saved(lost="nobody survived")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
