"""How long the driver waits for the ranks of a call.

The nearest setting counts: a ``deadline`` block around the call, then the method's own ``register(timeout_s=)``, the
group's ``call_timeout_s``, and ``set_health(call_timeout_s=)`` for the driver; 0 stands for as long as it takes. A
deadline bounds the driver's wait and nothing else: the ranks go on, and nothing is retried.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence

from core.cluster import Ref
from core.cluster.deadline import block_timeout_s, within_reach
from core.dispatch import Registration
from core.errors import CallTimeoutError
from core.group.call_tracker import CallTracker
from core.group.live_workers import LiveWorkers
from core.health.evidence import process_state
from core.health.in_flight import RankOut, calls_in_flight, ranks_in_words
from core.worker.process_info import machine

_BEAT_S = 1.0
"""How often a wait looks for a death that the cluster does not report."""


def limit_s(live: LiveWorkers, registration: Registration) -> float | None:
    """Return how long a call may wait for its ranks, None for as long as it takes."""
    for timeout_s in (block_timeout_s(), registration.timeout_s, live.call_timeout_s):
        if timeout_s is not None:
            return within_reach(timeout_s) or None
    return within_reach(live.runtime.health_settings.call_timeout_s or 0) or None


def ready_in_time(
    live: LiveWorkers, refs: Sequence[Ref], tracker: CallTracker, timeout_s: float | None
) -> Iterator[list[int]]:
    """Yield the indices of results as they are ready, as ``Cluster.as_ready`` does; an empty list after each second.

    Raises:
        CallTimeoutError: Not all had come within ``timeout_s``.
    """
    ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    pending = list(range(len(refs)))
    while pending:
        asked = list(pending)
        try:
            beat_s = max(0.0, min(_BEAT_S, ends_s - time.monotonic()))
            for ready in live.cluster.as_ready([refs[place] for place in asked], beat_s):
                indices = [asked[index] for index in ready]
                pending = [index for index in pending if index not in indices]
                yield indices
        except TimeoutError:
            if time.monotonic() >= ends_s:
                raise too_late(live, tracker, timeout_s or 0.0) from None
            yield []


def too_late(live: LiveWorkers, tracker: CallTracker, timeout_s: float) -> CallTimeoutError:
    """Give up on a call whose ranks did not all answer; return the error: which did not, since when each was asked."""
    facts = tracker.facts
    tracker.give_up()
    call = next((call for call in calls_in_flight(live.runtime) if call.call_id == facts.call_id), None)
    out = call.out if call is not None else ()
    answered = f"{ranks_in_words(call.answered)} answered; " if call is not None and call.answered else ""
    missing = ", ".join(_in_words(live, one, facts.method) for one in out) or "a result that could not be brought here"
    return CallTimeoutError(
        f"{facts.group}.{facts.method} (call {facts.call_id}) was not answered within {timeout_s:g} s by {missing}; "
        f"{answered}the pending ranks continue, and the next call of the group waits for them",
        group=facts.group,
        method=facts.method,
        missing_ranks=tuple(one.rank for one in out),
        timeout_s=timeout_s,
    )


def _in_words(live: LiveWorkers, one: RankOut, method: str) -> str:
    identity = live.workers.identities[one.rank]
    is_local = identity.pid != os.getpid() and identity.process_info.machine == machine() != ""
    stopped = ", its process is stopped" if is_local and process_state(identity.pid) == "T" else ""
    what = f"waiting behind call {one.behind}" if one.behind else f"in {method}"
    return f"rank {one.rank} ({what} for {one.seconds:.1f} s{stopped})"
