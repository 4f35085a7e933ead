"""``GET /api/v1/now``: the calls in flight, from the driver's own memory where it runs, else from the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.api.context import AppContext
from app.api.views import run_start_ns
from web import rows

if TYPE_CHECKING:
    from core.health.in_flight import CallInFlight

MAX_CALLS = 200


def calls_now(context: AppContext) -> tuple[rows.CallInFlight, ...]:
    """Return at most ``MAX_CALLS`` calls in flight, the oldest first.

    The record knows where a rank lives and which calls were reported as stalled; it lags slightly behind.
    """
    recorded = context.source.in_flight(MAX_CALLS)
    if context.in_flight is None or context.is_over():
        return recorded
    live = context.in_flight()[:MAX_CALLS]
    if not live:
        return ()
    started_ns = run_start_ns(context.source.run())
    stalled = {call.id for call in recorded if call.is_stalled}
    homes = {(one.group, one.rank): (one.node, one.pid) for one in context.source.workers() if one.state == "alive"}
    return tuple(_view(call, started_ns, homes, call.call_id in stalled) for call in live)


def _view(
    call: CallInFlight, started_ns: int, homes: dict[tuple[str, int], tuple[str, int]], is_stalled: bool
) -> rows.CallInFlight:
    out = tuple(
        rows.RankOut(rank.rank, round(rank.seconds * 1e3, 3), *homes.get((call.group, rank.rank), ("", 0)))
        for rank in call.out
    )
    return rows.CallInFlight(
        id=call.call_id,
        group=call.group,
        pool=call.pool,
        method=call.method,
        blocking=call.blocking,
        started_ms=round((call.at_ns - started_ns) / 1e6, 3),
        running_ms=round(call.seconds * 1e3, 3),
        n_ranks=len(call.out) + len(call.answered),
        out=out,
        is_stalled=is_stalled,
    )
