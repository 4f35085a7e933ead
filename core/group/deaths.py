"""The deaths among a group's workers: each taken note of once, and what the investigation of it came to."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from core.errors import DeathKind, WorkerDiedError
from core.health.in_flight import calls_in_flight, states_of
from core.health.investigator import UNREACHABLE_S, Case
from core.health.policy import DeathPolicy
from core.health.report import Victim
from core.health.watched_process import WatchedProcess
from core.runtime import OnDeath, Runtime

_OUTCOME_S = 4.5
"""How long a call waits to hear how its worker died; it raises then all the same."""
_OVERDUE_S = 1.0
"""How long after a death is recorded the cluster may still answer for the worker: with its last result, or an error."""


class Ranks(Protocol):
    """The workers of a group, as far as their deaths are concerned."""

    @property
    def runtime(self) -> Runtime:
        """Return the driver's runtime."""
        ...

    @property
    def group(self) -> str:
        """Return the group's name."""
        ...

    @property
    def role(self) -> str:
        """Return the role, or the class, of the workers."""
        ...

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Return the workers' names."""
        ...

    def process(self, rank: int) -> WatchedProcess:
        """Return the process of a rank."""
        ...


class Deaths:
    """The deaths among the workers of one group. Holds no handle of those that live.

    ``investigate`` takes a case on; ``on_first`` is called once, with the first death, before the case is taken on.
    """

    def __init__(
        self,
        policy: DeathPolicy | None,
        investigate: Callable[[Case], None],
        on_first: Callable[[], None],
    ) -> None:
        """Start with all workers alive; ``attach`` follows."""
        self.dead: set[int] = set()
        self.policy = policy
        self._investigate = investigate
        self._on_first = on_first
        self._ranks: weakref.ref[Ranks] | None = None
        self._lock = threading.Lock()
        self._cases: dict[int, Case] = {}

    def attach(self, ranks: Ranks) -> None:
        """Set whose deaths these are."""
        self._ranks = weakref.ref(ranks)

    def hear(self, rank: int, error: WorkerDiedError | None, method: str = "", call_id: int = 0) -> None:
        """Record a death, on any thread, without waiting for anything; only the first time counts.

        ``method`` and ``call_id`` are of the call that met it. Workers that were ended on purpose do not die.
        """
        ranks = self._attached()
        if ranks is None or not ranks.runtime.connected or _is_another(ranks, rank, error):
            return
        with self._lock:
            if rank in self.dead or rank in self._cases:
                return
            self.dead.add(rank)
            runtime = ranks.runtime
            process = ranks.process(rank)
            case = Case(
                runtime=runtime,
                process=process,
                victim=self._victim(ranks, process, error, method, call_id),
                heard=error,
                policy=lambda: self.policy_in(runtime),
                dismiss=lambda: self.dismiss(rank),
            )
            if not self._cases:
                # Before the case is there: a call that finds it must find what waits for the next call, too.
                self._on_first()
            self._cases[rank] = case
        self._investigate(case)

    @property
    def any_known(self) -> bool:
        """Whether a worker is known to be dead."""
        return bool(self._cases)

    def policy_in(self, runtime: Runtime) -> DeathPolicy:
        """Return what follows a death: the group's own policy, or the driver's."""
        settings = runtime.health_settings
        return self.policy or DeathPolicy.checked(settings.on_death, settings.max_restarts)

    def investigated(self) -> list[Case]:
        """Return the deaths, each after its investigation; false alarms are not among them."""
        with self._lock:
            cases = list(self._cases.values())
        for case in cases:
            case.closed.wait(_OUTCOME_S)
        return [case for case in cases if case.error is not None]

    def is_open(self, rank: int) -> bool:
        """Whether a rank's death is known and not investigated yet."""
        with self._lock:
            case = self._cases.get(rank)
        return case is not None and not case.closed.is_set()

    def explained(self, error: WorkerDiedError, method: str, left_s: float = math.inf) -> WorkerDiedError:
        """Return what is known of the death that a call of ``method`` met; waits a while for the investigation.

        That of a worker that cannot be reached lasts until the cluster knows more, but ends with the call's deadline,
        ``left_s`` from now.
        """
        ranks = self._attached()
        if ranks is None or error.group not in ("", ranks.group) or error.how:
            return error
        rank = ranks.names.index(error.worker) if error.rank < 0 and error.worker in ranks.names else error.rank
        with self._lock:
            # What Ray says of a worker that its memory monitor killed does not name it.
            case = self._cases.get(next(iter(self._cases), rank) if rank < 0 and not error.worker else rank)
        if case is not None:
            case.closed.wait(max(_OUTCOME_S, min(UNREACHABLE_S + _OUTCOME_S, left_s) if case.is_unreachable else 0.0))
            if case.error is not None:
                return replace(case.error)
            if error.kind is DeathKind.UNREACHABLE:
                return _unreachable(case.victim, error, method)
        return error if rank < 0 or error.rank >= 0 else _with_place(ranks, rank, error, method)

    def overdue(self, ranks: Collection[int]) -> Case | None:
        """Return the death of one of ``ranks`` that the cluster should have answered a call with by now.

        It takes its time when a whole node is gone: Ray some 14 s.
        """
        now_s = time.monotonic()
        with self._lock:
            cases = [case for rank, case in self._cases.items() if rank in ranks]
        for case in cases:
            if case.error is not None and case.closed.is_set() and now_s - case.closed_s > _OVERDUE_S:
                return case
        return None

    def refuse(self, ranks: Collection[int], method: str) -> None:
        """Do nothing while the ranks live.

        Raises:
            WorkerDiedError: One of ``ranks`` is known to be dead; ``method`` was asked of none.
        """
        if not self._cases:
            return
        for case in self.investigated():
            if case.error is not None and case.error.rank in ranks:
                way_out = "make another group, or one with on_death='restart'"
                policy = case.policy()
                if policy.on_death is OnDeath.RESTART:
                    way_out = (
                        f"its group was restarted as often as it may be (max_restarts={policy.max_restarts}, tries "
                        f"that failed among them); make another group, with more restarts if that helps"
                    )
                message = f"{case.error.message}; {method} was asked of no rank; {way_out}"
                raise replace(case.error, message=message, method=method)

    def dismiss(self, rank: int) -> None:
        """Forget a death that was a false alarm."""
        with self._lock:
            self._cases.pop(rank, None)
            self.dead.discard(rank)

    def _attached(self) -> Ranks | None:
        return None if self._ranks is None else self._ranks()

    def _victim(
        self, ranks: Ranks, process: WatchedProcess, error: WorkerDiedError | None, method: str, call_id: int
    ) -> Victim:
        if not method:
            for call in calls_in_flight(ranks.runtime):
                if call.group == ranks.group and any(out.rank == process.rank for out in call.out):
                    method, call_id = call.method, call.call_id
                    break
        states = states_of(ranks.runtime, ranks.group, ranks.world_size, self.dead)
        return Victim(
            group=ranks.group,
            role=ranks.role,
            rank=process.rank,
            worker=process.name,
            pid=process.pid or (error.pid if error is not None else 0),
            node=process.node,
            actor_id=ranks.runtime.cluster.actor_id(process.actor),
            method=method,
            call_id=call_id,
            at_ns=ranks.runtime.clock.now_ns(),
            others=tuple(state for state in states if state.rank != process.rank),
        )


