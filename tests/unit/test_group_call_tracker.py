"""What a tracker knows of a call from how its rows were dealt."""

from __future__ import annotations

import pytest

from core.cluster.local import LocalCluster
from core.data.shares import Share
from core.dispatch.split import Dispatched, RankArguments
from core.group.call_tracker import CallTracker
from core.runtime import CallFacts, Runtime


def dealt(*sizes: int) -> tuple[RankArguments, ...]:
    """Give each rank rows."""
    return tuple(RankArguments((), {}, Share(0, size)) for size in sizes)


@pytest.mark.parametrize(("ranks", "deal", "sizes"), [
    ((0, 1), Dispatched(dealt(2, 3), 5), (2, 3)),
    ((0, 1, 2), Dispatched(dealt(2, 2, 3), 5, sources=(2, 0)), (3, 2)),
    ((0, 1), Dispatched(dealt(2, 3), 5, padded=True), ()),
    ((0, 1), Dispatched((RankArguments((), {}),) * 2), ()),
    ((0,), Dispatched(dealt(2, 3), 5), ()),
])  # fmt: skip
def test_rows_behind_results_are_known_where_rows_were_dealt_without_padding_to_ranks_that_all_answer(
    ranks: tuple[int, ...], deal: Dispatched, sizes: tuple[int, ...]
) -> None:
    tracker = CallTracker(
        Runtime(LocalCluster), CallFacts(1, "g", "m", ranks, True), (), lambda _: None, lambda *_: None
    )
    tracker.dispatched(deal)
    assert tracker.sizes_to_join == sizes
