"""A group's dead workers: each heard of once, looked into, put on file, said, and only then acted upon.

A death is heard on several threads at about the same time: by the watch, by the call that was out with the worker, by
the next call. Whoever comes first hands it to the driver's one desk (``Desk``), a thread that looks at the evidence;
whoever needs the outcome waits for that, so that the error a driver gets says what the record says.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from core.cluster.base import UNREACHABLE, Cluster
from core.errors import ClusterUnreachableError, WorkerDiedError
from core.events import Notice
from core.group.in_flight import calls_in_flight, states_of
from core.health.evidence import Clues, Found, Verdict, judge, look
from core.health.policy import DeathPolicy, end_driver
from core.health.report import Memory, Victim, ended, error_of, text_of
from core.runtime import OnDeath

if TYPE_CHECKING:
    from core.group.worker_set import Crew
    from core.health.process_watch import Watch

_log = logging.getLogger("podium.health")
_FLUSH_S = 2.0
_WORDS_S = 1.5
_LOOK_S = 1.5
_OUTCOME_S = 4.5
"""How long a call waits to hear how its worker died; it raises then all the same."""
_OVERDUE_S = 1.0
"""How long after a death is on file the cluster may still answer for the worker: with its last result, or an error."""
_TOGETHER_S = 0.05
"""Workers that die together are all looked into before the driver is ended for the first of them."""


@dataclass(eq=False)
class Case:
    """A death that somebody heard of."""

    crew: Crew
    victim: Victim
    heard: WorkerDiedError | None
    told: threading.Event = field(default_factory=threading.Event)
    told_s: float = 0.0
    error: WorkerDiedError | None = None


class Deaths:
    """The deaths among the workers of one crew. Holds no handle of them."""

    def __init__(self) -> None:
        """Begin with everybody alive; ``attach`` follows."""
        self._crew: weakref.ref[Crew] | None = None
        self._lock = threading.Lock()
        self._cases: dict[int, Case] = {}
        self.policy: DeathPolicy | None = None
        self.desk: Desk | None = None

    def attach(self, crew: Crew) -> None:
        """Say whose deaths these are."""
        self._crew = weakref.ref(crew)

    def hear(self, rank: int, error: WorkerDiedError | None, method: str = "", call_id: int = 0) -> None:
        """Take note of a death, on any thread, without waiting for anything; only the first time counts.

        ``method`` and ``call_id`` are of the call that heard it. Workers that were let go do not die.
        """
        crew, desk = self._crew() if self._crew is not None else None, self.desk
        if crew is None or desk is None or not crew.runtime.connected or _is_another(crew, rank, error):
            return
        with self._lock:
            if rank in crew.dead or rank in self._cases:
                return
            crew.dead.add(rank)
            case = self._cases[rank] = Case(crew, _victim(crew, rank, error, method, call_id), error)
        desk.take(case)

    @property
    def any_known(self) -> bool:
        """Whether anybody is known to be dead."""
        return bool(self._cases)

    def policy_of(self, crew: Crew) -> DeathPolicy:
        """Return what follows a death in ``crew``: its group's own policy, or the driver's."""
        settings = crew.runtime.health_settings
        return self.policy or DeathPolicy.checked(settings.on_death, settings.max_restarts)

    def looked_into(self) -> list[Case]:
        """Return the deaths, each after it was looked into; one that was none is not among them."""
        with self._lock:
            cases = list(self._cases.values())
        for case in cases:
            case.told.wait(_OUTCOME_S)
        return [case for case in cases if case.error is not None]

    @property
    def open_cases(self) -> frozenset[int]:
        """Return the ranks whose deaths are not looked into yet."""
        with self._lock:
            return frozenset(rank for rank, case in self._cases.items() if not case.told.is_set())

    def explained(self, error: WorkerDiedError, method: str) -> WorkerDiedError:
        """Return what is known of the death that a call of ``method`` met; waits a while for the desk."""
        crew = self._crew() if self._crew is not None else None
        if crew is None or error.group not in ("", crew.group) or error.how not in ("", UNREACHABLE):
            return error
        rank = crew.names.index(error.worker) if error.rank < 0 and error.worker in crew.names else error.rank
        with self._lock:
            # What Ray says of a worker that its memory monitor killed does not name it.
            case = self._cases.get(next(iter(self._cases), rank) if rank < 0 and not error.worker else rank)
        if case is not None:
            case.told.wait(_OUTCOME_S)
        if case is not None and case.error is not None:
            return replace(case.error)
        return error if rank < 0 or error.rank >= 0 else _placed(crew, rank, error, method)

    def overdue(self, ranks: Collection[int]) -> WorkerDiedError | None:
        """Return the death of one of ``ranks`` that the cluster should have answered a call with by now.

        It takes its time when a whole node is gone: Ray some 14 s.
        """
        now_s = time.monotonic()
        with self._lock:
            cases = [case for rank, case in self._cases.items() if rank in ranks]
        for case in cases:
            if case.error is not None and case.told.is_set() and now_s - case.told_s > _OVERDUE_S:
                return replace(case.error)
        return None

    def refuse(self, ranks: Collection[int], method: str) -> None:
        """Do nothing while the ranks live.

        Raises:
            WorkerDiedError: One of ``ranks`` is known to be dead; ``method`` was asked of none.
        """
        if not self._cases:
            return
        for case in self.looked_into():
            if case.error is not None and case.error.rank in ranks:
                way_out = "make another group, or one with on_death='restart'"
                policy = self.policy_of(case.crew)
                if policy.on_death is OnDeath.RESTART:
                    way_out = (
                        f"its group was restarted as often as it may be (max_restarts={policy.max_restarts}, tries "
                        f"that failed among them); make another group, with more restarts if that helps"
                    )
                message = f"{case.error.message}; {method} was asked of no rank; {way_out}"
                raise replace(case.error, message=message, method=method)

    def forgive(self, rank: int) -> None:
        """Forget a death that was none."""
        crew = self._crew() if self._crew is not None else None
        with self._lock:
            self._cases.pop(rank, None)
            if crew is not None:
                crew.dead.discard(rank)


def _placed(crew: Crew, rank: int, error: WorkerDiedError, method: str) -> WorkerDiedError:
    """Say of a worker that was let go, by this driver itself, which one it is."""
    return replace(
        error,
        message=(
            f"rank {rank} of {crew.group} (worker {error.worker}, pid {error.pid}, node {crew.nodes[rank]}) is gone, "
            f"{method} has no answer from it: {error.message}"
        ),
        group=crew.group,
        rank=rank,
        node=crew.nodes[rank],
        method=method,
    )


def _is_another(crew: Crew, rank: int, error: WorkerDiedError | None) -> bool:
    """Tell whether an error that a rank answered is about another worker, met in a future that it was given."""
    if error is None or error.group not in ("", crew.group):
        return error is not None
    # Workers found by their handles go by their ids here and by names in the cluster's words; threads share a pid.
    pid = crew.identities[rank].pid if rank < len(crew.identities) else error.pid
    alike = error.pid == pid != os.getpid()
    return bool(error.worker) and error.worker != crew.names[rank] and not alike


def _victim(crew: Crew, rank: int, error: WorkerDiedError | None, method: str, call_id: int) -> Victim:
    pid = crew.identities[rank].pid if rank < len(crew.identities) else (error.pid if error is not None else 0)
    if not method:
        for call in calls_in_flight(crew.runtime):
            if call.group == crew.group and any(out.rank == rank for out in call.out):
                method, call_id = call.method, call.call_id
                break
    states = states_of(crew.runtime, crew.group, crew.world_size, crew.dead)
    return Victim(
        group=crew.group,
        role=crew.role or crew.group,
        rank=rank,
        worker=crew.names[rank],
        pid=pid,
        node=crew.nodes[rank],
        actor_id=crew.cluster.actor_id(crew.actors[rank]),
        method=method,
        call_id=call_id,
        at_ns=crew.runtime.clock.now_ns(),
        others=tuple(state for state in states if state.rank != rank),
    )


class Desk:
    """Looks into deaths, one after the other, on a thread of its own that starts with the first one."""

    def __init__(self, watch: Watch) -> None:
        """Begin without a case."""
        self._watch = watch
        self._cases: queue.SimpleQueue[Case | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = False
        self._printed: set[tuple[str, int]] = set()

    def take(self, case: Case) -> None:
        """Take a case, on any thread."""
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="podium-deaths", daemon=True).start()
        self._cases.put(case)

    def close(self) -> None:
        """End the thread once it has done what it has; may be called twice."""
        with self._lock:
            started, self._started = self._started, False
        if started:
            self._cases.put(None)

    def _run(self) -> None:
        must_end: Cluster | None = None
        while True:
            try:
                case = self._cases.get(timeout=None if must_end is None else _TOGETHER_S)
            except queue.Empty:
                if must_end is not None:
                    must_end.abandon()
                end_driver()
                return
            if case is None:
                return
            try:
                if self._look_into(case):
                    must_end = case.crew.cluster
            except Exception:
                _log.exception("the death of %s could not be looked into", case.victim.who)
            finally:
                if must_end is None or case.error is None:
                    # A call of a driver that is about to be ended does not go on to something else.
                    case.told_s = time.monotonic()
                    case.told.set()

    def _look_into(self, case: Case) -> bool:
        """Find out, put on file, say; return whether the driver is to be ended for it."""
        crew, victim = case.crew, case.victim
        said = self._said(case)
        if said is None:
            crew.deaths.forgive(victim.rank)
            return False
        verdict, memory, found = self._judged(case, said)
        policy = crew.deaths.policy_of(crew)
        event = ended(victim, verdict, memory, found.log_tail, policy.on_death.value)
        case.error = error_of(event)
        bus = crew.runtime.bus
        bus.emit(event)
        aborts = policy.on_death is OnDeath.ABORT
        next_one = _NEXT[policy.on_death]
        if aborts:
            text = f"worker {victim.worker} ({victim.who}) died: {event.reason}; {next_one}"
            bus.emit(Notice(crew.runtime.clock.now_ns(), "error", text))
        bus.flush(_FLUSH_S)
        if (victim.worker, victim.pid) not in self._printed:
            self._printed.add((victim.worker, victim.pid))
            print(text_of(event, next_one), file=sys.stderr, flush=True)
        return aborts

    def _said(self, case: Case) -> str | None:
        """Return the cluster's words for an end, empty when it has none; None when it was no death after all."""
        if not case.crew.runtime.connected or not case.crew.cluster.is_up():
            return None  # The driver shut the cluster down, and its workers with it.
        cluster, victim = case.crew.cluster, case.victim
        if cluster.was_ended(case.crew.actors[victim.rank]):
            return None  # Another group, whose processes these are too, let go of them.
        heard = case.heard
        if self._watch.last_of(victim.actor_id, victim.pid).keeper:
            return ""  # Its process may go on for a while, with nobody there who would take a call to it.
        if heard is None or heard.how == UNREACHABLE:
            try:
                ref = cluster.ask(case.crew.actors[victim.rank], "_podium_answers", (), {})
                cluster.fetch([ref], _WORDS_S)
                return None
            except WorkerDiedError as error:
                heard = error
            except ClusterUnreachableError:
                return None
            except Exception as error:
                _log.debug("the cluster has no words for the end of %s: %s", victim.worker, error)
        if heard is not None and heard.how == UNREACHABLE and not self._watch.has_ended(victim.actor_id, victim.pid):
            text = f"worker {victim.worker} ({victim.who}) could not be reached; its process may live"
            case.crew.runtime.bus.emit(Notice(victim.at_ns, "warning", text))
            return None
        return "" if heard is None else str(heard)

    def _judged(self, case: Case, said: str) -> tuple[Verdict, Memory, Found]:
        crew, victim = case.crew, case.victim
        if victim.pid == os.getpid():
            # A thread of this process: it leaves nothing but what the local cluster says of it.
            return Verdict(said.splitlines()[0] if said else "it was ended"), Memory(), Found()
        traces = crew.identities[victim.rank].traces
        seen = self._watch.last_of(victim.actor_id, victim.pid)
        found = seen.found or Found(unread="its node does not answer")
        with suppress(Exception):
            look_at = (traces, victim.pid)
            if self._watch.is_near(traces):
                found = look(*look_at)
            elif seen.found is None and not seen.keeper:
                found = crew.cluster.run_on(victim.node, look, look_at, _LOOK_S)
        before = seen.n_oom_kills if seen.n_oom_kills >= 0 else traces.n_oom_kills
        verdict = judge(Clues(said, seen.status, found, before, seen.keeper))
        return verdict, Memory(seen.memory_bytes, traces.memory_limit_bytes), found


_NEXT = {
    OnDeath.ABORT: "abort: the driver is ended by SIGABRT",
    OnDeath.RAISE: "raise: the call in flight, or the next one, gets a WorkerDiedError",
    OnDeath.RESTART: "restart: the call in flight gets a WorkerDiedError, then the group is rebuilt",
}
