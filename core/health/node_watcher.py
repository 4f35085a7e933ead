"""Looking out for workers on a machine that is not the driver's: by its own kernel, in a process of ours there.

What the driver can see of processes on its own machine, nobody tells it of others: the moment of an end, the wait
status, the memory shortly before, and the end of the process that keeps all workers of a node (Ray's raylet): they are
lost with it, long before the cluster calls the node dead. A worker is killed with its keeper; a lookout is not, for it
is to tell of that, and then ends as every process of the cluster does.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from core.health.evidence import Found, keeper_in_words, keeper_of_killed, look, rss_bytes, wait_status
from core.worker import Traces
from core.worker.process_info import count_oom_kills


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a process: that it lives, or that it or its keeper ended, and what it left."""

    memory_bytes: int = 0
    n_oom_kills: int = -1
    has_ended: bool = False
    status: int | None = None
    found: Found | None = None
    keeper: str = ""


class Lookout:
    """Watches processes of the machine it runs on."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._pidfds: dict[int, int] = {}

    def look_out(self, watched: Sequence[tuple[int, Traces]], wait_s: float) -> tuple[Sight, ...]:
        """Return what is seen of processes once one of them ends, or after ``wait_s``."""
        wanted = {pid for pid, _ in watched} | {traces.keeper for _, traces in watched if traces.keeper}
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
        return tuple(_sight(pid, traces, ended) for pid, traces in watched)

    def _ready(self, wait_s: float) -> list[int]:
        """Return the processes that have ended; wait for the first one."""
        poll = select.poll()
        by_fd = {pidfd: pid for pid, pidfd in self._pidfds.items()}
        for pidfd in by_fd:
            poll.register(pidfd, select.POLLIN)
        return [by_fd[pidfd] for pidfd, _ in poll.poll(wait_s * 1000)]


def _sight(pid: int, traces: Traces, ended: dict[int, int | None]) -> Sight:
    if traces.keeper in ended:
        keeper = keeper_in_words(traces.keeper, ended[traces.keeper])
    else:
        keeper = keeper_of_killed(traces.keeper, ended.get(pid))
    return Sight(
        memory_bytes=rss_bytes(pid),
        n_oom_kills=count_oom_kills(traces.memory_events),
        has_ended=pid in ended,
        status=ended.get(pid),
        found=look(traces, pid) if pid in ended or keeper else None,
        keeper=keeper,
    )
