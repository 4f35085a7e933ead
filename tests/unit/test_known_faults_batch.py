"""Faults of the design we start from, kinds A and B, that are about the batch: one test per kind, named by its number.

Kinds that another module tests by number are not repeated here.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from core import (
    DataProto,
    deserialize_tensordict,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    serialize_tensordict,
    unfold_batch_dim,
    union_tensor_dict,
)


def arrays(**columns: Any) -> DataProto:
    """Make a batch without tensors."""
    return DataProto(None, {name: np.array(column) for name, column in columns.items()})


def rows(n_rows: int = 4, **meta: Any) -> DataProto:
    """Make a batch of tensors and arrays."""
    return DataProto.from_dict(
        {"id": torch.arange(float(n_rows))}, {"name": [f"row {row}" for row in range(n_rows)]}, meta_info=meta
    )


def jagged(lengths: list[int]) -> torch.Tensor:
    """Make a jagged column of these lengths."""
    return torch.nested.nested_tensor([torch.full((n,), float(n)) for n in lengths], layout=torch.jagged)


def test_fault_17_a_first_part_without_tensors_does_not_drop_those_of_the_others() -> None:
    for parts in ([arrays(name=["a"]), rows(2)], [rows(2), arrays(name=["a"])]):
        with pytest.raises(ValueError, match="tensors"):
            DataProto.concat(parts)


def test_fault_18_a_key_that_a_later_part_lacks_is_named_and_metrics_stay_with_their_parts() -> None:
    with pytest.raises(ValueError, match="more"):
        DataProto.concat([arrays(name=["a"], more=["b"]), arrays(name=["c"])])
    parts = [rows(1, metrics={"loss": 1}), rows(1, metrics={"loss": 2, "acc": 3})]
    merged = DataProto.concat(parts).meta_info["metrics"]
    assert merged == {"loss": [1, 2], "acc": [3]}
    assert merged["acc"].parts == (1,)


def test_fault_19_metrics_that_were_merged_before_are_not_merged_again() -> None:
    once = DataProto.concat([rows(2, metrics={"loss": 0.5}), rows(2, metrics={"loss": 0.7})])
    assert DataProto.concat(once.chunk(2)).meta_info["metrics"] == {"loss": [0.5, 0.7]}


@pytest.mark.parametrize("part", ["chunk", "slice", "select", "select_idxs", "repeat", "item"])
def test_fault_20_no_part_shares_its_dicts_with_another_or_with_the_source(part: str) -> None:
    source = rows(4, temperature=1.0)
    made = {
        "chunk": lambda: source.chunk(2)[0],
        "slice": lambda: source.slice(0, 2),
        "select": lambda: source.select(batch_keys=["id"]),
        "select_idxs": lambda: source.select_idxs([0, 1]),
        "repeat": lambda: source.repeat(2),
        "item": lambda: source[0:1],
    }[part]()
    made.meta_info["temperature"] = 2.0
    made.non_tensor_batch["new"] = np.zeros(len(made))
    assert source.meta_info == {"temperature": 1.0}
    assert set(source.non_tensor_batch) == {"name"}


def test_fault_21_floats_are_no_indices_and_indices_are_of_64_bits() -> None:
    wrong: list[Any] = [[0.9, 1.2], np.array([0.0, 1.0]), torch.tensor([0.0])]
    for floats in wrong:
        with pytest.raises(TypeError):
            rows()[floats]
    with pytest.raises(IndexError):
        rows()[[2**32]]


def test_fault_22_the_callers_dicts_are_not_written_to() -> None:
    tensors, others, meta = {"id": torch.arange(2)}, {"name": ["a", "b"]}, {"m": 1}
    made = DataProto.from_dict(tensors, others, meta, auto_padding=True)
    made.meta_info["n"] = 2
    assert (list(tensors), others, meta) == (["id"], {"name": ["a", "b"]}, {"m": 1})
    columns = TensorDict({"id": torch.arange(2)}, batch_size=[2])
    DataProto.from_tensordict(columns, meta_info=meta).batch["more"] = torch.zeros(2)
    assert (list(columns.keys()), meta) == (["id"], {"m": 1})


def test_fault_23_folding_and_unfolding_leave_their_input_alone() -> None:
    source = rows(6)
    before = copy.deepcopy(source)
    folded = fold_batch_dim(source, 3)
    kept = copy.deepcopy(folded)
    unfold_batch_dim(folded)
    assert source == before
    assert folded == kept


def test_fault_24_reorder_takes_a_permutation_only_and_changes_nothing_else() -> None:
    source = rows(4)
    with pytest.raises(ValueError, match="each of the 4 rows once"):
        source.reorder(torch.tensor([0, 0]))
    assert source == rows(4)


def test_fault_25_arrays_of_different_lengths_are_refused_without_tensors_too() -> None:
    with pytest.raises(ValueError, match="more"):
        arrays(name=["a", "b"], more=["c"])


def test_fault_26_the_iterator_keeps_dtypes_and_a_seed_shuffles_only_when_asked() -> None:
    source = DataProto.from_dict({"id": torch.arange(8)}, {"n": np.arange(8, dtype=np.int32)})
    plain = list(source.make_iterator(4, 1, seed=3))
    assert plain[0].non_tensor_batch["n"].dtype == np.int32
    assert plain[0].batch["id"].tolist() == [0, 1, 2, 3]
    shuffled = [list(source.make_iterator(8, 1, seed=3, dataloader_kwargs={"shuffle": True})) for _ in range(2)]
    assert shuffled[0][0] == shuffled[1][0] != plain[0]


def test_fault_33_a_padded_cut_always_has_as_many_parts_cut_alike() -> None:
    source = DataProto.from_dict({"id": torch.arange(5.0)}, {"n": np.arange(5)}, auto_padding=True)
    parts = source.chunk(4)
    assert len(parts) == 4
    assert [part.batch["id"].tolist() for part in parts] == [part.non_tensor_batch["n"].tolist() for part in parts]


def test_fault_34_nothing_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="at least one"):
        DataProto.concat([])


@pytest.mark.parametrize(
    "value",
    [torch.arange(2.0), {"a": np.arange(2)}, [float("nan"), {"b": [float("nan")]}], "text", None],
    ids=["tensor", "dict of arrays", "lists with NaN", "text", "None"],
)
def test_fault_36_values_of_any_kind_are_compared_deeply(value: Any) -> None:
    column = np.empty(2, dtype=object)
    column[:] = [value, 1]
    one, other = DataProto(None, {"x": column}), DataProto(None, {"x": copy.deepcopy(column)})
    assert one.union(other) == other
    assert DataProto(None, {"x": np.array(["a", "b"])}).union(DataProto(None, {"x": np.array(["a", "b"])}))
    changed = copy.deepcopy(column)
    changed[1] = 2
    with pytest.raises(AssertionError, match="`x` in tensor_dict1 and tensor_dict2 are not the same object"):
        one.union(DataProto(None, {"x": changed}))


def test_fault_37_tensors_that_hold_nan_unite_as_arrays_do() -> None:
    one = TensorDict({"x": torch.tensor([1.0, float("nan")])}, batch_size=[2])
    assert list(union_tensor_dict(one, one.clone()).keys()) == ["x"]


def test_fault_38_a_union_that_fails_has_changed_nothing_and_none_is_allowed() -> None:
    one, other = rows(2, m=1), DataProto.from_dict({"more": torch.zeros(2)}, meta_info={"m": 2})
    with pytest.raises(AssertionError, match="'m'"):
        one.union(other)
    assert one == rows(2, m=1)
    assert arrays(tag=["a", "b"]).union(rows(2)).batch["id"].tolist() == [0, 1]
    assert set(rows(2).union(arrays(tag=["a", "b"])).non_tensor_batch) == {"name", "tag"}


class Own(DataProto):
    """A subclass."""


def test_fault_39_pop_of_a_missing_key_changes_nothing_and_keeps_the_type() -> None:
    source = Own.from_dict({"id": torch.arange(2.0), "more": torch.zeros(2)}, meta_info={"m": 1})
    before = copy.deepcopy(source)
    with pytest.raises(KeyError, match="missing"):
        source.pop(batch_keys=["id", "missing"])
    assert source == before
    assert type(source.pop(batch_keys=["more"])) is Own
    popped = source.pop(meta_info_keys=["m"])
    assert (popped.meta_info, len(source), source.meta_info) == ({"m": 1}, 2, {})
    assert arrays(name=["a"]).pop(non_tensor_batch_keys=["name"]).non_tensor_batch["name"].tolist() == ["a"]


@pytest.mark.parametrize("index", [np.arange(4)[::-1], (3, 2, 1, 0), range(3, -1, -1)], ids=["array", "tuple", "range"])
def test_fault_41_an_index_may_run_backwards_and_be_any_sequence(index: Any) -> None:
    assert rows(4)[index].batch["id"].tolist() == [3, 2, 1, 0]


def test_fault_42_columns_are_unfolded_without_naming_any_beside_arrays() -> None:
    source = DataProto.from_dict({"x": torch.arange(8).reshape(2, 4)}, {"name": ["a", "b"]})
    out = source.unfold_column_chunks(2, split_keys=["x"])
    assert out.batch["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert out.non_tensor_batch["name"].tolist() == ["a", "a", "b", "b"]
    assert len(source.unfold_column_chunks(2)) == 4


def test_fault_43_the_format_is_in_the_payload_not_in_the_receivers_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", "numpy")
    packed = pickle.dumps(rows(3, m=1))
    monkeypatch.delenv("VERL_DATAPROTO_SERIALIZATION_METHOD")
    assert pickle.loads(packed) == rows(3, m=1)


def test_fault_44_an_empty_tensor_survives_serialisation() -> None:
    columns = TensorDict({"x": torch.zeros(0, 3), "y": torch.zeros(0, dtype=torch.bfloat16)}, batch_size=[0])
    again = deserialize_tensordict(serialize_tensordict(columns))
    assert (again["x"].shape, again["y"].dtype) == ((0, 3), torch.bfloat16)


def test_fault_45_a_batch_is_sent_as_views_of_its_own_memory_and_can_be_written_to_afterwards() -> None:
    big = torch.zeros(1 << 16)
    buffers: list[pickle.PickleBuffer] = []
    in_band = pickle.dumps(DataProto.from_dict({"x": big}), protocol=5, buffer_callback=buffers.append)
    assert len(in_band) < 4096
    assert sum(buffer.raw().nbytes for buffer in buffers) == big.nbytes
    big[0] = 7.0
    sent = pickle.loads(in_band, buffers=[bytearray(buffer.raw()) for buffer in buffers])
    sent.batch["x"][1] = 1.0
    assert sent.batch["x"][:2].tolist() == [7.0, 1.0]


def test_fault_46_a_batch_of_arrays_alone_can_do_what_others_can() -> None:
    source = arrays(n=[0, 1, 2, 3])
    assert list(source.to_tensordict()["n"]) == [0, 1, 2, 3]
    assert "n" in source.get_data_info()
    assert [len(part) for part in source.make_iterator(2, 1)] == [2, 2]
    source.reorder(torch.tensor([3, 2, 1, 0]))
    assert source.non_tensor_batch["n"].tolist() == [3, 2, 1, 0]


def test_fault_47_batches_are_compared_by_value() -> None:
    assert rows(3, m=1) == rows(3, m=1)
    assert rows(3, m=1) != rows(3, m=2)
    assert rows(3) != rows(4)


def test_fault_40_jagged_rows_are_indexed_and_repeated() -> None:
    source = DataProto.from_dict({"x": jagged([3, 1, 2])})
    assert [len(row) for row in source[[2, 0]].batch["x"].unbind()] == [2, 3]
    assert [len(row) for row in source.repeat(2).batch["x"].unbind()] == [3, 3, 1, 1, 2, 2]


def test_fault_4_padding_by_hand_leaves_the_callers_batch_alone() -> None:
    source = rows(3)
    padded, pad_size = pad_dataproto_to_divisor(source, 7)
    assert (len(padded), pad_size, len(source)) == (7, 4, 3)
    assert padded.batch["id"].tolist() == [0, 1, 2, 0, 1, 2, 0]
