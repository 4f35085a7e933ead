"""A batch that is still on the workers: which shards a part fetches, and what becomes of padding in them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core import DataProto, DataProtoFuture
from core.cluster.local import LocalCluster
from core.cluster.local_refs import LocalRef
from core.data.rows import join
from core.data.shares import Receipt, Uneven
from core.errors import BatchError, UnevenSplitError

CLUSTER = LocalCluster()


def rows(ids: Sequence[int]) -> DataProto:
    """Make a batch of these ids."""
    return DataProto.from_dict({"id": torch.tensor(list(ids), dtype=torch.int64)})


def ids(batch: Any) -> list[int]:
    """Return the ids of a batch."""
    return [int(row) for row in batch.batch["id"]]


def joined(parts: Sequence[Any]) -> Any:
    """Join as a call does."""
    return join(parts, "G.m")


def receipt(n_rows: int, keep: tuple[int, ...] | None = None, n_padding: int = 0) -> LocalRef:
    """Store what a rank says of a shard."""
    return CLUSTER.put(Receipt(1, 2, n_rows, n_rows, 0, n_padding, keep).pack())


def future_of(sizes: Sequence[int], missing: Sequence[int] = ()) -> DataProtoFuture:
    """Make a future of shards of these sizes; the shards ``missing`` never come."""
    start, refs = 0, []
    for shard, size in enumerate(sizes):
        refs.append(LocalRef() if shard in missing else CLUSTER.put(rows(range(start, start + size))))
        start += size
    return DataProtoFuture(joined, refs, receipts=[receipt(size) for size in sizes])


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    uneven=st.sampled_from([Uneven.SPLIT, Uneven.PAD]),
)
def test_all_parts_of_all_parts_together_are_the_whole(sizes: list[int], cuts: list[int], uneven: Uneven) -> None:
    parts = [future_of(sizes)]
    for n_parts in cuts:
        parts = [smaller for part in parts for smaller in part.chunk(n_parts, uneven)]
    values = [part.materialize() for part in parts]
    if uneven is Uneven.SPLIT:
        assert [row for value, _ in values for row in ids(value)] == list(range(sum(sizes)))
    if len(cuts) == 1:
        real = [row for value, share in values if share for row in ids(value)[: share.n_real]]
        assert real == list(range(sum(sizes)))
    assert {row for value, _ in values for row in ids(value)} == set(range(sum(sizes)))


def test_fault_52_a_part_fetches_only_the_shards_that_overlap_it() -> None:
    # If it fetched the shards that never come, this would hang.
    halves = future_of([3, 3, 3, 3], missing=[2, 3]).chunk(2)
    assert ids(halves[0].get()) == [0, 1, 2, 3, 4, 5]
    quarters = future_of([3, 3, 3, 3], missing=[0, 1, 3]).chunk(4)
    assert ids(quarters[2].get()) == [6, 7, 8]
    sixth = future_of([3, 3, 3, 3], missing=[1, 2, 3]).chunk(2)[0].chunk(3)[0]
    assert ids(sixth.get()) == [0, 1]


def test_a_part_can_span_shards_of_unequal_sizes() -> None:
    thirds = future_of([1, 7, 0, 4]).chunk(3)
    assert [ids(third.get()) for third in thirds] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_padding_in_a_shard_is_left_out_of_the_whole_and_of_every_part() -> None:
    shards = [CLUSTER.put(rows([0, 1])), CLUSTER.put(rows([2, 2])), CLUSTER.put(rows([0, 1]))]
    receipts = [receipt(2), receipt(2, (0,), 1), receipt(2, (), 2)]
    future = DataProtoFuture(joined, shards, receipts=receipts, padded=True)
    assert ids(future.get()) == [0, 1, 2]
    assert [ids(part.get()) for part in future.chunk(3)] == [[0], [1], [2]]


def test_rows_that_do_not_divide_are_refused_when_they_are_known() -> None:
    parts = future_of([3, 2]).chunk(2)
    with pytest.raises(UnevenSplitError, match="cannot split 5 rows of a future batch into 2 equal shares"):
        parts[0].get()


def test_fault_16_the_collect_and_dispatch_functions_are_used() -> None:
    future = future_of([2, 2])
    future.collect_fn = lambda parts: [ids(part) for part in parts]
    assert future.get() == [[0, 1], [2, 3]]
    future.dispatch_fn = len
    assert future.get() == 2


def test_a_future_made_of_references_concatenates_them() -> None:
    future = DataProtoFuture.concat([CLUSTER.put(rows([4, 5])), CLUSTER.put(rows([6]))])
    assert ids(future.get()) == [4, 5, 6]
    assert [ids(part.get()) for part in future.chunk(3)] == [[4], [5], [6]]


def test_a_future_of_values_without_rows_gives_them_whole_and_cannot_be_cut() -> None:
    future = DataProtoFuture.concat([CLUSTER.put({"loss": 1.0}), CLUSTER.put({"loss": 2.0})])
    assert future.get() == [{"loss": 1.0}, {"loss": 2.0}]
    none = DataProtoFuture.concat([CLUSTER.put(None), CLUSTER.put(None)])
    assert none.get() is None
    with pytest.raises(BatchError, match="a future of NoneType has no rows"):
        none.chunk(2)[0].get()


def test_a_future_travels_without_the_drivers_own_way_to_resolve_it() -> None:
    future = DataProtoFuture.concat([CLUSTER.put(rows([1, 2]))])
    future.resolve = lambda: pytest.fail("only the driver resolves in its own way")
    part = pickle.loads(pickle.dumps(future)).chunk(2)[1]
    assert ids(pickle.loads(pickle.dumps(part)).get()) == [2]
    assert future.chunk(2)[0].resolve is None


def test_an_empty_part_still_has_the_columns() -> None:
    part = future_of([2, 1]).chunk(5, Uneven.SPLIT)[4]
    value, share = part.materialize()
    assert ids(value) == []
    assert share is not None
    assert share.size == 0


def test_a_future_of_columns_in_a_dict_is_cut_by_its_rows_and_not_by_its_keys() -> None:
    shards = [
        CLUSTER.put({"y": torch.tensor([0, 1]), "z": torch.tensor([5, 6])}),
        CLUSTER.put({"y": torch.tensor([2, 3]), "z": torch.tensor([7, 8])}),
    ]
    for receipts in ([], [receipt(2), receipt(2)]):
        future = DataProtoFuture(joined, shards, receipts=receipts)
        assert [part.get()["y"].tolist() for part in future.chunk(4)] == [[0], [1], [2], [3]]
        assert future.get()["z"].tolist() == [5, 6, 7, 8]
