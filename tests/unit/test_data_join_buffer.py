"""Parts that land in what they will be joined to: the same result as a join of copies, without the second copy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from core import DataProto
from core.data import join_buffer
from core.data.equality import values_equal
from core.data.join_buffer import JoinBuffer
from core.data.memory import address_of
from core.data.rows import join, row_count
from core.errors import BatchError
from tests.unit.test_data_zero_copy import lent


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small columns land too."""
    monkeypatch.setattr("core.data.join_buffer.MIN_COLUMN_BYTES", 1)
    monkeypatch.setattr("core.data.tensors._LARGE_BYTES", 1)


def batch(start: int, n_rows: int, dtype: torch.dtype = torch.float32) -> DataProto:
    """Make rows with columns of several kinds."""
    x = torch.arange(start, start + n_rows).to(dtype)
    ragged = torch.nested.nested_tensor([torch.ones(2 + row % 2) for row in range(n_rows)], layout=torch.jagged)
    return DataProto.from_dict(
        {"x": x, "y": torch.full((n_rows, 2, 3), start, dtype=torch.int16), "ragged": ragged, "in": {"z": x + 1}},
        {"a": np.arange(start, start + n_rows, dtype=np.int64), "o": [str(row) for row in range(n_rows)]},
        {"m": 1},
    )


def joined(values: Sequence[Any], sizes: Sequence[int], order: Sequence[int]) -> tuple[Any, JoinBuffer, list[Any]]:
    """Receive values on loan, in an order, and join them where they land."""
    parts, borrowed = lent(values)
    places = JoinBuffer(sizes, borrowed)
    for place in order:
        if places.is_on:
            parts[place] = places.add_part(place, parts[place], row_count(parts[place]))
    with places:
        return borrowed.owned(join(parts, "G.m")), places, parts


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("times", [1, 2])
def test_columns_are_joined_where_they_landed_in_whatever_order_they_came(order: Sequence[int], times: int) -> None:
    sizes = [2, 3, 1]
    values = [batch(10 * place, size * times) for place, size in enumerate(sizes)]
    result, _, parts = joined(values, sizes, order)
    assert values_equal(result, join(values, "G.m"))
    for key in ("x", "y"):
        assert result.batch[key].data_ptr() == parts[0].batch[key].data_ptr()
        result.batch[key] += 1
    assert address_of(result.non_tensor_batch["a"]) == address_of(parts[0].non_tensor_batch["a"])
    result.non_tensor_batch["a"][:] = 0


@pytest.mark.parametrize("values", [
    [torch.arange(4.0), torch.arange(8.0)],
    [np.arange(4.0), np.arange(8.0)],
    [{"a": torch.ones(4, 2), "b": np.ones(4)}, {"a": torch.ones(8, 2), "b": np.ones(8)}],
    [batch(0, 4).batch, batch(1, 8).batch],
])  # fmt: skip
def test_what_has_rows_lands_whatever_it_is(values: list[Any]) -> None:
    result, places, _ = joined(values, [2, 4], [1, 0])
    assert values_equal(result, join(values, "G.m"))
    assert places.is_on
    assert not places._columns


@pytest.mark.parametrize("odd", [
    batch(5, 3), batch(5, 2, torch.float64), batch(5, 2, torch.int32), batch(5, 1)[:0], None,
    batch(5, 2).select(["x"], ["a"]), [1, 2], torch.ones(2), DataProto.from_dict({}, {}, {"m": 1}),
    DataProto.from_dict({**batch(5, 2).batch, "y": torch.ones(2, 3)}, batch(5, 2).non_tensor_batch, {"m": 1}),
    DataProto.from_dict({**batch(5, 2).batch, "y": torch.ones(2, 2, 3)[:, 0]}, batch(5, 2).non_tensor_batch, {"m": 1}),
])  # fmt: skip
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_part_that_does_not_fit_gives_what_joining_copies_gives(odd: Any, order: Sequence[int]) -> None:
    values = [batch(0, 2), odd]

    def outcome(run: Any) -> Any:
        try:
            return run()
        except Exception as error:
            return type(error), str(error)

    expected, found = outcome(lambda: join(lent(values)[0], "G.m")), outcome(lambda: joined(values, [2, 2], order)[0])
    assert values_equal(found, expected)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 2), st.data())
