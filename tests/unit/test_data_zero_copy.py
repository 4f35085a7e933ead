"""Memory on loan: joined without a copy, and copied where a result still has it."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from core import DataProto
from core.data import pack
from core.data.equality import values_equal
from core.data.rows import join
from core.data.wire import sending
from core.data.zero_copy import BorrowedBuffers, borrowing, views


def sent(value: Any) -> tuple[bytes, list[bytes]]:
    """Pickle a value as Ray does: its memory out of band."""
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(pack(value), 5, buffer_callback=buffers.append), [bytes(one.raw()) for one in buffers]


def lent(values: Sequence[Any]) -> tuple[list[Any], BorrowedBuffers]:
    """Receive values on loan."""
    packed = [sent(value) for value in values]
    with borrowing() as borrowed:
        return [pickle.loads(data, buffers=buffers) for data, buffers in packed], borrowed


def addresses(value: Any) -> set[int]:
    """Return where the memory of a batch begins, column by column."""
    tensors = [value.batch["x"], value.batch["ragged"].values(), value.batch["inner", "y"]]
    arrays = [value.non_tensor_batch["a"], value.non_tensor_batch["o"][1]]
    pointers = [array.__array_interface__["data"][0] for array in arrays]
    return {tensor.data_ptr() for tensor in [*tensors, value.non_tensor_batch["o"][0]]} | set(pointers)


def batch(start: int) -> DataProto:
    """Make three rows with a column of each kind."""
    ragged = [torch.full((n, 2), float(start)) for n in (1, 0, 2)]
    jagged = torch.nested.nested_tensor(ragged, layout=torch.jagged)
    return DataProto.from_dict(
        {"x": torch.arange(start, start + 3), "ragged": jagged, "twice": jagged * 2, "inner": {"y": torch.ones(3, 2)}},
        {"a": np.arange(3.0), "o": np.array([torch.ones(2), np.zeros(3), "s"], dtype=object)},
        {"m": torch.ones(2), "l": [np.ones(2)]},
    )


def test_what_is_joined_is_equal_and_holds_nothing_on_loan() -> None:
    parts, borrowed = lent([batch(0), batch(3)])
    assert any(borrowed.contains(address) for address in addresses(parts[0]))
    joined = borrowed.owned(join(parts, "G.m"))
    assert values_equal(joined, join([batch(0), batch(3)], "G.m"))
    assert not any(borrowed.contains(address) for address in addresses(joined))


def test_what_is_not_joined_is_copied_wherever_it_sits_and_can_be_written_to() -> None:
    whole = {"b": batch(0), "t": (torch.zeros(4), [np.zeros(4)]), "td": TensorDict({"x": torch.zeros(3)}, [3])}
    (part,), borrowed = lent([whole])
    settled = borrowed.owned(part)
    assert values_equal(settled, whole)
    assert not any(borrowed.contains(address) for address in addresses(settled["b"]))
    for tensor in (settled["b"].batch["x"], settled["t"][0], settled["td"]["x"], settled["b"].meta_info["m"]):
        assert not borrowed.contains(tensor.data_ptr())
        tensor.fill_(1)
    for array in (settled["t"][1][0], settled["b"].non_tensor_batch["a"], settled["b"].non_tensor_batch["o"][1]):
        array[:] = 1
    # Columns that shared one offsets tensor do so still: only then can they be added.
    columns = settled["b"].batch
    assert (columns["ragged"] + columns["twice"]).is_nested


def test_ids_that_tell_padding_apart_are_found_too_so_that_a_padded_call_is_not_fetched_twice() -> None:
    whole = batch(0).with_row_ids([7, 8, -1])
    (part,), borrowed = lent([whole])
    assert borrowed.all_within([part])
    settled = borrowed.owned(part)
    assert settled.row_ids.tolist() == [7, 8, -1]
    assert settled.row_ids.flags.owndata
    assert settled.row_ids.flags.writeable


def test_nothing_is_copied_that_was_not_lent() -> None:
    mine = torch.zeros(5)
    _, borrowed = lent([torch.ones(5)])
    assert borrowed.owned([mine])[0] is mine
    assert BorrowedBuffers().owned(mine) is mine
    (data, buffers) = sent(torch.ones(5))
    assert not borrowed.contains(pickle.loads(data, buffers=buffers).data_ptr())


def test_views_are_the_senders_or_the_receivers_word_and_only_for_arrays() -> None:
    value = {"a": np.zeros(4), "t": torch.zeros(4)}
    with sending(views=True):
        told = sent(value)
    by_sender = pickle.loads(told[0], buffers=told[1])
    data, buffers = sent(value)
    with views():
        by_receiver = pickle.loads(data, buffers=buffers)
    for got in (by_sender, by_receiver):
        assert not got["a"].flags.writeable
        got["t"].fill_(1)
    assert pickle.loads(data, buffers=buffers)["a"].flags.writeable


@dataclass
class Wrapped:
    """An object of a user's own that keeps a batch."""

    inner: Any


