"""Real rows told from padding: ids first, then columns, then place; never by guessing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict

from core import DataProto
from core.data import pack
from core.data.identity import real_rows
from core.data.rows import cut_rows, join, row_count, select_rows, split_rows_into_shares
from core.data.shares import Share, Uneven, plan_shares
from core.errors import BatchError, RowIdentityError, ShareError
from tests.unit.test_data_proto_wire import travel


def share(n_real: int, n_padding: int, **columns: list[Any]) -> DataProto:
    """Make the padded share of a batch as a rank gets it: its rows, then its rows again, with ids."""
    batch = DataProto.from_dict({name: torch.tensor(column) for name, column in columns.items()})
    return next(iter(split_rows_into_shares(batch, [Share(0, n_real, n_padding)], "#1")))  # type: ignore[no-any-return]


def kept(given_share: DataProto, returned: object, n_real: int, n_padding: int) -> tuple[int, ...] | None:
    """Return the rows of a result that are real."""
    return real_rows([given_share], returned, n_real, n_padding, "G.m")


@given(
    n_real=st.integers(1, 6),
    n_padding=st.integers(1, 6),
    picks=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_rows_of_the_batch_itself_are_always_told_apart(n_real: int, n_padding: int, picks: list[int]) -> None:
    batch = share(n_real, n_padding, same=[0] * n_real)
    indices = [pick % (n_real + n_padding) for pick in picks]
    found = kept(batch, batch[indices], n_real, n_padding)
    assert found == tuple(place for place, row in enumerate(indices) if row < n_real)


@given(
    values=st.lists(st.integers(0, 3), min_size=2, max_size=6),
    n_padding=st.integers(1, 6),
    how=st.sampled_from(["keep", "interleave", "tile", "filter", "reorder", "new", "flip"]),
    named=st.booleans(),
)
def test_without_ids_the_answer_is_right_or_refused(values: list[int], n_padding: int, how: str, named: bool) -> None:
    n_real = len(values)
    columns = {"x": values, **({"name": list(range(100, 100 + n_real))} if named else {})}
    batch = share(n_real, n_padding, **columns)
    table = {name: batch.batch[name] for name in columns}
    size = n_real + n_padding
    origin = {
        "keep": list(range(size)),
        "interleave": [row for row in range(size) for _ in range(2)],
        "tile": list(range(size)) * 2,
        "filter": [row for row in range(size) if int(table["x"][row]) < 2],
        "reorder": list(range(size))[::-1],
        "new": list(range(size)),
        "flip": list(range(size)),
    }[how]
    returned = TensorDict({name: column[origin] for name, column in table.items()}, batch_size=[len(origin)])
    returned["extra"] = torch.arange(len(origin))
    if how == "new":
        returned["x"] = returned["x"] * 10 + 7
    if how == "flip":
        returned["x"] = 3 - returned["x"]
    right = tuple(place for place, row in enumerate(origin) if row < n_real)
    try:
        found = kept(batch, returned, n_real, n_padding)
    except RowIdentityError:
        assert how in {"reorder", "flip", "interleave", "tile"}
        assert how not in {"interleave", "tile"} or len(set(values)) == 1
        return
    assert found is not None
    if how == "filter":
        # Equal rows were treated alike: which of them are called the real ones does not matter.
        assert [int(returned["x"][place]) for place in found] == [int(table["x"][origin[place]]) for place in right]
        return
    if how == "reorder":
        # Read the same backwards, it cannot be known that it was turned round: it is taken as it came.
        assert all(torch.equal(returned[name], column) for name, column in table.items())
        return
    assert found == right


def test_a_share_of_one_row_and_its_copies_is_told_by_the_count() -> None:
    batch = share(1, 3, x=[5])
    assert kept(batch, torch.zeros(8), 1, 3) == (0, 1)
    assert kept(batch, [1, 2, 3, 4], 1, 3) == (0,)
    with pytest.raises(RowIdentityError):
        kept(batch, torch.zeros(3), 1, 3)


def test_new_values_with_as_many_rows_are_taken_by_their_place() -> None:
    batch = share(3, 2, x=[1, 2, 3])
    for returned in (torch.zeros(5), np.zeros((5, 2)), ["a"] * 5, {"y": torch.zeros(5)}):
        assert kept(batch, returned, 3, 2) == (0, 1, 2)


def test_new_values_of_another_number_are_refused_with_the_counts() -> None:
    with pytest.raises(RowIdentityError, match=r"G\.m got 3 rows and 2 padding rows and returned 10 rows") as caught:
        kept(share(3, 2, x=[1, 2, 3]), torch.zeros(10), 3, 2)
    assert (caught.value.n_rows_in, caught.value.n_padding, caught.value.n_rows_out) == (3, 2, 10)


def test_a_tensor_that_came_back_in_another_order_is_refused() -> None:
    given_rows = torch.tensor([1, 2, 3, 1])
    with pytest.raises(RowIdentityError):
        real_rows([given_rows], given_rows.flip(0), 3, 1, "G.m")
    assert real_rows([given_rows], given_rows * 10, 3, 1, "G.m") == (0, 1, 2)
    assert real_rows([given_rows], given_rows[[0, 2, 3]], 3, 1, "G.m") == (0, 1)


@pytest.mark.parametrize("value", [None, 3, "text", {"loss": 0.5}, {"loss": torch.tensor(0.5)}, torch.tensor(1.0)])
def test_what_has_no_rows_has_no_padding(value: object) -> None:
    assert kept(share(2, 1, x=[1, 2]), value, 2, 1) is None


def test_a_share_of_padding_alone_has_no_real_rows_whatever_comes_back() -> None:
    batch = next(iter(split_rows_into_shares(DataProto.from_dict({"x": torch.arange(3)}), [Share(3, 3, 2)], "#1")))
    for returned in (batch, [1, 2, 3], torch.zeros(7)):
        assert real_rows([batch], returned, 0, 2, "G.m") == ()


def test_broadcast_values_beside_the_share_do_not_disturb() -> None:
    batch = share(2, 1, x=[1, 2])
    for other in (torch.tensor(0.5), torch.zeros(7), {"x": torch.zeros(9)}, None, "text"):
        assert real_rows([batch, other], {"x": batch.batch["x"]}, 2, 1, "G.m") == (0, 1)


def test_object_columns_and_nan_are_compared_by_value() -> None:
    batch = DataProto.from_dict({"x": torch.tensor([float("nan"), 2.0])}, {"name": [{"a": 1}, [2]]})
    (given_share,) = split_rows_into_shares(batch, [Share(0, 2, 1)], "#1")
    returned = {
        "x": given_share.batch["x"].repeat_interleave(2),
        "name": np.repeat(given_share.non_tensor_batch["name"], 2),
    }
    assert kept(given_share, returned, 2, 1) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (DataProto.from_dict({"x": torch.zeros(3)}), 3),
        (TensorDict({"x": torch.zeros(3)}, batch_size=[3]), 3),
        (TensorDict({}, batch_size=[]), None),
        (torch.zeros(2, 5), 2),
        (np.zeros((4, 1)), 4),
        ([1, 2], 2),
        ([], 0),
        ({}, None),
        ({"a": torch.zeros(2), "b": np.zeros(2)}, 2),
        ({"a": torch.zeros(2), "b": np.zeros(3)}, None),
        ({"a": torch.zeros(2), "b": 1.0}, None),
        ("text", None),
        (None, None),
    ],
)
def test_the_rows_of_any_value_are_counted(value: object, expected: int | None) -> None:
    assert row_count(value) == expected


@pytest.mark.parametrize(
    "whole",
    [
        DataProto.from_dict({"x": torch.arange(4)}, {"name": list("abcd")}),
        torch.arange(4),
        np.arange(4),
        list("abcd"),
    ],
)
def test_parts_that_were_selected_join_to_the_whole(whole: Any) -> None:
    parts = [select_rows(whole, [0, 1]), select_rows(whole, []), select_rows(whole, [2, 3])]
    joined = join(parts, "G.m")
    if isinstance(whole, DataProto):
        assert joined == whole
    else:
        assert list(joined) == list(whole)


def test_values_without_rows_come_back_by_rank_and_none_as_none() -> None:
    assert join([None, None], "G.m") is None
    assert join([{"loss": 1.0}, {"loss": 2.0}], "G.m") == [{"loss": 1.0}, {"loss": 2.0}]
    assert join([1, None], "G.m") == [1, None]
    parts = [{"a": torch.zeros(2)}, {"b": torch.zeros(2)}]
    assert join(parts, "G.m") == parts


def test_a_batch_on_some_ranks_only_is_refused_by_rank() -> None:
    batch = DataProto.from_dict({"x": torch.arange(2)})
    for other in (None, 3, torch.zeros(2)):
        with pytest.raises(ShareError, match="rank 0: DataProto, rank 1: "):
            join([batch, other], "G.m")


def test_tensordicts_without_rows_come_back_by_rank_and_beside_rows_are_refused_as_what_they_are() -> None:
    lone = [TensorDict({"loss": torch.tensor(float(rank))}, batch_size=[]) for rank in range(2)]
    by_rank = join(lone, "G.m")
    assert [part["loss"].item() for part in by_rank] == [0.0, 1.0]
    rows = TensorDict({"loss": torch.zeros(2)}, batch_size=[2])
    with pytest.raises(ShareError, match=r"on some ranks only.* rank 0: TensorDict, rank 1: TensorDict without rows"):
        join([rows, lone[0]], "G.m")
    with pytest.raises(ShareError, match="rank 0: TensorDict, rank 1: NoneType"):
        join([rows, None], "G.m")
    assert join([lone[0], None], "G.m") == [lone[0], None]


@pytest.mark.parametrize("other", ["v1", "v2", {"t": 1}])
def test_a_value_beside_rows_stays_one_where_the_parts_agree_and_is_each_rows_own_where_not(other: Any) -> None:
    def part(value: Any, n_rows: int) -> TensorDict:
        lone = NonTensorData(value, batch_size=[n_rows])
        return TensorDict({"x": torch.zeros(n_rows), "version": lone}, batch_size=[n_rows])

    parts = [travel(pack(part(value, n_rows))) for value, n_rows in (("v1", 2), (other, 1), ("unseen", 0))]
    joined = join(parts, "G.m").get("version")
    if other == "v1":
        assert isinstance(joined, NonTensorData)
        assert joined.data == "v1"
    else:
        assert joined.tolist() == ["v1", "v1", other]
    assert join([part("a", 0), part("b", 0)], "G.m").batch_size == (0,)


def test_an_error_about_a_result_names_method_and_key() -> None:
    with pytest.raises(BatchError, match=r"the result of G\.m\['s'\] is a numpy masked array"):
        join([{"s": np.ma.array([1.0], mask=[True])}] * 2, "G.m")


def jagged(lengths: Sequence[int]) -> torch.Tensor:
    """Make a jagged tensor whose row ``i`` counts to ``lengths[i]``."""
    return torch.nested.as_nested_tensor([torch.arange(length) for length in lengths], layout=torch.jagged)


def lengths_of(tensor: torch.Tensor) -> list[int]:
    """Return the lengths of a jagged tensor's rows."""
    return [len(row) for row in tensor.unbind()]


