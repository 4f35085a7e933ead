"""Memory on loan: joined without a copy, and copied where a result still has it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from core import DataProto
from core.data import pack
from core.data.equality import values_equal
from core.data.receive import Loans, borrowing, views
from core.data.rows import join
from core.data.wire import sending


def sent(value: Any) -> tuple[bytes, list[bytes]]:
    """Pickle a value as Ray does: its memory out of band."""
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(pack(value), 5, buffer_callback=buffers.append), [bytes(one.raw()) for one in buffers]


def lent(values: Sequence[Any]) -> tuple[list[Any], Loans]:
    """Receive values on loan."""
    packed = [sent(value) for value in values]
    with borrowing() as loans:
        return [pickle.loads(data, buffers=buffers) for data, buffers in packed], loans


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
    parts, loans = lent([batch(0), batch(3)])
    assert any(loans.hold(address) for address in addresses(parts[0]))
    joined = loans.settled(join(parts, "G.m"))
    assert values_equal(joined, join([batch(0), batch(3)], "G.m"))
    assert not any(loans.hold(address) for address in addresses(joined))


def test_what_is_not_joined_is_copied_wherever_it_sits_and_can_be_written_to() -> None:
    whole = {"b": batch(0), "t": (torch.zeros(4), [np.zeros(4)]), "td": TensorDict({"x": torch.zeros(3)}, [3])}
    (part,), loans = lent([whole])
    settled = loans.settled(part)
    assert values_equal(settled, whole)
    assert not any(loans.hold(address) for address in addresses(settled["b"]))
    for tensor in (settled["b"].batch["x"], settled["t"][0], settled["td"]["x"], settled["b"].meta_info["m"]):
        assert not loans.hold(tensor.data_ptr())
        tensor.fill_(1)
    for array in (settled["t"][1][0], settled["b"].non_tensor_batch["a"], settled["b"].non_tensor_batch["o"][1]):
        array[:] = 1
    # Columns that shared one offsets tensor do so still: only then can they be added.
    columns = settled["b"].batch
    assert (columns["ragged"] + columns["twice"]).is_nested


def test_nothing_is_copied_that_was_not_lent() -> None:
    mine = torch.zeros(5)
    _, loans = lent([torch.ones(5)])
    assert loans.settled([mine])[0] is mine
    assert Loans().settled(mine) is mine
    (data, buffers) = sent(torch.ones(5))
    assert not loans.hold(pickle.loads(data, buffers=buffers).data_ptr())


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
