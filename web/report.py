"""The report: one HTML file with a run's numbers, which needs no server, no JavaScript and no other file."""

from __future__ import annotations

from datetime import UTC, datetime

from web.frame import Content
from web.latency import MethodLatency
from web.phases import shares_of_call, shares_of_wall_time
from web.postmortem import verdict, wall_time
from web.source import RunSource
from web.stragglers import by_node, nodes_of, stragglers
from web.verdicts import verdicts

N_RANKS = 32
N_EVENTS = 100
N_IN_FLIGHT = 50
N_OPERATIONS = 100
N_DEATHS = 20


def load_report(source: RunSource, now: datetime | None = None) -> Content:
    """Return the report as of ``now``."""
    overview = source.overview()
    run = overview.run
    deaths = source.deaths()
    ranks = stragglers(overview.ranks, overview.workers, verdicts(source.rank_runs(), nodes_of(overview.workers)))
    percentiles: dict[tuple[str, str], MethodLatency] = {
        (one.group, one.method): one for one in source.latencies(None, None)
    }
    return Content(
        overview=overview,
        written_at=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        ended_at=wall_time(run, run.duration_ms),
        verdict=verdict(run, deaths, source.crash_text()),
        wall_shares=shares_of_wall_time(overview.methods, run.duration_ms),
        shares_of_call=shares_of_call,
        percentiles=percentiles,
        ranks=ranks[:N_RANKS],
        n_ranks=len(ranks),
        nodes=by_node(ranks),
        deaths=deaths[:N_DEATHS],
        n_deaths=len(deaths),
        in_flight=source.in_flight(N_IN_FLIGHT),
        gaps=source.gaps(),
        operations=source.operations(N_OPERATIONS, None),
        events=source.events(N_EVENTS, None),
    )
