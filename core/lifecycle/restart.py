"""Restarting a group one of whose workers died: the next call starts new workers, with the state if it can be had.

It happens on the thread that makes that call, at its safe point: the call that met the death has raised, and nothing
of it is repeated. The survivors are ended too, for they may wait in a collective for the rank that is gone.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from core.cluster import Ref
from core.errors import (
    CallTimeoutError,
    DeathKind,
    PodiumError,
    WorkerDiedError,
    WorkerMethodError,
    WorkerStartError,
)
from core.events import Notice
from core.group.detached import FoundSlots
from core.group.group_state import GroupState
from core.group.live_workers import LiveWorkers
from core.group.worker_set import WorkerSet
from core.health.in_flight import ranks_in_words
from core.health.investigator import Case
from core.lifecycle.replace_workers import abandon, check_alive, hand_over, prepare, switch
from core.lifecycle.replacement import slots_after
from core.lifecycle.survivors import collect_states, survivors_of
from core.runtime import OnDeath
from core.worker import StatePolicy, savers, state_policy, unsaved

_log = logging.getLogger("podium.health")
STATE_S = 20.0
"""How long survivors have to save their state; one that still waits for the dead rank never will."""
_LOAD_S = 300.0
_ALIVE_S = 2.0
"""How long a death among new workers may take to be known after another one's ``load_state`` raised."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the survivors saved, by rank, and which classes saved nothing; ``lost`` says why there is no state."""

    states: tuple[Ref, ...] = ()
    lost: str = ""
    unsaved: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.states:
            return f"without any state, {self.lost}"
        missing = " and ".join(self.unsaved)
        without = f", but without that of {missing}, no save_state and load_state" if self.unsaved else ""
        return f"with the survivors' state{without}"


def schedule_restart(group: object) -> None:
    """Have the next call of a group restart it if its policy says so; called when the first of its workers died."""
    if isinstance(group, GroupState) and group.live is not None:
        group.runtime.safe_point.register_for(group.name, _DueRestart(group, group.live))


class _DueRestart:
    """The restart of a group that waits for the group's next call. Holds neither the group nor its workers."""

    def __init__(self, group: GroupState, live: LiveWorkers) -> None:
        self._group, self._live = weakref.ref(group), weakref.ref(live)

    def __call__(self) -> bool:
        """Restart the group if that is due; return whether it has other workers now."""
        group, live = self._group(), self._live()
        if group is None:
            return False
        if live is None or group.live is not live:
            group.runtime.safe_point.withdraw_for(group.name, self)
            return True
        return restart_if_due(group, live)


def restart_if_due(group: GroupState, live: LiveWorkers) -> bool:
    """Restart a group whose workers died, if that is its policy and its budget is not spent; return whether it was.

    What the survivors saved is kept until a restart has succeeded: when this one fails the next call tries again.

    Raises:
        WorkerStartError: The new workers did not come up, or one of them died while it loaded the state.
        CallTimeoutError: They were not up, or had not loaded the state, in time.
        PlacementError: A node died, and there is no other place for its slots.
    """
    cases = live.deaths.investigated()
    if not cases:
        return False
    root = group.root
    policy = live.deaths.policy_in(live.runtime)
    if policy.on_death is not OnDeath.RESTART or isinstance(root.pool, FoundSlots):
        return False
    with root.restarts.lock:
        if group.live is not live:
            return True  # Another thread's call was here first.
        if root.restarts.n_tried >= policy.max_restarts:
            return False
        root.restarts.n_tried += 1
        try:
            _restart(root, live, cases)
        except PodiumError as error:
            _report_failure(root, error, policy.max_restarts)
            raise
        return True


