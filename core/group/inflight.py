"""The calls in flight right now: which ranks have not answered, and for how long they have been asked.

Values only, no handle: any thread may ask at any time, and nothing of it waits for the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.group.track import CallTracker
from core.runtime import Runtime


@dataclass(frozen=True, slots=True)
class RankOut:
    """A rank that has not answered, ``seconds`` after it was asked.

    ``behind`` is the earlier call of the same group that it is still out with, 0 when there is none: then it is in the
    method, as far as the driver can know.
    """

    rank: int
    seconds: float
    behind: int = 0


@dataclass(frozen=True, slots=True)
class CallInFlight:
    """A call that ranks have not all answered, ``seconds`` after the driver made it at ``at_ns``.

    ``out`` and ``answered`` are in rank order; a rank that was not asked yet is in neither. ``failed`` says that the
    driver has its error already and goes on: the ranks that are out hold up the group's next call.
    """

    call_id: int
    group: str
    pool: str
    method: str
    step: int
    blocking: bool
    at_ns: int
    seconds: float
    out: tuple[RankOut, ...]
    answered: tuple[int, ...]
    failed: bool = False


def calls_in_flight(runtime: Runtime) -> tuple[CallInFlight, ...]:
    """Return the calls of a driver that are in flight, the oldest first."""
    now_ns = runtime.clock.now_ns()
    # A copy in one operation: calls come and go on other threads.
    trackers = [call for call in list(runtime.live_calls.values()) if isinstance(call, CallTracker)]
    first: dict[tuple[str, int], int] = {}
    return tuple(_seen(tracker, now_ns, first) for tracker in sorted(trackers, key=lambda one: one.facts.call_id))


def _seen(tracker: CallTracker, now_ns: int, first: dict[tuple[str, int], int]) -> CallInFlight:
    """Return a call as a value; ``first`` is the oldest call that each rank is out with, and learns from this one."""
    facts = tracker.facts
    asked = sorted(tracker.asked)
    out = []
    for rank, submitted_ns, is_out in asked:
        if is_out:
            oldest = first.setdefault((facts.group, rank), facts.call_id)
            behind = 0 if oldest == facts.call_id else oldest
            out.append(RankOut(rank, max(0.0, (now_ns - submitted_ns) / 1e9), behind))
    return CallInFlight(
        call_id=facts.call_id,
        group=facts.group,
        pool=facts.pool,
        method=facts.method,
        step=facts.step,
        blocking=facts.blocking,
        at_ns=facts.at_ns,
        seconds=max(0.0, (now_ns - facts.at_ns) / 1e9),
        out=tuple(out),
        answered=tuple(rank for rank, _, is_out in asked if not is_out),
        failed=tracker.has_failed,
    )