def _unreachable(victim: Victim, error: WorkerDiedError, method: str) -> WorkerDiedError:
    """Return the error of a call to a worker that could not be reached, and that is not known to have died."""
    reason = error.message.partition(" The task may or may not")[0]
    return replace(
        error,
        message=(
            f"{victim.who} (worker {victim.worker}) could not be reached in {method}: {reason} "
            f"Whether {method} ran there is not known, and its process may be alive: check the network and the node; "
            f"the next call asks it again"
        ),
        group=victim.group,
        rank=victim.rank,
        node=victim.node,
        method=method,
        worker=victim.worker,
        pid=victim.pid,
    )


def _with_place(ranks: Ranks, rank: int, error: WorkerDiedError, method: str) -> WorkerDiedError:
    """Return the error of a worker that this driver ended itself, with its rank and node."""
    node = ranks.process(rank).node
    return replace(
        error,
        message=(
            f"rank {rank} of {ranks.group} (worker {error.worker}, pid {error.pid}, node {node}) is gone, "
            f"{method} has no answer from it: {error.message}"
        ),
        group=ranks.group,
        rank=rank,
        node=node,
        method=method,
    )


def _is_another(ranks: Ranks, rank: int, error: WorkerDiedError | None) -> bool:
    """Return whether an error that a rank answered is about another worker, met in a future that it was given."""
    if error is None or error.group not in ("", ranks.group):
        return error is not None
    process = ranks.process(rank)
    # Workers found by their handles go by their ids here and by names in the cluster's words; threads share a pid.
    same_process = error.pid == process.pid != os.getpid()
    return bool(error.worker) and error.worker != process.name and not same_process