def test_any_parts_in_any_order_give_what_joining_copies_gives(sizes: list[int], times: int, data: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_buffer, "MIN_COLUMN_BYTES", 1)
        patch.setattr("core.data.tensors._LARGE_BYTES", 1)
        order = data.draw(st.permutations(range(len(sizes))))
        values = [
            DataProto.from_dict({"x": torch.randint(9, (size * times, 2))}, {"a": np.ones((size * times, 1))})
            for size in sizes
        ]
        assert values_equal(joined(values, sizes, order)[0], join(values, "G.m"))


def test_parts_that_never_came_leave_the_others_to_be_copied() -> None:
    values = [torch.arange(4.0), torch.arange(4.0, 8.0)]
    result, places, parts = joined(values, [4, 4], [0])
    assert result.tolist() == list(range(8))
    assert result.data_ptr() != parts[0].data_ptr()
    assert places._columns


def test_the_joined_memory_is_given_away_once_and_only_for_all_parts_in_order() -> None:
    values = [torch.arange(4.0), torch.arange(4.0, 8.0)]
    _, places, parts = joined(values, [4, 4], [])
    parts = [places.add_part(place, part, 4) for place, part in enumerate(parts)]
    with places:
        backwards, first = join(parts[::-1], "G.m"), join(parts[:1], "G.m")
        once, again = join(parts, "G.m"), join(parts, "G.m")
    assert backwards.tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert first.tolist() == [0, 1, 2, 3]
    assert once.data_ptr() == parts[0].data_ptr()
    assert again.data_ptr() not in {once.data_ptr(), backwards.data_ptr()}
    assert again.tolist() == once.tolist() == list(range(8))


def test_what_is_not_on_loan_stays_where_it_is_and_neighbours_in_memory_are_copied_elsewhere() -> None:
    whole = torch.arange(8.0)
    parts = [whole[:4], whole[4:]]
    _, places, _ = joined([torch.ones(1), torch.ones(1)], [1, 1], [])
    assert places.add_part(0, parts[0], 1) is parts[0]
    with places:
        assert join(parts, "G.m").data_ptr() != whole.data_ptr()
    assert join(parts, "G.m").data_ptr() != whole.data_ptr()


def test_columns_whose_names_read_alike_land_apart() -> None:
    values = [{1: torch.full((2,), place), "1": torch.full((2,), -place)} for place in (3, 4)]
    result, places, _ = joined(values, [2, 2], [0, 1])
    assert (result[1].tolist(), result["1"].tolist()) == ([3, 3, 4, 4], [-3, -3, -4, -4])
    assert not places._columns


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_columns_stay_as_they_came(layout: torch.layout) -> None:
    rows = [torch.ones(2), torch.ones(3)]
    values = [
        TensorDict({"n": torch.nested.nested_tensor(rows, layout=layout), "x": torch.ones(2)}, [2]) for _ in range(2)
    ]
    result, _, parts = joined(values, [2, 2], [0, 1])
    assert [row.numel() for row in result["n"].unbind()] == [2, 3, 2, 3]
    assert result["x"].data_ptr() == parts[0]["x"].data_ptr()


@pytest.mark.parametrize("length", [1, 4, 9])
def test_an_array_that_a_worker_made_of_another_length_than_its_batch_is_told_by_the_join(length: int) -> None:
    values = [batch(0, 3), batch(3, 3)]
    values[0].non_tensor_batch["a"] = np.arange(length)
    with pytest.raises(BatchError, match=rf"'batch' has 3, non_tensor_batch\['a'\] has {length}"):
        joined(values, [3, 3], [0, 1])


def test_small_columns_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.data.join_buffer.MIN_COLUMN_BYTES", 1 << 20)
    monkeypatch.setattr("core.data.join_buffer.plain_memory", lambda column: pytest.fail("it was"))
    result, _, _ = joined([batch(0, 2), batch(2, 2)], [2, 2], [0, 1])
    assert len(result) == 4
