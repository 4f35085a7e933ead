"""Watching workers on the machines that are not the driver's: by their own kernel, in a process of ours on each node.

The driver cannot see from afar what it sees of processes on its own machine: the moment of an end, the wait status,
the memory shortly before, and the end of the raylet: all workers of a node are lost with it, long before Ray calls the
node dead. A worker is killed with its raylet; a node watcher is not, as it has to report that, and then ends as every
process of the cluster does. A watcher that does not come up, or does not answer, does no harm: workers that none sees
are pinged.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from core.cluster import ActorHandle, Cluster, Outcome
from core.cluster.base import SpawnRequest
from core.health.evidence import (
    Findings,
    examine,
    raylet_end_in_words,
    raylet_end_of_killed,
    rss_bytes,
    wait_status,
)
from core.health.policy import LOOK_S
from core.health.watched_process import LastSeen, TrackedProcess
from core.worker import ProcessInfo
from core.worker.process_info import count_oom_kills

_log = logging.getLogger("podium.health")
_SILENT_S = 3.0
"""A watcher that has not answered for so long is not counted on."""
_RETRY_S = 15.0
"""How long after a watcher was lost another one is started."""
_LINGERS_S = 60.0
"""How long a watcher stays on a node without workers: a group that is made there later is seen from its start."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen of a process: that it lives, or that it or its raylet ended, and what it left."""

    memory_bytes: int = 0
    n_oom_kills: int = -1
    has_ended: bool = False
    status: int | None = None
    findings: Findings | None = None
    raylet_end: str = ""


class NodeWatcher:
    """Watches processes of the machine it runs on; an actor of its own there."""

    def __init__(self) -> None:
        """Start with no process."""
        self._pidfds: dict[int, int] = {}

    def watch(self, processes: Sequence[tuple[int, ProcessInfo]], wait_s: float) -> tuple[Sighting, ...]:
        """Return what is seen of processes once one of them ends, or after ``wait_s``."""
        wanted = {pid for pid, _ in processes} | {info.raylet_pid for _, info in processes if info.raylet_pid}
        for pid in set(self._pidfds) - wanted:
            os.close(self._pidfds.pop(pid))
        for pid in wanted - set(self._pidfds):
            with suppress(ProcessLookupError):
                self._pidfds[pid] = os.pidfd_open(pid)
        if wanted == set(self._pidfds):
            self._ready(wait_s)
        ended: dict[int, int | None] = dict.fromkeys(wanted - set(self._pidfds))
        for pid in self._ready(0.0):
            ended[pid] = wait_status(self._pidfds[pid], pid)
        return tuple(_sighting(pid, info, ended) for pid, info in processes)

    def _ready(self, wait_s: float) -> list[int]:
        """Return the processes that have ended; wait for the first one."""
        poll = select.poll()
        by_fd = {pidfd: pid for pid, pidfd in self._pidfds.items()}
        for pidfd in by_fd:
            poll.register(pidfd, select.POLLIN)
        return [by_fd[pidfd] for pidfd, _ in poll.poll(wait_s * 1000)]


def _sighting(pid: int, info: ProcessInfo, ended: dict[int, int | None]) -> Sighting:
    if info.raylet_pid in ended:
        raylet_end = raylet_end_in_words(info.raylet_pid, ended[info.raylet_pid])
    else:
        raylet_end = raylet_end_of_killed(info.raylet_pid, ended.get(pid))
    return Sighting(
        memory_bytes=rss_bytes(pid),
        n_oom_kills=count_oom_kills(info.memory_events),
        has_ended=pid in ended,
        status=ended.get(pid),
        findings=examine(info, pid) if pid in ended or raylet_end else None,
        raylet_end=raylet_end,
    )


@dataclass(eq=False)
class _OnNode:
    """The watcher of one node, as the driver knows it."""

    node: str
    cluster: Cluster
    actor: ActorHandle | None = None
    is_busy: bool = False
    next_try_s: float = 0.0
    needed_s: float = 0.0
    answered_s: float = float("-inf")


