"""What each rank is sent, mode by mode, without any cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from core import (
    DataProto,
    broadcast,
    collect_dp_compute,
    collect_dp_compute_data_proto,
    dispatch_all_to_all,
    dispatch_dp_compute,
    dispatch_dp_compute_data_proto,
    dispatch_dp_compute_data_proto_with_func,
    dispatch_one_to_all,
    per_rank,
)
from core.data.shares import Uneven
from core.dispatch import Arguments
from core.dispatch.split import send_to_all, split_by_convention, split_lists, split_rows
from core.errors import ShareError, UnevenSplitError


@dataclass
class Four:
    """As much of a worker group as dispatch functions look at."""

    world_size: int = 4


def rows(n_rows: int, auto_padding: bool = False) -> DataProto:
    """Make a batch of ids."""
    return DataProto.from_dict({"id": torch.arange(n_rows)}, auto_padding=auto_padding)


def first_values(deal: Any) -> list[Any]:
    """Return the first positional value of each rank."""
    return [rank.args[0] for rank in deal.ranks]


def test_one_to_all_gives_every_rank_the_same_objects_once() -> None:
    value = [1, 2, 3, 4]
    deal = send_to_all(4, Arguments((value,), {"flag": "x"}))
    assert all(rank is deal.ranks[0] for rank in deal.ranks)
    assert all(rank.args[0] is value and rank.kwargs == {"flag": "x"} for rank in deal.ranks)
    assert deal.shard_sizes == ()


@pytest.mark.parametrize("length", [1, 3, 4, 5])
def test_fault_8_one_to_all_never_depends_on_a_lists_length(length: int) -> None:
    value = list(range(length))
    assert first_values(send_to_all(4, Arguments((value,)))) == [value] * 4


def test_fault_8_the_convention_for_lists_and_the_two_ways_to_say_it() -> None:
    four, three = [10, 11, 12, 13], [1, 2, 3]
    assert first_values(split_by_convention(4, Arguments((four,)))) == four
    assert first_values(split_by_convention(4, Arguments((three,)))) == [three] * 4
    assert first_values(split_by_convention(4, Arguments((broadcast(four),)))) == [four] * 4
    assert first_values(split_by_convention(4, Arguments((per_rank(four),)))) == four
    assert first_values(split_by_convention(1, Arguments((["x"],)))) == ["x"]
    assert first_values(split_by_convention(1, Arguments((broadcast(["x"]),)))) == [["x"]]


def test_the_convention_holds_only_when_every_argument_is_such_a_list() -> None:
    four = [10, 11, 12, 13]
    assert first_values(split_by_convention(4, Arguments((four, "x")))) == [four] * 4
    deal = split_by_convention(4, Arguments((four,), {"other": four}))
    assert [rank.kwargs["other"] for rank in deal.ranks] == four
    assert len(set(map(id, split_by_convention(4, Arguments(())).ranks))) == 1


def test_a_tuple_is_never_dealt_by_the_convention() -> None:
    assert first_values(split_by_convention(2, Arguments(((1, 2),)))) == [(1, 2)] * 2


def test_lists_are_dealt_one_item_per_rank_positional_or_keyword() -> None:
    deal = split_lists(2, Arguments(([1, 2],), {"b": ("x", "y"), "c": broadcast([0])}))
    assert [(rank.args[0], rank.kwargs["b"], rank.kwargs["c"]) for rank in deal.ranks] == [(1, "x", [0]), (2, "y", [0])]


@pytest.mark.parametrize("value", [[1, 2, 3], [], 7, "ab", None, {0: 1, 1: 2}])
def test_what_is_no_list_of_one_item_per_rank_is_refused_and_named(value: object) -> None:
    with pytest.raises(ShareError, match="argument b must be a list with one item for each of 2 ranks") as caught:
        split_lists(2, Arguments(([1, 2],), {"b": value}))
    assert caught.value.argument == "b"


def test_a_per_rank_argument_of_another_length_is_refused() -> None:
    with pytest.raises(ShareError, match="3 items, the group has 2 ranks"):
        send_to_all(2, Arguments((per_rank([1, 2, 3]),)))


def test_rows_are_cut_in_order_and_positional_and_keyword_arguments_alike() -> None:
    deal = split_rows(4, Arguments((rows(8),), {"other": rows(8)}), None, "m")
    for rank, given in enumerate(deal.ranks):
        assert given.args[0].batch["id"].tolist() == [2 * rank, 2 * rank + 1]
        assert given.kwargs["other"].batch["id"].tolist() == [2 * rank, 2 * rank + 1]
    assert (deal.rows, deal.shard_sizes, deal.padding_rows, deal.padded) == (8, (2,) * 4, 0, False)


def test_rows_that_do_not_divide_are_refused_by_default_with_the_counts_and_the_way_out() -> None:
    with pytest.raises(
        UnevenSplitError, match=r"10 rows of argument #1 of G\.m into 4 equal shares; .*auto_padding"
    ) as e:
        split_rows(4, Arguments((rows(10),)), None, "G.m")
    assert (e.value.n_rows, e.value.n_parts) == (10, 4)


@pytest.mark.parametrize("as_keyword", [False, True])
def test_fault_4_padding_is_dealt_without_touching_the_callers_batch(as_keyword: bool) -> None:
    batch = rows(10, auto_padding=True)
    arguments = Arguments((), {"data": batch}) if as_keyword else Arguments((batch,))
    deal = split_rows(4, arguments, None, "m")
    assert (deal.rows, deal.shard_sizes, deal.padding_rows, deal.padded) == (10, (3,) * 4, 2, True)
    last = deal.ranks[3].kwargs["data"] if as_keyword else deal.ranks[3].args[0]
    assert last.row_ids.tolist() == [9, -1, -1]
    assert last.batch["id"].tolist() == [9, 9, 9]
    assert len(batch) == 10
    assert batch.row_ids is None


def test_fault_4_the_same_batch_twice_is_padded_alike() -> None:
    batch = rows(5, auto_padding=True)
    for rank in split_rows(4, Arguments((batch, batch)), None, "m").ranks:
        assert rank.args[0] == rank.args[1]


def test_a_setting_of_the_method_goes_before_that_of_the_batch() -> None:
    deal = split_rows(4, Arguments((rows(5, auto_padding=True),)), Uneven.SPLIT, "m")
    assert (deal.shard_sizes, deal.padding_rows) == ((2, 1, 1, 1), 0)
    with pytest.raises(UnevenSplitError):
        split_rows(4, Arguments((rows(5, auto_padding=True),)), Uneven.ERROR, "m")


@pytest.mark.parametrize("value", [3, "text", None, [1, 2], {"a": torch.zeros(2)}, np.zeros(4)])
def test_what_has_no_rows_is_refused_with_the_way_to_send_it_to_all(value: object) -> None:
    with pytest.raises(ShareError, match=r"argument #2 of m .* core\.broadcast"):
        split_rows(2, Arguments((rows(2), value)), None, "m")


def test_a_broadcast_argument_goes_whole_to_every_rank_beside_rows() -> None:
    deal = split_rows(2, Arguments((rows(4), broadcast([1, 2, 3]))), None, "m")
    assert [rank.args[1] for rank in deal.ranks] == [[1, 2, 3]] * 2


@pytest.mark.parametrize("value", [TensorDict({"id": torch.arange(5)}, batch_size=[5]), torch.arange(5)])
def test_tensordicts_and_tensors_have_rows_too(value: Any) -> None:
    deal = split_rows(4, Arguments((value,)), Uneven.PAD, "m")
    given = [rank.args[0]["id"] if isinstance(value, TensorDict) else rank.args[0] for rank in deal.ranks]
    assert [part.tolist() for part in given] == [[0, 1], [2, 3], [4, 4], [0, 1]]


class Pile:
    """A user's own type: it can be cut and joined, and no more."""

    def __init__(self, items: list[int]) -> None:
        """Hold the items."""
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def chunk(self, chunks: int) -> list[Pile]:
        """Cut into equal parts."""
        size = len(self.items) // chunks
        return [Pile(self.items[part * size : (part + 1) * size]) for part in range(chunks)]

    @staticmethod
    def concat(parts: list[Pile]) -> Pile:
        """Join parts."""
        return Pile([item for part in parts for item in part.items])