@pytest.mark.parametrize("uneven", [Uneven.PAD, Uneven.SPLIT])
@pytest.mark.parametrize("kind", ["DataProto", "TensorDict", "tensor"])
def test_fault_40_jagged_rows_are_dealt_selected_and_joined(kind: str, uneven: Uneven) -> None:
    tensor = jagged([3, 1, 2, 4, 2])
    whole: Any = {
        "DataProto": DataProto.from_dict({"j": tensor}),
        "TensorDict": TensorDict({"j": tensor}, batch_size=[5]),
        "tensor": tensor,
    }[kind]

    def column(value: Any) -> Any:
        return value if kind == "tensor" else value.batch["j"] if kind == "DataProto" else value["j"]

    shares = plan_shares(5, 2, uneven)
    parts = split_rows_into_shares(whole, shares, "#1")
    assert [lengths_of(column(part)) for part in parts] == [[3, 1, 2], [4, 2, 4] if uneven is Uneven.PAD else [4, 2]]
    real = [select_rows(part, range(one.n_real)) for part, one in zip(parts, shares, strict=True)]
    assert lengths_of(column(join(real, "G.m"))) == [3, 1, 2, 4, 2]


class Pile:
    """A user's own type with chunk, concat and a length, and no slices."""

    def __init__(self, n_items: int) -> None:
        """Hold some items."""
        self.n_items = n_items

    def __len__(self) -> int:
        return self.n_items

    def chunk(self, chunks: int) -> list[Pile]:
        """Cut into equal parts."""
        return [Pile(self.n_items // chunks)] * chunks

    @staticmethod
    def concat(parts: list[Pile]) -> Pile:
        """Join parts."""
        return Pile(sum(len(part) for part in parts))


def test_padding_in_a_type_without_slices_is_refused_with_the_way_out() -> None:
    assert len(join([Pile(2), Pile(3)], "G.m")) == 5
    with pytest.raises(ShareError, match="a Pile of 3 rows has no slices"):
        select_rows(Pile(3), [0, 1])


def test_columns_in_a_dict_are_cut_and_selected_together() -> None:
    columns = {"y": torch.arange(4), "z": np.arange(4)}
    assert {name: list(column) for name, column in cut_rows(columns, 1, 3).items()} == {"y": [1, 2], "z": [1, 2]}
    assert {name: list(column) for name, column in select_rows(columns, [3, 0]).items()} == {"y": [3, 0], "z": [3, 0]}