class NodeWatchers:
    """Has a watcher on every node with workers but the driver's. ``report`` is called on a thread of the cluster's."""

    def __init__(self, report: Callable[[TrackedProcess], None], wake: Callable[[], None]) -> None:
        """Start without any; ``report`` is called for processes that ended, ``wake`` brings on the next ``tend``."""
        self._report = report
        self._wake = wake
        self._lock = threading.Lock()
        self._by_node: dict[str, _OnNode] = {}
        self._closed = False

    def sees(self, tracked: TrackedProcess) -> bool:
        """Return whether a watcher on the process's node can be counted on."""
        watcher = self._by_node.get(tracked.node)
        return watcher is not None and time.monotonic() - watcher.answered_s < _SILENT_S

    def tend(self, remote: Sequence[TrackedProcess]) -> None:
        """Ask every idle watcher about the processes on its node; start those that are missing."""
        by_node: dict[str, list[TrackedProcess]] = {}
        for one in remote:
            if one.node and one.info.machine and not one.ended.is_set():
                by_node.setdefault(one.node, []).append(one)
        now_s = time.monotonic()
        with self._lock:
            for node, here in by_node.items():
                ranks = [ranks for one in here for ranks, _ in one.watchers()]
                if not self._closed and ranks:
                    watcher = self._by_node.setdefault(node, _OnNode(node, ranks[0].cluster))
                    watcher.needed_s = now_s
                    self._ask(watcher, here)
            for watcher in [one for one in self._by_node.values() if now_s - one.needed_s > _LINGERS_S]:
                self._end(self._by_node.pop(watcher.node))

    def close(self) -> None:
        """End all watchers; may be called twice."""
        with self._lock:
            self._closed = True
            while self._by_node:
                self._end(self._by_node.popitem()[1])

    def _ask(self, watcher: _OnNode, here: list[TrackedProcess]) -> None:
        if watcher.is_busy or time.monotonic() < watcher.next_try_s:
            return
        try:
            if watcher.actor is None:
                watcher.actor = watcher.cluster.spawn(SpawnRequest(NodeWatcher, "", node=watcher.node))
            about = tuple((one.pid, one.info) for one in here)
            ref = watcher.cluster.ask(watcher.actor, "watch", (about, LOOK_S), {})
        except Exception as error:
            self._lost(watcher, error)
            return
        watcher.is_busy = True
        watcher.cluster.on_ready(ref, partial(self._answered, watcher, here))

    def _answered(self, watcher: _OnNode, here: list[TrackedProcess], outcome: Outcome) -> None:
        if outcome.error is None:
            watcher.answered_s = time.monotonic()
            for one, sighting in zip(here, outcome.value, strict=True):
                self._learn(one, sighting)
        else:
            self._lost(watcher, outcome.error)
        watcher.is_busy = False
        self._wake()

    def _learn(self, one: TrackedProcess, sighting: Sighting) -> None:
        if not sighting.has_ended and not sighting.raylet_end:
            # One that is about to end has given back its memory a moment before.
            if sighting.memory_bytes:
                one.last = LastSeen(sighting.memory_bytes, sighting.n_oom_kills)
            return
        one.last = replace(one.last, status=sighting.status, findings=sighting.findings, raylet_end=sighting.raylet_end)
        one.is_settled.set()
        self._report(one)

    def _lost(self, watcher: _OnNode, error: BaseException | None) -> None:
        _log.debug("the node watcher on %s is lost: %s", watcher.node, error)
        watcher.actor, watcher.next_try_s, watcher.answered_s = None, time.monotonic() + _RETRY_S, float("-inf")

    def _end(self, watcher: _OnNode) -> None:
        if watcher.actor is not None:
            watcher.cluster.kill(watcher.actor)
            watcher.actor = None