def test_a_type_with_chunk_and_concat_takes_part_and_says_so_when_it_cannot_be_padded() -> None:
    deal = split_rows(2, Arguments((Pile([1, 2, 3, 4]),)), None, "m")
    assert [pile.items for pile in first_values(deal)] == [[1, 2], [3, 4]]
    assert collect_dp_compute_data_proto(Four(2), first_values(deal)).items == [1, 2, 3, 4]
    with pytest.raises(ShareError, match="a Pile of 5 rows, which has only chunk and concat"):
        split_rows(2, Arguments((Pile([1, 2, 3, 4, 5]),)), Uneven.PAD, "m")


def test_batches_of_different_lengths_are_dealt_if_each_divides_and_refused_if_not() -> None:
    deal = split_rows(2, Arguments((rows(4), rows(2)), {"meta_only": rows(0)}), None, "m")
    assert [len(rank.args[1]) for rank in deal.ranks] == [1, 1]
    with pytest.raises(ShareError, match=r"different lengths .*#1: 4, #2: 3"):
        split_rows(2, Arguments((rows(4), rows(3))), Uneven.PAD, "m")


def test_batches_whose_rows_do_not_belong_together_are_refused_with_both_counts() -> None:
    with pytest.raises(ShareError, match="arguments #1 and values of m have 4 and 6 rows, which cannot") as caught:
        split_rows(2, Arguments((rows(4),), {"values": rows(6)}), None, "m")
    assert caught.value.argument == "values"
    (alone,) = split_rows(1, Arguments((rows(4), rows(6))), None, "m").ranks
    assert [len(batch) for batch in alone.args] == [4, 6]


