"""The page Stragglers: which ranks are slow, by which rule, and what each rank cost its group."""

from __future__ import annotations

from dataclasses import dataclass

from web.frame import Content, Frame
from web.rows import RankTotal, Worker
from web.slowness import FALSE_ALARMS, LEAST_CALLS, LEAST_CALLS_OF_FEW_RANKS, LEAST_EFFECT, LEAST_MS
from web.source import RunSource
from web.verdicts import MethodVerdict, Nodes, verdicts

# The rule as the page states it.
RULE = {
    "least_effect": LEAST_EFFECT,
    "least_ms": LEAST_MS,
    "least_calls": LEAST_CALLS,
    "least_calls_of_few": LEAST_CALLS_OF_FEW_RANKS,
    "false_alarms": FALSE_ALARMS,
}


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank with its share of what its group lost. ``slow_in`` are the methods in which it is slow."""

    total: RankTotal
    node: str
    share: float
    slow_in: tuple[str, ...] = ()

    @property
    def is_slow(self) -> bool:
        """Whether it is slow in some method."""
        return bool(self.slow_in)

    @property
    def goes_on(self) -> bool:
        """Whether its longest streak is the one that it is in."""
        return 1 < self.total.streak == self.total.longest_streak


@dataclass(frozen=True, slots=True)
class NodeTotal:
    """What the ranks on a node lost together, and as a share of all."""

    node: str
    n_ranks: int
    lost_ms: float
    share: float
    n_slow: int


def load_stragglers(source: RunSource, frame: Frame) -> Content:
    """Return the page, narrowed to the query's ``group``."""
    overview = source.overview()
    found = verdicts(source.rank_runs(), nodes_of(overview.workers))
    ranks = stragglers(overview.ranks, overview.workers, found)
    group = frame.params.get("group", "")
    shown = tuple(one for one in ranks if group in {"", one.total.group})
    return Content(
        verdicts=tuple(one for one in found if group in {"", one.group}),
        rule=RULE,
        ranks=shown,
        nodes=by_node(shown),
        groups=sorted({one.total.group for one in ranks}),
        group=group,
        n_slow=sum(one.is_slow for one in shown),
        most_ms=max((one.total.lost_ms for one in shown), default=0.0),
    )


def nodes_of(workers: tuple[Worker, ...]) -> Nodes:
    """Return the node of each rank's last worker."""
    return {(worker.group, worker.rank): worker.node for worker in workers}


def stragglers(
    ranks: tuple[RankTotal, ...], workers: tuple[Worker, ...], found: tuple[MethodVerdict, ...]
) -> tuple[Straggler, ...]:
    """Return the ranks, the one that cost its group most first."""
    lost_ms: dict[str, float] = {}
    for rank in ranks:
        lost_ms[rank.group] = lost_ms.get(rank.group, 0.0) + rank.lost_ms
    node = nodes_of(workers)
    slow_in: dict[tuple[str, int], tuple[str, ...]] = {}
    for one in found:
        for slow in one.slow:
            if slow.cause != "input" and slow.is_ongoing:
                slow_in[one.group, slow.rank] = (*slow_in.get((one.group, slow.rank), ()), one.method)
    rows = []
    for rank in ranks:
        share = rank.lost_ms / lost_ms[rank.group] if lost_ms[rank.group] > 0 else 0.0
        place = (rank.group, rank.rank)
        rows.append(Straggler(rank, node.get(place, ""), share, slow_in.get(place, ())))
    return tuple(sorted(rows, key=lambda one: (-one.total.lost_ms, one.total.group, one.total.rank)))


def by_node(ranks: tuple[Straggler, ...]) -> tuple[NodeTotal, ...]:
    """Return the nodes, the one whose ranks lost most first."""
    nodes: dict[str, list[Straggler]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank)
    whole_ms = sum(rank.total.lost_ms for rank in ranks)
    totals = [
        NodeTotal(
            node or "unknown",
            len(own),
            sum(rank.total.lost_ms for rank in own),
            sum(rank.total.lost_ms for rank in own) / whole_ms if whole_ms > 0 else 0.0,
            sum(rank.is_slow for rank in own),
        )
        for node, own in nodes.items()
    ]
    return tuple(sorted(totals, key=lambda one: (-one.lost_ms, one.node)))
