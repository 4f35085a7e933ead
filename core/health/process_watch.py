"""Watching the processes of a driver's workers: a thread that sleeps until one ends, and looks around each second.

The kernel reports the end of a process on the driver's own machine at once, busy, idle or stopped: a descriptor of it
becomes readable. On another machine a watcher process of ours sees it in the same way (``node_watch``). A worker that
no watcher sees has one ping pending at all times; a busy one leaves it in its queue, and one that dies answers it by
the cluster's own report of the death. No dashboard and no address file is asked: always this driver's own cluster.
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

from core.cluster import Cluster, Outcome
from core.errors import DeathKind, WorkerDiedError
from core.events import CallStalled
from core.health.evidence import process_state, raylet_end_in_words, raylet_end_of_killed, rss_bytes, wait_status
from core.health.in_flight import CallInFlight, calls_in_flight, ranks_in_words, ranks_out
from core.health.node_watch import NodeWatchers
from core.health.policy import LOOK_S
from core.health.stalls import Stalls
from core.health.watched_process import LastSeen, TrackedProcess, WatchedProcess, WatchedRanks
from core.runtime import Runtime
from core.worker import ProcessInfo, entries
from core.worker.process_info import count_oom_kills, machine

_log = logging.getLogger("podium.health")
_ENDED_S = 0.3
_REPORTED_S = 1.0
"""How long an investigation waits for the kernel's status here, and for a node watcher's report on one elsewhere."""


class ProcessWatch:
    """Watches processes on a daemon thread that starts with the first one."""

    def __init__(self, runtime: Runtime) -> None:
        """Start with no process."""
        self._runtime = weakref.ref(runtime)
        self._machine = machine()
        self._lock = threading.Lock()
        self._tracked: dict[tuple[str, int], TrackedProcess] = {}
        self._by_fd: dict[int, TrackedProcess] = {}
        self._raylets: dict[int, int] = {}
        self._wake: tuple[int, int] | None = None
        self._stopped = False
        self._node_watchers = NodeWatchers(partial(self._report, error=None), self._wake_up)
        self._stalls = Stalls()
        self._next_look_s = 0.0

    def add(self, ranks: WatchedRanks, every_s: float = LOOK_S) -> None:
        """Watch the workers of a group; those on other machines are pinged every ``every_s``, if that is sooner."""
        for rank in range(ranks.world_size):
            process = ranks.process(rank)
            with self._lock:
                if self._stopped:
                    return
                tracked = self._tracked.get(process.key)
                # An id may come again once its process is gone.
                is_new = tracked is None or tracked.ended.is_set() or not tracked.watchers()
                if tracked is None or is_new:
                    tracked = self._tracked[process.key] = TrackedProcess(
                        process.key, process.name, process.pid, process.node, process.info, every_s
                    )
                tracked.ping_every_s = min(tracked.ping_every_s, every_s)
                if not any(ref() is ranks for ref, _ in tracked.ranks):
                    tracked.ranks.append((weakref.ref(ranks), rank))
            if is_new:
                self._begin(tracked, ranks.cluster, process)
        self._start_or_wake()

    def stop(self) -> None:
        """Stop watching; may be called twice."""
        with self._lock:
            self._stopped = True
        self._node_watchers.close()
        self._wake_up()

    def ranks_of(self, group: str) -> WatchedRanks | None:
        """Return the watched ranks of a group that has a living worker."""
        with self._lock:
            everybody = list(self._tracked.values())
        watched = (ranks for tracked in everybody for ranks, _ in tracked.watchers() if ranks.group == group)
        return next(watched, None)

    def is_local(self, info: ProcessInfo) -> bool:
        """Return whether a process is on this machine, so that its pid and its files mean the same here."""
        return bool(info.machine) and info.machine == self._machine

    def has_ended(self, key: tuple[str, int]) -> bool:
        """Return whether a process is known to have ended."""
        tracked = self._tracked.get(key)
        return tracked is not None and tracked.ended.is_set()

    def last_of(self, key: tuple[str, int]) -> LastSeen:
        """Return what was last seen of a process that ended; waits a moment for its status."""
        tracked = self._tracked.get(key)
        if tracked is None:
            return LastSeen()
        if tracked.pidfd >= 0:
            tracked.is_settled.wait(_ENDED_S)
        elif self._node_watchers.sees(tracked):
            tracked.is_settled.wait(_REPORTED_S)
        return tracked.last

    def _begin(self, tracked: TrackedProcess, cluster: Cluster, process: WatchedProcess) -> None:
        """Choose who reports the end: the cluster, the kernel, or a ping."""
        if cluster.on_death(process.actor, partial(self._report, tracked)):
            return
        if self.is_local(tracked.info):
            with suppress(OSError, AttributeError):
                tracked.pidfd = os.pidfd_open(tracked.pid)
                self._by_fd[tracked.pidfd] = tracked
                self._watch_raylet(tracked.info.raylet_pid)
                return
        tracked.is_remote = True

    def _watch_raylet(self, pid: int) -> None:
        if pid and pid not in self._raylets.values():
            with suppress(OSError):
                self._raylets[os.pidfd_open(pid)] = pid

    def _wake_up(self) -> None:
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
        self._wake_up()

    def _run(self) -> None:
        wake = self._wake
        if wake is None:
            return
        try:
            while not self._stopped:
                wait_s = self._tick()
                for descriptor in self._ready(wake[0], wait_s):
                    tracked = self._by_fd.pop(descriptor, None)
                    if tracked is not None:
                        self._process_ended(tracked)
                    elif descriptor in self._raylets:
                        self._raylet_ended(descriptor)
        finally:
            self._node_watchers.close()
            with self._lock:
                # Others write into it: a descriptor of that number may soon be another file.
                self._wake = None
            for descriptor in (*wake, *self._by_fd, *self._raylets):
                os.close(descriptor)

    def _ready(self, wake: int, wait_s: float | None) -> list[int]:
        poll = select.poll()
        for descriptor in (wake, *list(self._by_fd), *list(self._raylets)):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(None if wait_s is None else wait_s * 1000)]
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
        return ready

    def _tick(self) -> float | None:
        """Do what is due; return for how long nothing will be, None for ever: there is no process to watch."""
        runtime = self._runtime()
        if runtime is None:
            self._stopped = True
            return 0.0
        with self._lock:
            everybody = list(self._tracked.values())
        self._node_watchers.tend([tracked for tracked in everybody if tracked.is_remote])
        if not everybody:
            return None
        now_s = time.monotonic()
        pause_s = min(LOOK_S, max(0.02, runtime.health_settings.stall_s / 4))
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + pause_s
            self._look(runtime, everybody)
        next_s = self._next_look_s
        for tracked in everybody:
            if tracked.is_remote and not tracked.ended.is_set() and not self._node_watchers.sees(tracked):
                if now_s >= tracked.next_ping_s:
                    tracked.next_ping_s = now_s + tracked.ping_every_s
                    self._ping(tracked)
                next_s = min(next_s, tracked.next_ping_s)
        return max(0.0, next_s - time.monotonic())

    def _look(self, runtime: Runtime, everybody: list[TrackedProcess]) -> None:
        counts: dict[str, int] = {}
        for tracked in everybody:
            if tracked.ended.is_set() or not tracked.watchers():
                self._forget(tracked)
            elif tracked.pidfd >= 0:
                events = tracked.info.memory_events
                if events not in counts:
                    counts[events] = count_oom_kills(events)
                memory = rss_bytes(tracked.pid)
                if memory:
                    tracked.last = LastSeen(memory, counts[events])
        for tracked in everybody:
            for ranks, rank in tracked.watchers():
                ranks.on_look(rank)
        for call in self._stalls.due(calls_in_flight(runtime, own=True), runtime.health_settings.stall_s):
            self._report_stall(runtime, call, everybody)

    def _report_stall(self, runtime: Runtime, call: CallInFlight, everybody: list[TrackedProcess]) -> None:
        pending = tuple(out.rank for out in call.out if not out.behind)
        seconds = max(out.seconds for out in call.out if not out.behind)
        event = CallStalled(runtime.clock.now_ns(), call.call_id, call.group, call.method, pending, seconds)
        runtime.bus.emit(event)
        stopped = [
            rank
            for tracked in everybody
            for ranks, rank in tracked.watchers()
            if ranks.group == call.group and rank in pending and self.is_local(tracked.info)
            if process_state(tracked.pid) == "T"
        ]
        _log.warning(
            "call %d %s.%s has been in flight for %.0f s; no answer from %s%s",
            call.call_id,
            call.group,
            call.method,
            seconds,
            ranks_in_words(pending),
            f"; stopped by a signal: {ranks_in_words(stopped)}" if stopped else "",
        )

    def _forget(self, tracked: TrackedProcess) -> None:
        """Drop a process that no group uses; one that may have ended is kept until that was investigated."""
        if any(ranks.is_under_investigation(rank) for ref, rank in tracked.ranks if (ranks := ref()) is not None):
            return
        with self._lock:
            self._tracked.pop(tracked.key, None)
        if self._by_fd.pop(tracked.pidfd, None) is not None:
            os.close(tracked.pidfd)

    def _ping(self, tracked: TrackedProcess) -> None:
        watchers = tracked.watchers()
        if tracked.ping_pending or not watchers:
            return
        ranks, rank = watchers[0]
        tracked.ping_pending = True
        try:
            ref = ranks.cluster.ask(ranks.process(rank).actor, entries.IS_ALIVE, (), {})
        except WorkerDiedError as error:
            self._pinged(tracked, Outcome(error=error))
            return
        except Exception as error:
            _log.debug("%s could not be pinged: %s", tracked.name, error)
            tracked.ping_pending = False
            return
        ranks.cluster.on_ready(ref, partial(self._pinged, tracked))

    def _pinged(self, tracked: TrackedProcess, outcome: Outcome) -> None:
        tracked.ping_pending = False
        if isinstance(outcome.error, WorkerDiedError):
            self._report(tracked, outcome.error)

    def _report(self, tracked: TrackedProcess, error: WorkerDiedError | None) -> None:
        if error is None or error.kind is not DeathKind.UNREACHABLE:
            tracked.ended.set()
        runtime = self._runtime()
        out = set() if runtime is None else ranks_out(runtime)
        # Of the groups that share the process the one with a call in flight comes first: its report is printed.
        for ranks, rank in sorted(tracked.watchers(), key=lambda one: (one[0].group, one[1]) not in out):
            ranks.on_exit(rank, error)

    def _process_ended(self, tracked: TrackedProcess) -> None:
        """Take a process's status before anything else: it is there only as long as the descriptor is."""
        status = wait_status(tracked.pidfd, tracked.pid)
        os.close(tracked.pidfd)
        raylet_end = raylet_end_of_killed(tracked.info.raylet_pid, status)
        tracked.last = replace(tracked.last, status=status, raylet_end=raylet_end)
        tracked.is_settled.set()
        self._report(tracked, None)

    def _raylet_ended(self, descriptor: int) -> None:
        """Report the deaths of all workers whose node is lost; their processes may go on a while."""
        pid = self._raylets.pop(descriptor)
        raylet_end = raylet_end_in_words(pid, wait_status(descriptor, pid))
        os.close(descriptor)
        with self._lock:
            lost = [one for one in self._tracked.values() if one.info.raylet_pid == pid and one.pidfd >= 0]
        for tracked in lost:
            if not tracked.ended.is_set():
                tracked.last = replace(tracked.last, raylet_end=raylet_end)
                tracked.is_settled.set()
                self._report(tracked, None)