def test_shards_share_no_meta_with_each_other_or_with_the_caller() -> None:
    batch = rows(4)
    batch.meta_info["step"] = 1
    one, other = first_values(split_rows(2, Arguments((batch,)), None, "m"))
    one.meta_info["step"] = 2
    assert (other.meta_info["step"], batch.meta_info["step"]) == (1, 1)


def test_the_functions_of_the_field_give_one_column_per_argument() -> None:
    assert dispatch_one_to_all(Four(), 1, b=2) == (([1] * 4,), {"b": [2] * 4})
    assert dispatch_all_to_all(Four(), 1, b=2) == ((1,), {"b": 2})
    assert dispatch_dp_compute(Four(2), [1, 2]) == (([1, 2],), {})
    (parts,), _ = dispatch_dp_compute_data_proto(Four(2), rows(4))
    assert [part.batch["id"].tolist() for part in parts] == [[0, 1], [2, 3]]
    (functions, parts), _ = dispatch_dp_compute_data_proto_with_func(Four(2), len, rows(4))
    assert functions == [len, len]
    assert [len(part) for part in parts] == [2, 2]


def test_with_func_takes_any_callable_and_nothing_else() -> None:
    # fault 49: partials, builtins and bound methods were refused by a bare assertion
    dispatch_dp_compute_data_proto_with_func(Four(2), "text".upper, rows(4))
    for wrong in ((), (rows(4),), ("len", rows(4))):
        with pytest.raises(ShareError, match="takes a function in first place"):
            dispatch_dp_compute_data_proto_with_func(Four(2), *wrong)


def test_results_of_another_number_than_the_ranks_are_refused() -> None:
    assert collect_dp_compute(Four(2), [1, 2]) == [1, 2]
    with pytest.raises(ShareError, match="3 results for 2 ranks"):
        collect_dp_compute(Four(2), [1, 2, 3])
