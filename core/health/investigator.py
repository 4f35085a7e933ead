"""Finding out how workers died: one case after the other, recorded before anybody acts on it.

Several threads hear of a death at about the same time: the watch, the call in flight on that worker, the next call.
The first one opens a case; one thread per driver examines the evidence; whoever needs the outcome waits for that, so
that the error a driver gets says what the record says.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from core.cluster import Cluster, Ref
from core.errors import ClusterUnreachableError, DeathKind, StateError, WorkerDiedError
from core.events import Notice
from core.health.evidence import Clues, Findings, Verdict, examine, judge
from core.health.policy import DeathPolicy, end_driver
from core.health.process_watch import ProcessWatch
from core.health.report import Memory, Victim, ended, error_of, text_of
from core.health.watched_process import WatchedProcess
from core.runtime import OnDeath, Runtime
from core.worker import entries

_log = logging.getLogger("podium.health")
_FLUSH_S = 2.0
_WORDS_S = 1.5
_LOOK_S = 1.5
UNREACHABLE_S = 75.0
"""How long the cluster may take to call a worker dead that cannot be reached: Ray some 15 s after its connections are
closed, 63 s where a machine is gone without closing any."""
_ASK_AGAIN_S = 0.5
_TOGETHER_S = 0.05
"""Workers that die together are all investigated before the driver is ended for the first of them."""


@dataclass(eq=False)
class Case:
    """A worker's death, from the moment it is heard of; ``error`` is set once its cause is known.

    ``heard`` is the cluster's error, if it came with one; ``policy`` returns what follows the death; ``dismiss`` is
    called when it was a false alarm. A worker that could not be reached is asked again, by ``ping``, until
    ``undecided_until_s``.
    """

    runtime: Runtime
    process: WatchedProcess
    victim: Victim
    heard: WorkerDiedError | None
    policy: Callable[[], DeathPolicy]
    dismiss: Callable[[], None]
    closed: threading.Event = field(default_factory=threading.Event)
    closed_s: float = 0.0
    error: WorkerDiedError | None = None
    ping: Ref | None = None
    undecided_until_s: float = field(default_factory=lambda: time.monotonic() + UNREACHABLE_S)

    @property
    def is_unreachable(self) -> bool:
        """Whether the cluster says no more than that it could not reach the worker."""
        return self.heard is not None and self.heard.kind is DeathKind.UNREACHABLE

    def copy_of_error(self) -> WorkerDiedError:
        """Return the error of a closed case as another object, to be raised.

        Raises:
            StateError: The case is not closed yet.
        """
        if self.error is None:
            raise StateError(f"the death of {self.victim.who} is not investigated yet", state="open")
        return replace(self.error)


class Investigator:
    """Investigates deaths one after the other, on a thread of its own that starts with the first one."""

    def __init__(self, watch: ProcessWatch) -> None:
        """Start without a case."""
        self._watch = watch
        self._cases: queue.SimpleQueue[Case | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = False
        self._printed: set[tuple[str, int]] = set()

    def investigate(self, case: Case) -> None:
        """Queue a case, on any thread."""
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="podium-deaths", daemon=True).start()
        self._cases.put(case)

    def close(self) -> None:
        """End the thread once its queue is empty; may be called twice."""
        with self._lock:
            started, self._started = self._started, False
        if started:
            self._cases.put(None)

    def _run(self) -> None:
        must_end: Cluster | None = None
        undecided: list[Case] = []
        while True:
            pause_s = _TOGETHER_S if must_end is not None else _ASK_AGAIN_S if undecided else None
            try:
                case = self._cases.get(timeout=pause_s)
            except queue.Empty:
                if must_end is not None:
                    must_end.abandon()
                    end_driver()
                    return
                while undecided:
                    self._cases.put(undecided.pop())
                continue
            if case is None:
                for one in undecided:
                    one.closed.set()
                return
            if self._is_undecided(case):
                undecided.append(case)
                continue
            try:
                if self._close_case(case):
                    must_end = case.runtime.cluster
            except Exception:
                _log.exception("the death of %s could not be investigated", case.victim.who)
            finally:
                if must_end is None or case.error is None:
                    # A call of a driver that is about to be ended does not go on to something else.
                    case.closed_s = time.monotonic()
                    case.closed.set()

    def _is_undecided(self, case: Case) -> bool:
        """Ask a worker again that could not be reached; return whether it still neither answers nor is called dead."""
        if not case.is_unreachable or time.monotonic() > case.undecided_until_s or not case.runtime.connected:
            return False
        if self._watch.has_ended(case.process.key):
            return False
        cluster = case.runtime.cluster
        try:
            if case.ping is None:
                case.ping = cluster.ask(case.process.actor, entries.IS_ALIVE, (), {})
            if not cluster.wait([case.ping], 1, 0.0)[0]:
                return True
            cluster.fetch([case.ping])
        except WorkerDiedError as error:
            case.heard, case.ping = error, None
            return case.is_unreachable
        except Exception as error:
            _log.debug("%s could not be asked: %s", case.victim.worker, error)
        return False

    def _close_case(self, case: Case) -> bool:
        """Find the cause, record it, print it; return whether the driver is to be ended for it."""
        victim, bus = case.victim, case.runtime.bus
        words = self._words_of_the_cluster(case)
        if words is None:
            case.dismiss()
            return False
        verdict, memory, findings = self._judged(case, words)
        policy = case.policy()
        event = ended(victim, verdict, memory, findings.log_tail, policy.on_death.value)
        case.error = error_of(event, verdict.kind)
        bus.emit(event)
        aborts = policy.on_death is OnDeath.ABORT
        what_next = _NEXT[policy.on_death]
        if aborts:
            text = f"worker {victim.worker} ({victim.who}) died: {event.reason}; {what_next}"
            bus.emit(Notice(case.runtime.clock.now_ns(), "error", text))
        bus.flush(_FLUSH_S)
        if (victim.worker, victim.pid) not in self._printed:
            self._printed.add((victim.worker, victim.pid))
            print(text_of(event, what_next), file=sys.stderr, flush=True)
        return aborts

    def _words_of_the_cluster(self, case: Case) -> str | None:
        """Return the cluster's reason for an end, empty when it has none; None when it was not a death after all."""
        if not case.runtime.connected or not case.runtime.cluster.is_up():
            return None  # The driver shut the cluster down, and its workers with it.
        cluster, victim, process = case.runtime.cluster, case.victim, case.process
        if cluster.was_ended(process.actor):
            return None  # Another group, whose processes these are too, ended them.
        heard = case.heard
        if self._watch.last_of(process.key).raylet_end:
            return ""  # Its process may live for a while, but no call reaches it.
        if heard is None or case.is_unreachable:
            try:
                ref = cluster.ask(process.actor, entries.IS_ALIVE, (), {})
                cluster.fetch([ref], _WORDS_S)
                return None
            except WorkerDiedError as error:
                heard = error
            except ClusterUnreachableError:
                return None
            except Exception as error:
                _log.debug("the cluster gives no reason for the end of %s: %s", victim.worker, error)
        if heard is not None and heard.kind is DeathKind.UNREACHABLE and not self._watch.has_ended(process.key):
            text = f"worker {victim.worker} ({victim.who}) could not be reached; its process may be alive"
            case.runtime.bus.emit(Notice(victim.at_ns, "warning", text))
            return None
        return "" if heard is None else str(heard)

    def _judged(self, case: Case, words: str) -> tuple[Verdict, Memory, Findings]:
        victim, process = case.victim, case.process
        if victim.pid == os.getpid():
            # A thread of this process: it leaves nothing but what the local cluster says of it.
            return Verdict(words.splitlines()[0] if words else "it was ended"), Memory(), Findings()
        info = process.info
        seen = self._watch.last_of(process.key)
        findings = seen.findings or Findings(unread="its node does not answer")
        with suppress(Exception):
            if self._watch.is_local(info):
                findings = examine(info, victim.pid)
            elif seen.findings is None and not seen.raylet_end:
                findings = case.runtime.cluster.run_on(victim.node, examine, (info, victim.pid), _LOOK_S)
        before = seen.n_oom_kills if seen.n_oom_kills >= 0 else info.n_oom_kills
        verdict = judge(Clues(words, seen.status, findings, before, seen.raylet_end))
        return verdict, Memory(seen.memory_bytes, info.memory_limit_bytes), findings


_NEXT = {
    OnDeath.ABORT: "abort: the driver is ended by SIGABRT",
    OnDeath.RAISE: "raise: the call in flight, or the next one, gets a WorkerDiedError",
    OnDeath.RESTART: "restart: the call in flight gets a WorkerDiedError, then the group is rebuilt",
}