def _restart(root: GroupState, live: LiveWorkers, cases: Sequence[Case]) -> None:
    began = time.monotonic()
    dead = ranks_in_words(sorted(case.victim.rank for case in cases))
    reason = f"restarted after {dead} died"
    saved = _saved_once(root, live, reason)
    lost = {case.victim.node for case in cases if case.error is not None and case.error.kind is DeathKind.NODE_DIED}
    placement = slots_after(root.pool, lost) if lost else root.pool.placement_now
    workers = prepare(root, placement)
    if saved.states:
        try:
            _load(root, workers, saved.states)
        except WorkerMethodError as error:
            # Half a state is worse than none: these workers are not the ones to go on with.
            abandon(root, workers)
            saved = _Saved(lost=f"load_state could not do with what was left: {_first_line(error)}")
            root.restarts.saved = (root.live, saved)
            workers = prepare(root, placement)
        except BaseException:
            abandon(root, workers)
            raise
    _go_on(root, workers, f"{reason}, {saved}", time.monotonic() - began)


def _load(root: GroupState, workers: WorkerSet, states: Sequence[Ref]) -> None:
    """Have the new workers load the states.

    Raises:
        WorkerMethodError: ``load_state`` raised while all of them lived.
        WorkerStartError: One of them died.
        CallTimeoutError: They were not done in time.
    """
    try:
        try:
            hand_over(root, workers, states, _LOAD_S)
        except WorkerMethodError:
            # One that lost another in a collective says so before the other's end is known.
            with suppress(CallTimeoutError):
                check_alive(root, workers, _ALIVE_S)
            raise
    except WorkerDiedError as error:
        raise WorkerStartError(
            f"the restart of group {root.name} failed, its state is kept: {error.message}",
            group=root.name,
            rank=error.rank,
            node=error.node,
            method="load_state",
        ) from None


def _go_on(root: GroupState, workers: WorkerSet, reason: str, seconds: float) -> None:
    switch(root, workers, reason)
    root.restarts.saved = None
    text = f"group {root.name} was {reason} (restart {root.restarts.n_tried}, {seconds:.1f} s)"
    root.runtime.bus.emit(Notice(root.runtime.clock.now_ns(), "warning", text))
    _log.warning(text)


def _report_failure(root: GroupState, error: PodiumError, max_restarts: int) -> None:
    n_tried = root.restarts.n_tried
    left = "the next call tries again" if n_tried < max_restarts else "no restart is left"
    text = f"restart {n_tried} of {max_restarts} of group {root.name} failed, {left}: {_first_line(error)}"
    root.runtime.bus.emit(Notice(root.runtime.clock.now_ns(), "error", text))
    _log.error(text)


def _saved_once(root: GroupState, live: LiveWorkers, reason: str) -> _Saved:
    """Have the survivors save their state and end them; after a restart that failed, return what they saved then."""
    saved_by, saved = root.restarts.saved or (None, None)
    if saved_by is not root.live or not isinstance(saved, _Saved):
        saved = _saved(root, live)
        root.restarts.saved = (root.live, saved)
        root.retire(reason)
    return saved


def _saved(root: GroupState, live: LiveWorkers) -> _Saved:
    """Have the survivors save their state; those that are dead stand as None in it."""
    user_class = root.settings.class_args.user_class
    if state_policy(user_class) is StatePolicy.STATELESS:
        return _Saved(lost="its class says that it has none")
    saving, without_hooks = savers(user_class), unsaved(user_class)
    if not saving:
        names, verb = " and ".join(without_hooks), "have" if len(without_hooks) > 1 else "has"
        return _Saved(lost=f"{names} {verb} no save_state and load_state")
    survivors = survivors_of(live)
    while survivors:
        try:
            return _Saved(collect_states(live, saving, survivors, STATE_S), unsaved=without_hooks)
        except TimeoutError:
            who = ranks_in_words(survivors)
            return _Saved(lost=f"{who} did not save it within {STATE_S:g} s, still in a call")
        except WorkerDiedError as error:
            rank = live.names.index(error.worker) if error.worker in live.names else -1
            if rank not in survivors:
                return _Saved(lost=f"a survivor died meanwhile: {_first_line(error)}")
            survivors.remove(rank)
        except PodiumError as error:
            return _Saved(lost=f"save_state failed: {_first_line(error)}")
    return _Saved(lost="no rank survived")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
