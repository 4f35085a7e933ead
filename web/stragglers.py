"""The page Stragglers: which ranks the others wait for, and whether it is the rank or its node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from web.frame import Content, Frame
from web.rows import RankTotal, Worker
from web.source import RunSource

LEAST_CALLS = 10
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank with its share of what its group lost. ``is_slow`` says that it is the slowest in most of its calls."""

    total: RankTotal
    node: str
    share: float
    slowest_share: float
    is_slow: bool

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
    ranks = stragglers(overview.ranks, overview.workers)
    group = frame.params.get("group", "")
    shown = tuple(one for one in ranks if group in {"", one.total.group})
    return Content(
        ranks=shown,
        nodes=by_node(shown),
        groups=sorted({one.total.group for one in ranks}),
        group=group,
        n_slow=sum(one.is_slow for one in shown),
        most_ms=max((one.total.lost_ms for one in shown), default=0.0),
    )


def stragglers(ranks: tuple[RankTotal, ...], workers: tuple[Worker, ...]) -> tuple[Straggler, ...]:
    """Return the ranks, the one that cost its group most first."""
    lost_ms: dict[str, float] = {}
    for rank in ranks:
        lost_ms[rank.group] = lost_ms.get(rank.group, 0.0) + rank.lost_ms
    node = {(worker.group, worker.rank): worker.node for worker in workers}
    n_ranks = Counter(rank.group for rank in ranks)
    found = []
    for rank in ranks:
        share = rank.lost_ms / lost_ms[rank.group] if lost_ms[rank.group] > 0 else 0.0
        slowest = rank.n_slowest / rank.n_calls if rank.n_calls else 0.0
        is_one_of_many = n_ranks[rank.group] > 1
        is_slow = rank.n_calls >= LEAST_CALLS and share > _MOSTLY and slowest > _MOSTLY and is_one_of_many
        found.append(Straggler(rank, node.get((rank.group, rank.rank), ""), share, slowest, is_slow))
    return tuple(sorted(found, key=lambda one: (-one.total.lost_ms, one.total.group, one.total.rank)))


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
