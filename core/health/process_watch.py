"""Watching the processes of a driver's workers: a thread that sleeps until one ends, and looks around each second.

For a process on the driver's own machine the kernel tells of its end at once, busy, idle or stopped: a descriptor of
it becomes readable. On another machine a lookout of ours sees it in the same way (``posts``). A worker that no lookout
sees has one question out at all times; a busy one leaves it in its queue, and one that dies answers it by the cluster's
own notice of the death. No dashboard and no address file is asked: always this driver's own cluster.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from core.cluster import Outcome
from core.errors import WorkerDiedError
from core.events import CallStalled
from core.group.announce import tell_clock
from core.group.in_flight import CallInFlight, calls_in_flight, ranks_in_words, ranks_out
from core.health.evidence import keeper_in_words, keeper_of_killed, process_state, rss_bytes, wait_status
from core.health.node_watchers import Posts
from core.health.policy import LOOK_S
from core.health.stalls import Stalls
from core.health.watched_process import LastSeen, Watched
from core.runtime import Runtime
from core.worker import Traces
from core.worker.process_info import count_oom_kills, machine

if TYPE_CHECKING:
    from core.group.worker_set import Crew

_log = logging.getLogger("podium.health")
_ENDED_S = 0.3
_REPORTED_S = 1.0
"""How long the desk waits for the kernel's word on an end here, and for a lookout's on one elsewhere."""


class Watch:
    """Watches processes on a daemon thread that starts with the first one."""

    def __init__(self, runtime: Runtime) -> None:
        """Begin with nobody to watch."""
        self._runtime = weakref.ref(runtime)
        self._machine = machine()
        self._lock = threading.Lock()
        self._watched: dict[tuple[str, int], Watched] = {}
        self._by_fd: dict[int, Watched] = {}
        self._keepers: dict[int, int] = {}
        self._wake: tuple[int, int] | None = None
        self._stopped = False
        self._posts = Posts(partial(self._told, error=None), self._bring_on)
        self._stalls = Stalls()
        self._next_look_s = 0.0

    def add(self, crew: Crew, every_s: float = LOOK_S) -> None:
        """Watch the workers of a crew; those on other machines are asked every ``every_s``, if that is sooner."""
        for rank, identity in enumerate(crew.identities):
            key, name = _key(crew, rank), crew.names[rank]
            with self._lock:
                if self._stopped:
                    return
                watched = self._watched.get(key)
                # An id may come again once its process is gone.
                is_new = watched is None or watched.ended.is_set() or not watched.crews()
                if watched is None or is_new:
                    watched = self._watched[key] = Watched(
                        key, name, identity.pid, crew.nodes[rank], identity.traces, every_s
                    )
                watched.every_s = min(watched.every_s, every_s)
                if not any(ref() is crew for ref, _ in watched.ranks):
                    watched.ranks.append((weakref.ref(crew), rank))
            if is_new:
                self._begin(watched, crew, rank)
        self._start_or_wake()

    def stop(self) -> None:
        """Watch nobody any more; may be called twice."""
        with self._lock:
            self._stopped = True
        self._posts.close()
        self._bring_on()

    def crew_of(self, group: str) -> Crew | None:
        """Return the crew of a group of which somebody still lives."""
        with self._lock:
            everybody = list(self._watched.values())
        crews = (crew for watched in everybody for crew, _ in watched.crews() if crew.group == group)
        return next(crews, None)

    def is_near(self, traces: Traces) -> bool:
        """Tell whether a process is on this machine, so that its pid and its files mean the same here."""
        return bool(traces.machine) and traces.machine == self._machine

    def has_ended(self, actor_id: str, pid: int) -> bool:
        """Tell whether a process is known to have ended."""
        watched = self._watched.get((actor_id, pid))
        return watched is not None and watched.ended.is_set()

    def last_of(self, actor_id: str, pid: int) -> LastSeen:
        """Return the last that was seen of a process that ended; waits a moment for its status."""
        watched = self._watched.get((actor_id, pid))
        if watched is None:
            return LastSeen()
        if watched.pidfd >= 0:
            watched.is_settled.wait(_ENDED_S)
        elif self._posts.sees(watched):
            watched.is_settled.wait(_REPORTED_S)
        return watched.last

    def _begin(self, watched: Watched, crew: Crew, rank: int) -> None:
        """Choose how to hear of an end: the cluster's own word, the kernel's, or asking."""
        if crew.cluster.on_death(crew.actors[rank], partial(self._told, watched)):
            return
        if self.is_near(watched.traces):
            with suppress(OSError, AttributeError):
                watched.pidfd = os.pidfd_open(watched.pid)
                self._by_fd[watched.pidfd] = watched
                self._watch_keeper(watched.traces.keeper)
                return
        watched.asks = True

    def _watch_keeper(self, pid: int) -> None:
        if pid and pid not in self._keepers.values():
            with suppress(OSError):
                self._keepers[os.pidfd_open(pid)] = pid

    def _bring_on(self) -> None:
        """Have the thread look around now."""
        with self._lock:
            if self._wake is not None:
                with suppress(OSError):
                    os.write(self._wake[1], b"x")

    def _start_or_wake(self) -> None:
        with self._lock:
            if self._stopped:
                return
            if self._wake is None:
                self._wake = os.pipe()
                os.set_blocking(self._wake[0], False)
                os.set_blocking(self._wake[1], False)
                threading.Thread(target=self._run, name="podium-watch", daemon=True).start()
                return
        self._bring_on()

    def _run(self) -> None:
        wake = self._wake
        if wake is None:
            return
        try:
            while not self._stopped:
                wait_s = self._tick()
                for descriptor in self._ready(wake[0], wait_s):
                    watched = self._by_fd.pop(descriptor, None)
                    if watched is not None:
                        self._ended(watched)
                    elif descriptor in self._keepers:
                        self._keeper_ended(descriptor)
        finally:
            self._posts.close()
            with self._lock:
                # Others write into it: a descriptor of that number may soon be another file.
                self._wake = None
            for descriptor in (*wake, *self._by_fd, *self._keepers):
                os.close(descriptor)

    def _ready(self, wake: int, wait_s: float | None) -> list[int]:
        poll = select.poll()
        for descriptor in (wake, *list(self._by_fd), *list(self._keepers)):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(None if wait_s is None else wait_s * 1000)]
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
        return ready

    def _tick(self) -> float | None:
        """Do what is due; return for how long nothing will be, None for ever: there is nobody to watch."""
        runtime = self._runtime()
        if runtime is None:
            self._stopped = True
            return 0.0
        with self._lock:
            everybody = list(self._watched.values())
        self._posts.tend([watched for watched in everybody if watched.asks])
        if not everybody:
            return None
        now_s = time.monotonic()
        pause_s = min(LOOK_S, max(0.02, runtime.health_settings.stall_s / 4))
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + pause_s
            self._look(runtime, everybody)
        next_s = self._next_look_s
        for watched in everybody:
            if watched.asks and not watched.ended.is_set() and not self._posts.sees(watched):
                if now_s >= watched.next_ask_s:
                    watched.next_ask_s = now_s + watched.every_s
                    self._ask(watched)
                next_s = min(next_s, watched.next_ask_s)
        return max(0.0, next_s - time.monotonic())

    def _look(self, runtime: Runtime, everybody: list[Watched]) -> None:
        counts: dict[str, int] = {}
        for watched in everybody:
            if watched.ended.is_set() or not watched.crews():
                self._forget(watched)
            elif watched.pidfd >= 0:
                events = watched.traces.memory_events
                if events not in counts:
                    counts[events] = count_oom_kills(events)
                memory = rss_bytes(watched.pid)
                if memory:
                    watched.last = LastSeen(memory, counts[events])
        for watched in everybody:
            for crew, rank in watched.crews():
                tell_clock(runtime, crew.group, rank, crew.clocks[rank])
        for call in self._stalls.due(calls_in_flight(runtime, own=True), runtime.health_settings.stall_s):
            self._tell_stall(runtime, call, everybody)

    def _tell_stall(self, runtime: Runtime, call: CallInFlight, everybody: list[Watched]) -> None:
        ranks = tuple(out.rank for out in call.out if not out.behind)
        seconds = max(out.seconds for out in call.out if not out.behind)
        event = CallStalled(runtime.clock.now_ns(), call.call_id, call.group, call.method, ranks, seconds)
        runtime.bus.emit(event)
        stopped = [
            rank
            for watched in everybody
            for crew, rank in watched.crews()
            if crew.group == call.group and rank in ranks and self.is_near(watched.traces)
            if process_state(watched.pid) == "T"
        ]
        _log.warning(
            "call %d %s.%s has been in flight for %.0f s; no answer from %s%s",
            call.call_id,
            call.group,
            call.method,
            seconds,
            ranks_in_words(ranks),
            f"; stopped by a signal: {ranks_in_words(stopped)}" if stopped else "",
        )

    def _forget(self, watched: Watched) -> None:
        """Let go of a process that nobody has a use for; one that ended is kept until its death was looked into."""
        if watched.ended.is_set() and any(
            rank in crew.deaths.open_cases for ref, rank in watched.ranks if (crew := ref()) is not None
        ):
            return
        with self._lock:
            self._watched.pop(watched.key, None)
        if self._by_fd.pop(watched.pidfd, None) is not None:
            os.close(watched.pidfd)

    def _ask(self, watched: Watched) -> None:
        crews = watched.crews()
        if watched.is_out or not crews:
            return
        crew, rank = crews[0]
        watched.is_out = True
        try:
            ref = crew.cluster.ask(crew.actors[rank], "_podium_answers", (), {})
        except WorkerDiedError as error:
            self._answered(watched, Outcome(error=error))
            return
        except Exception as error:
            _log.debug("%s could not be asked whether it lives: %s", watched.name, error)
            watched.is_out = False
            return
        crew.cluster.on_ready(ref, partial(self._answered, watched))

    def _answered(self, watched: Watched, outcome: Outcome) -> None:
        watched.is_out = False
        if isinstance(outcome.error, WorkerDiedError):
            self._told(watched, outcome.error)

    def _told(self, watched: Watched, error: WorkerDiedError | None) -> None:
        watched.ended.set()
        runtime = self._runtime()
        out = set() if runtime is None else ranks_out(runtime)
        # Of the groups that share the process the one whose call is out is heard first: its report is said aloud.
        for crew, rank in sorted(watched.crews(), key=lambda one: (one[0].group, one[1]) not in out):
            crew.deaths.hear(rank, error)

    def _ended(self, watched: Watched) -> None:
        """Take a process's status before anything else: it is there only as long as the descriptor is."""
        status = wait_status(watched.pidfd, watched.pid)
        os.close(watched.pidfd)
        watched.last = replace(watched.last, status=status, keeper=keeper_of_killed(watched.traces.keeper, status))
        watched.is_settled.set()
        self._told(watched, None)

    def _keeper_ended(self, descriptor: int) -> None:
        """Tell of the deaths of all workers whose node is lost; their processes may go on a while."""
        pid = self._keepers.pop(descriptor)
        said = keeper_in_words(pid, wait_status(descriptor, pid))
        os.close(descriptor)
        with self._lock:
            lost = [one for one in self._watched.values() if one.traces.keeper == pid and one.pidfd >= 0]
        for watched in lost:
            if not watched.ended.is_set():
                watched.last = replace(watched.last, keeper=said)
                watched.is_settled.set()
                self._told(watched, None)


def _key(crew: Crew, rank: int) -> tuple[str, int]:
    """Return what a process is told by: the cluster's id and its pid; threads of this process have neither apart."""
    actor, pid = crew.actors[rank], crew.identities[rank].pid
    return f"thread {id(actor)}" if pid == os.getpid() else crew.cluster.actor_id(actor), pid