class Named(NamedTuple):
    """A named tuple that keeps a batch."""

    inner: Any


def small(start: int = 0) -> DataProto:
    """Make a batch without meta."""
    return DataProto.from_dict({"x": torch.arange(start, start + 3)}, {"a": np.arange(3.0)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Wrapped(small()),
        lambda: {"a": [Wrapped(small())]},
        lambda: deque([small()]),
        lambda: DataProto(meta_info={"kept": Wrapped(small())}),
        lambda: DataProto.from_dict({"x": torch.arange(1)}, {"o": np.array([Wrapped(small())], dtype=object)}),
        lambda: TensorDict({"n": NonTensorData({"t": torch.arange(4)}, batch_size=[2])}, batch_size=[2]),
    ],
)
def test_a_loan_within_an_object_that_nobody_looks_into_is_known(make: Callable[[], Any]) -> None:
    values, borrowed = lent([make()])
    assert not borrowed.all_within(values)
    # What was fetched anew is nobody's but the receiver's, though the one who lent goes on.
    data, buffers = sent(make())
    with borrowing(enabled=False) as none:
        own = pickle.loads(data, buffers=buffers)
    assert none.all_within(own)
    assert none.owned(own) is own


@pytest.mark.parametrize(
    "make",
    [
        lambda: batch(0),
        lambda: Named(small()),
        lambda: [torch.eye(3).to_sparse(), torch.ones(3).bfloat16()],
        lambda: TensorDict({"inner": TensorDict({"t": torch.arange(4)}, batch_size=[4])}, batch_size=[4]),
        lambda: LazyStackedTensorDict(*(TensorDict({"t": torch.ones(n)}, batch_size=[]) for n in (1, 2)), stack_dim=0),
        lambda: np.zeros((0, 3)),
    ],
)
def test_a_loan_within_batches_and_plain_containers_is_found_again(make: Callable[[], Any]) -> None:
    values, borrowed = lent([make(), make()])
    assert borrowed.all_within(values)


def test_what_parts_say_each_for_themselves_is_no_longer_on_loan() -> None:
    def part(loss: float) -> DataProto:
        value = small()
        value.meta_info = {"loss": torch.tensor(loss), "metrics": {"kl": torch.tensor(loss)}}
        return value

    parts, borrowed = lent([part(0.25), part(0.5)])
    assert borrowed.all_within(parts)
    joined = borrowed.owned(join(parts, "G.m"))
    kept = [joined.meta_info["loss"], joined.meta_info["metrics"]["kl"]]
    assert [[float(one) for one in each] for each in kept] == [[0.25, 0.5]] * 2
    assert [each.parts for each in kept] == [(0, 1)] * 2
    assert not any(borrowed.contains(one.data_ptr()) for each in kept for one in each)


def test_a_named_tuple_stays_one_and_a_list_in_itself_comes_to_an_end() -> None:
    around: list[Any] = [Named(small())]
    around.append(around)
    data, buffers = sent(around)
    before = [bytes(bytearray(one)) for one in buffers]
    with borrowing() as borrowed:
        got = pickle.loads(data, buffers=buffers)
    settled = borrowed.owned(got)
    assert settled[1] is settled
    assert type(settled[0]) is Named
    settled[0].inner.batch["x"][...] = 77
    settled[0].inner.non_tensor_batch["a"][...] = 77
    assert buffers == before
