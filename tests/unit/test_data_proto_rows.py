"""Making batches and choosing rows: what is refused, what is left alone, what travels along."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from core.data import (
    BatchData,
    DataProto,
    DataProtoConfig,
    DataProtoItem,
    balanced_sizes,
    fold_batch_dim,
    is_chunkable,
    is_concatable,
    list_of_dict_to_dict_of_list,
    pad_dataproto_to_divisor,
    payload_bytes,
    unfold_batch_dim,
    unpad_dataproto,
)
from core.data.rows import row_count
from core.errors import BatchError, MergeConflictError, MissingKeyError, UnevenSplitError


def make(n: int = 4) -> DataProto:
    return DataProto.from_dict(
        {"obs": torch.arange(n * 2.0).reshape(n, 2)}, {"labels": [f"l{i}" for i in range(n)]}, {"name": "x"}
    )


def tensors(batch: DataProto) -> Any:
    assert batch.batch is not None
    return batch.batch


# ------------------------------------------------------------------ making


def test_lists_become_object_arrays_and_arrays_keep_their_dtype() -> None:
    batch = DataProto.from_dict(
        non_tensors={
            "text": ["a", "b"],
            "square": [[1, 2], [3, 4]],
            "ragged": [[1], [2, 3]],
            "empty": [[], []],
            "deep": [[[1], [2, 3]], [[4], [5]]],
            "tensors": [torch.ones(2), torch.ones(2)],
            "arrays": [np.ones(2), np.ones(3)],
            "ints": np.array([1, 2], dtype=np.int32),
        }
    )
    shapes = {key: (array.dtype.kind, array.shape) for key, array in batch.non_tensor_batch.items()}
    assert shapes == {
        "text": ("O", (2,)),
        "square": ("O", (2, 2)),
        "ragged": ("O", (2,)),
        "empty": ("O", (2,)),
        "deep": ("O", (2, 2)),
        "tensors": ("O", (2,)),
        "arrays": ("O", (2,)),
        "ints": ("i", (2,)),
    }
    assert isinstance(batch.non_tensor_batch["tensors"][0], torch.Tensor)
    assert batch.non_tensor_batch["ragged"][1] == [2, 3]


def test_making_a_batch_leaves_the_callers_dicts_alone() -> None:
    tensor, non_tensors, meta = {"a": torch.ones(2)}, {"b": [1, 2]}, {"m": 1}
    batch = DataProto.from_dict(tensor, non_tensors, meta, auto_padding=True)
    batch.meta_info["new"] = 1
    batch.non_tensor_batch["new"] = np.ones(2)
    tensors(batch)["new"] = torch.ones(2)
    assert (list(tensor), non_tensors, meta) == (["a"], {"b": [1, 2]}, {"m": 1})
    source = TensorDict({"a": torch.ones(2)}, batch_size=[2])
    made = DataProto.from_tensordict(source, meta)
    tensors(made)["new"] = torch.ones(2)
    made.meta_info["new"] = 1
    assert set(source.keys()) == {"a"}
    assert meta == {"m": 1}


def test_a_single_dict_is_sorted_by_type() -> None:
    batch = DataProto.from_single_dict(data={"t": torch.ones(2), "a": np.array([1, 2])}, meta_info={"m": 1})
    assert set(tensors(batch).keys()) == {"t"}
    assert set(batch.non_tensor_batch) == {"a"}
    with pytest.raises(BatchError, match="'wrong'"):
        DataProto.from_single_dict({"t": torch.ones(2), "wrong": 3})


def test_a_subclass_gets_its_own_type_back_from_every_method() -> None:
    class Special(DataProto):
        pass

    batch = Special.from_single_dict({"t": torch.ones(4, 2), "a": np.arange(4)})
    made = [
        batch,
        batch[1:],
        batch[[0]],
        batch.select(["t"]),
        batch.repeat(2),
        *batch.chunk(2),
        *batch.split(3),
        DataProto.concat(batch.chunk(2)),
        batch.with_row_ids([1, 2, 3, 4]),
        batch.unfold_column_chunks(2, ["t"]),
        batch.pop(["t"]),
        *batch.make_iterator(2, 1),
        pad_dataproto_to_divisor(batch, 3)[0],
        copy.deepcopy(batch),
        Special.from_tensordict(batch.to_tensordict()),
    ]
    assert {type(one) for one in made} == {Special}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensors": {"a": torch.ones(2), "b": torch.ones(3)}}, "'a' has .2,., 'b' has .3,."),
        ({"tensors": {"a": torch.ones(2), "b": torch.ones(2, 3)}, "num_batch_dims": 2}, "'b'|'a'"),
        ({"tensors": {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}, "num_batch_dims": 2}, "one batch dimension"),
        ({"tensors": {"a": torch.ones(2, 3, 1), "b": torch.ones(2, 3, 2)}, "num_batch_dims": 3}, "'a' .* 'b'"),
        ({"tensors": {"a": torch.tensor(1.0)}}, "'a'"),
        ({"tensors": {"a": np.ones(2)}}, "'a'.*not a tensor"),
        ({"tensors": {"a": torch.ones(2)}, "non_tensors": {"b": [1, 2, 3]}}, "'b'.* 3"),
        ({"non_tensors": {"a": [1], "b": np.ones(2)}}, "'a' has 1.*'b'.* has 2"),
        ({"non_tensors": {"b": "text"}}, "'b'"),
        ({"non_tensors": {"b": np.array(1)}}, "'b'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_and_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        DataProto.from_dict(**arguments)
    assert isinstance(caught.value, BatchError)


def test_the_constructor_checks_and_takes_nothing_at_all() -> None:
    assert len(DataProto()) == 0
    assert len(DataProto(batch=None, non_tensor_batch=None)) == 0  # type: ignore[arg-type]
    assert len(DataProto(TensorDict({}, batch_size=[10]))) == 10
    with pytest.raises(AssertionError, match="one batch dimension"):
        DataProto(TensorDict({}, batch_size=[2, 3]))
    with pytest.raises(AssertionError, match="not an array"):
        DataProto(None, {"a": [1]})  # type: ignore[dict-item]
    with pytest.raises(AssertionError, match=r"has 1.* has 2"):
        DataProto(None, {"a": np.ones(1), "b": np.ones(2)})
    with pytest.raises(AssertionError, match="not a TensorDict"):
        DataProto({"a": torch.ones(2)})
    batch = make()
    batch.non_tensor_batch = None  # type: ignore[assignment]
    assert len(batch) == 4
    assert len(batch[1:]) == 3
    assert len(DataProto.concat(batch.chunk(2))) == 4


def test_the_batch_can_be_assigned_also_one_that_is_locked() -> None:
    batch = make()
    batch.batch = tensors(batch).consolidate()
    assert tensors(batch).is_locked
    assert len(batch.pop(["obs"])) == 4
    assert make() == DataProto.concat(make().union(make()).chunk(2))


# ------------------------------------------------------------------ choosing rows


def test_a_number_gives_one_row_as_an_item() -> None:
    batch = make()
    indices: list[Any] = [1, np.int64(1), torch.tensor(1), np.array(1), -3]
    for index in indices:
        item = batch[index]
        assert isinstance(item, DataProtoItem)
        assert item.batch is not None
        assert item.batch["obs"].tolist() == [2, 3]
        assert item.batch.batch_size == torch.Size([])
        assert item.non_tensor_batch == {"labels": "l1"}
        assert item.meta_info == {"name": "x"}
    assert [item.non_tensor_batch["labels"] for item in batch] == ["l0", "l1", "l2", "l3"]  # type: ignore[attr-defined]


def test_batch_sizes_are_of_plain_numbers() -> None:
    batch = make()
    for part in (batch[np.array([True, False, True, True])], batch[np.array([0, 2])], batch[[1]], batch[1:]):
        assert isinstance(tensors(part).batch_size, torch.Size)
        assert type(tensors(part).batch_size[0]) is int


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([0.9, 1.2], TypeError),
        (np.array([0.0, 1.0]), TypeError),
        (torch.tensor([0.5]), TypeError),
        (torch.tensor(0.5), TypeError),
        ([True, 1], TypeError),
        (["a"], TypeError),
        ("ab", TypeError),
        (None, TypeError),
        (True, TypeError),
        ({0, 1}, TypeError),
        ([4], IndexError),
        ([-5], IndexError),
        (4, IndexError),
        (-5, IndexError),
        ([True, False], BatchError),
        (np.zeros((2, 2), dtype=int), BatchError),
    ],
)
def test_an_index_that_makes_no_sense_is_an_error(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()[index]


def test_an_index_beyond_32_bits_is_not_cut_off() -> None:
    with pytest.raises(IndexError, match=str(2**32)):
        make()[[2**32]]


@pytest.mark.parametrize(
    "operation",
    [
        lambda b: b[1:],
        lambda b: b[[0, 1]],
        lambda b: b.select_idxs([0]),
        lambda b: b.slice(0, 2),
        lambda b: b.select(),
        lambda b: b.repeat(2),
        lambda b: b.sample_level_repeat([1, 2, 3, 4]),
        lambda b: b.chunk(2)[0],
        lambda b: b.split(3)[0],
        lambda b: b.split_balanced(3)[0],
        lambda b: b.unfold_column_chunks(2, ["obs"]),
        lambda b: next(b.make_iterator(2, 1)),
        lambda b: b.with_row_ids([1, 2, 3, 4]),
        lambda b: fold_batch_dim(b, 2),
        lambda b: unfold_batch_dim(b, 1),
        lambda b: pad_dataproto_to_divisor(b, 3)[0],
        lambda b: pad_dataproto_to_divisor(b, 2)[0],
        lambda b: unpad_dataproto(b, 1),
        lambda b: unpad_dataproto(b, 0),
        lambda b: DataProto.concat([b]),
        lambda b: copy.copy(b),
    ],
)
def test_no_operation_shares_its_dicts_with_its_source(operation: Any) -> None:
    batch = make()
    before = copy.deepcopy(batch)
    made = operation(batch)
    assert batch == before
    assert made.meta_info == {"name": "x"}
    made.meta_info["new"] = 1
    made.non_tensor_batch["new"] = np.zeros(len(made))
    tensors(made)["new"] = torch.zeros(len(made))
    assert batch == before
    assert set(tensors(batch).keys()) == {"obs"}


def test_chunks_do_not_share_meta_with_each_other() -> None:
    first, second = make().chunk(2)
    first.meta_info["new"] = 1
    assert "new" not in second.meta_info


def test_reorder_takes_a_permutation_only() -> None:
    batch = make()
    for wrong in ([0, 0, 1, 2], [0, 1], [0, 1, 2, 3, 3]):
        with pytest.raises(BatchError, match="each of the 4 rows once"):
            batch.reorder(torch.tensor(wrong))
    assert batch == make()
    arrays = DataProto.from_dict(non_tensors={"a": [1, 2, 3]})
    arrays.reorder(torch.tensor([2, 0, 1]))
    assert arrays.non_tensor_batch["a"].tolist() == [3, 1, 2]


def test_repeats_are_whole_numbers_one_per_row() -> None:
    for wrong in ([1, 2], [1, 2, 3, -1], [0.5, 1.0, 1.0, 1.0], [[1, 1, 1, 1]]):
        with pytest.raises(BatchError, match="whole number of repeats"):
            make().sample_level_repeat(wrong)  # type: ignore[arg-type]
    with pytest.raises(BatchError, match="-1 times"):
        make().repeat(-1)


def test_column_chunks_become_rows() -> None:
    batch = DataProto.from_dict(
        {
            "two": torch.arange(12).reshape(2, 6),
            "three": torch.arange(24).reshape(2, 4, 3),
            "other": torch.tensor([7, 8]),
        },
        {"names": [["a", "b"], ["c", "d"]], "label": ["x", "y"]},
        {"m": 1},
    )
    made = batch.unfold_column_chunks(2, split_keys=["two", "three", "names"])
    assert tensors(made)["two"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert tensors(made)["three"].shape == (4, 2, 3)
    assert torch.equal(tensors(made)["three"].reshape(2, 4, 3), tensors(batch)["three"])
    assert tensors(made)["other"].tolist() == [7, 7, 8, 8]
    assert made.non_tensor_batch["names"].tolist() == [["a"], ["b"], ["c"], ["d"]]
    assert made.non_tensor_batch["label"].tolist() == ["x", "x", "y", "y"]
    assert made.meta_info == {"m": 1}
    assert len(batch.unfold_column_chunks(3)) == 6
    with pytest.raises(BatchError, match=r"'two' of shape .2, 6."):
        batch.unfold_column_chunks(4, ["two"])
    with pytest.raises(BatchError, match="'label'"):
        batch.unfold_column_chunks(1, ["label"])
    with pytest.raises(MissingKeyError, match="'none'"):
        batch.unfold_column_chunks(2, ["none"])


def test_row_ids_travel_with_the_rows_and_are_dropped_when_rows_are_replaced() -> None:
    batch = make().with_row_ids([10, 11, 12, 13])
    assert batch.row_ids is not None
    assert batch.row_ids.dtype == np.int64
    for made, ids in [
        (batch.repeat(2), [10, 10, 11, 11, 12, 12, 13, 13]),
        (batch.unfold_column_chunks(2, ["obs"]), [10, 10, 11, 11, 12, 12, 13, 13]),
        (batch.sample_level_repeat([0, 2, 0, 1]), [11, 11, 13]),
        (batch[[3, 0]], [13, 10]),
        (batch.select(["obs"]), [10, 11, 12, 13]),
        (DataProto.concat(batch.split(3)[::-1]), [13, 10, 11, 12]),
        (batch.union(make()), [10, 11, 12, 13]),
        (next(batch.make_iterator(2, 1)), [10, 11]),
        (copy.deepcopy(batch), [10, 11, 12, 13]),
        (batch.to("cpu"), [10, 11, 12, 13]),
    ]:
        assert made.row_ids is not None
        assert made.row_ids.tolist() == ids
    assert DataProto.concat([batch, make()]).row_ids is None
    assert batch.with_row_ids(None).row_ids is None
    shorter = copy.copy(batch)
    shorter.batch = tensors(batch)[:2]
    shorter.non_tensor_batch = {}
    assert shorter.row_ids is None
    assert shorter[:1].row_ids is None
    with pytest.raises(BatchError, match="2 rows need one id each"):
        shorter.with_row_ids([1])
    assert "_row_ids" not in repr(batch)


# ------------------------------------------------------------------ parts


def test_uneven_splits_are_balanced_with_the_larger_parts_first() -> None:
    assert balanced_sizes(124, 15) == [9] * 4 + [8] * 11
    assert balanced_sizes(5, 4) == [2, 1, 1, 1]
    assert balanced_sizes(2, 4) == [1, 1, 0, 0]
    assert balanced_sizes(0, 2) == [0, 0]
    with pytest.raises(BatchError):
        balanced_sizes(3, 0)
    batch = make(124)
    parts = batch.split_balanced(15)
    assert [len(part) for part in parts] == [9] * 4 + [8] * 11
    assert DataProto.concat(parts) == batch
    with pytest.raises(BatchError, match="add up to 5, the batch has 4"):
        make().split_sizes([2, 3])


@pytest.mark.parametrize("n", [1, 3, 5, 9])
def test_with_padding_enabled_chunk_gives_all_parts_cut_alike(n: int) -> None:
    batch = DataProto.from_dict({"x": torch.arange(n)}, {"a": np.arange(n)}, auto_padding=True)
    parts = batch.chunk(4)
    assert len(parts) == 4
    for part in parts:
        assert tensors(part)["x"].tolist() == part.non_tensor_batch["a"].tolist()
        assert part.is_padding_enabled()
    assert DataProto.concat(parts) == batch
    assert DataProto.concat(parts).is_padding_enabled()


def test_padding_can_be_enabled_for_all_batches_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_AUTO_PADDING", raising=False)
    assert not make().is_padding_enabled()
    monkeypatch.setenv("VERL_AUTO_PADDING", "TRUE")
    assert make().is_padding_enabled()
    try:
        DataProtoConfig.auto_padding = False
        assert not make().is_padding_enabled()
        monkeypatch.delenv("VERL_AUTO_PADDING")
        DataProtoConfig.auto_padding = True
        assert make().is_padding_enabled()
        assert [len(part) for part in make().chunk(3)] == [2, 1, 1]
    finally:
        DataProtoConfig.auto_padding = None
    assert make().meta_info == {"name": "x"}


def test_parts_that_do_not_fit_are_not_joined() -> None:
    batch = make()
    only_arrays = DataProto.from_dict(non_tensors={"labels": ["a"]})
    cases: list[tuple[list[Any], str]] = [
        ([], "empty list"),
        ([batch, only_arrays], "part 1 of 2 has no tensors, but others have: obs"),
        ([only_arrays, batch], "part 0 of 2 has no tensors"),
        ([batch, batch.select(["obs"], [])], "part 1 of 2 has no key 'labels'"),
        ([batch.select([]), batch], "part 0 of 2 has no key 'obs'"),
        ([batch, DataProto.from_dict({"obs": torch.ones(1, 3)}, {"labels": ["a"]})], "'obs'.*4, 2.*1, 3"),
        ([batch, "text"], "part 1 of 2 is a str"),
    ]
    for parts, message in cases:
        with pytest.raises(AssertionError, match=message) as caught:
            DataProto.concat(parts)
        assert isinstance(caught.value, BatchError)


def test_dtypes_are_promoted_only_when_no_value_changes() -> None:
    def join(one: torch.Tensor, other: torch.Tensor) -> Any:
        return tensors(DataProto.concat([DataProto.from_dict({"x": one}), DataProto.from_dict({"x": other})]))["x"]

    assert join(torch.tensor([1]), torch.tensor([0.5])).tolist() == [1.0, 0.5]
    assert join(torch.tensor([float("nan")]), torch.tensor([1.0], dtype=torch.float64)).dtype is torch.float64
    with pytest.raises(MergeConflictError, match=r"'x'.*torch.int64, torch.float32"):
        join(torch.tensor([2**24 + 1]), torch.tensor([0.5]))

    def join_arrays(one: Any, other: Any) -> Any:
        parts = [DataProto.from_dict(non_tensors={"x": np.array(value)}) for value in (one, other)]
        return DataProto.concat(parts).non_tensor_batch["x"]

    assert join_arrays([1], [0.5]).tolist() == [1.0, 0.5]
    assert join_arrays(["a"], ["bcd"]).tolist() == ["a", "bcd"]
    with pytest.raises(MergeConflictError, match=r"'x'.*int64, float64"):
        join_arrays([2**60 + 1], [0.5])
    with pytest.raises(MergeConflictError, match="'x'"):
        join_arrays(["a"], [1])


def test_lists_of_other_lengths_on_other_ranks_join_as_lists() -> None:
    parts = [
        DataProto.from_dict(non_tensors={"x": rows}) for rows in ([[1, 2], [3, 4]], [[5], [6, 7]], [[8, 9, 10]], [])
    ]
    joined = DataProto.concat([part for part in parts if len(part)])
    assert joined.non_tensor_batch["x"].tolist() == [[1, 2], [3, 4], [5], [6, 7], [8, 9, 10]]
    empty = make()[:0]
    assert DataProto.concat([empty, make(), empty]) == make()


def test_batch_data_cuts_and_joins_whatever_can_be() -> None:
    class Own:
        def __init__(self, rows: list[int]) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def chunk(self, chunks: int) -> list[Own]:
            size = len(self.rows) // chunks
            return [Own(self.rows[i * size : (i + 1) * size]) for i in range(chunks)]

        @staticmethod
        def concat(parts: list[Own]) -> Own:
            return Own([row for part in parts for row in part.rows])

    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    dictionary = TensorDict({"a": torch.arange(2), "j": ragged}, batch_size=[2])
    for value in (make(), dictionary, Own([1, 2])):
        assert is_chunkable(value)
        assert is_concatable(value)
        parts = BatchData.chunk(value, 2)
        assert len(parts) == 2
        assert row_count(BatchData.concat(parts)) == len(value)
    assert DataProto(BatchData.concat(BatchData.chunk(dictionary, 2))) == DataProto(dictionary)
    for other in (1, "ab", [1, 2], {"a": 1}, None, torch.ones(2), np.ones(2), DataProto, Own, TensorDict({}, [])):
        assert not BatchData.is_chunkable(other)
        assert not BatchData.is_concatable(other)
        with pytest.raises(BatchError):
            BatchData.chunk(other, 2)
    with pytest.raises(UnevenSplitError, match="2 rows into 3"):
        BatchData.chunk(dictionary, 3)
    with pytest.raises(BatchError, match="DataProto, TensorDict"):
        BatchData.concat([make(), dictionary])
    with pytest.raises(BatchError, match="empty list"):
        BatchData.concat([])
    assert row_count(torch.ones(3)) == 3
    assert row_count(5) is None


def test_payload_bytes_counts_tensors_arrays_and_text() -> None:
    batch = DataProto.from_dict({"x": torch.ones(4, 2)}, {"a": np.ones(4, dtype=np.int32)}, {"t": "abc"})
    assert payload_bytes(batch) == 32 + 16 + 3
    assert payload_bytes(batch.chunk(2)[0]) == 16 + 8 + 3
    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    assert payload_bytes([ragged, (b"ab", {"k": bytearray(3)}), memoryview(b"abcd")]) == 12 + 2 + 3 + 4
    assert payload_bytes(["ab"] * 4096) == 8192
    assert payload_bytes(object()) == payload_bytes(None) == payload_bytes(3) == 0
    ring: list[Any] = ["a"]
    ring.append(ring)
    assert payload_bytes(ring) > 0


# ------------------------------------------------------------------ keys


def test_pop_takes_out_what_it_returns() -> None:
    batch = DataProto.from_dict({"obs": torch.ones(2), "act": torch.zeros(2)}, {"labels": ["a", "b"]}, {"1": 1, "2": 2})
    popped = batch.pop(batch_keys=["obs"], non_tensor_batch_keys=["labels"], meta_info_keys=["2"])
    assert tensors(popped).keys() == {"obs"}
    assert popped.non_tensor_batch.keys() == {"labels"}
    assert popped.meta_info.keys() == {"2"}
    assert tensors(batch).keys() == {"act"}
    assert batch.non_tensor_batch == {}
    assert batch.meta_info == {"1": 1}
    assert len(batch.pop(meta_info_keys=["1"])) == 2


def test_a_missing_key_changes_nothing_and_is_named() -> None:
    for keys in ({"batch_keys": ["obs", "no"]}, {"non_tensor_batch_keys": ["no"]}, {"meta_info_keys": ["no"]}):
        batch = make()
        for method in (batch.pop, batch.select):
            with pytest.raises(KeyError, match="no key 'no'") as caught:
                method(**keys)
            assert isinstance(caught.value, AssertionError)
        assert batch == make()


def test_batches_of_arrays_alone_work_like_others() -> None:
    batch = DataProto.from_dict(non_tensors={"labels": ["a", "b", "c"]}, meta_info={"info": "x"})
    assert batch.select(non_tensor_batch_keys=["labels"]) == batch
    assert len(batch.select(non_tensor_batch_keys=[])) == 3
    assert len(batch.pop(meta_info_keys=["info"])) == 3
    assert batch.pop(non_tensor_batch_keys=["labels"]).non_tensor_batch["labels"].tolist() == ["a", "b", "c"]
    assert batch.non_tensor_batch == {}
    assert len(batch) == 0
    with pytest.raises(MissingKeyError, match="it has: none"):
        batch.pop(batch_keys=["x"])


def test_a_deep_selection_shares_no_memory() -> None:
    batch = make()
    selected = batch.select(deepcopy=True)
    tensors(selected)["obs"] += 1
    assert batch == make()
    tensors(batch.select())["obs"] += 1
    assert batch != make()


def test_rename_takes_names_or_lists_and_can_swap() -> None:
    batch = DataProto.from_dict({"a": torch.ones(1), "b": torch.zeros(1)}, {"c": [1]})
    assert batch.rename("a", "x") is batch
    assert tensors(batch.rename(["x", "b"], ["b", "x"])).keys() == {"b", "x"}
    assert tensors(batch)["b"].tolist() == [1]
    assert batch.rename("c", "d").non_tensor_batch["d"].tolist() == [1]
    with pytest.raises(ValueError, match="2 names cannot be replaced by 1"):
        batch.rename(["x", "b"], ["y"])
    with pytest.raises(ValueError, match="one name"):
        batch.rename("x", "b")
    with pytest.raises(KeyError, match="'no'"):
        batch.rename("no", "y")
    for wrong in (1, [1], {"a": "b"}):
        with pytest.raises(TypeError, match="name"):
            batch.rename(wrong, "y")  # type: ignore[arg-type]


def test_union_checks_everything_before_it_writes() -> None:
    other = DataProto.from_dict({"new": torch.ones(4)}, {"labels": ["l0", "l1", "l2", "l3"]}, {"k": [float("nan")]})
    batch = make()
    assert batch.union(other) is batch
    assert tensors(batch).keys() == {"obs", "new"}
    assert set(batch.meta_info) == {"name", "k"}
    for wrong, error in [
        (DataProto.from_dict({"new": torch.ones(4)}, meta_info={"name": "y"}), MergeConflictError),
        (DataProto.from_dict({"new": torch.ones(4), "obs": torch.ones(4, 2)}), MergeConflictError),
        (DataProto.from_dict({"new": torch.ones(4)}, {"labels": ["a", "b", "c", "d"]}), MergeConflictError),
        (DataProto.from_dict({"new": torch.ones(3)}), BatchError),
        (DataProto.from_dict(non_tensors={"new": [1]}), BatchError),
    ]:
        fresh = make()
        with pytest.raises(error):
            fresh.union(wrong)
        assert fresh == make()
    assert other.non_tensor_batch.keys() == {"labels"}


def test_union_works_when_either_side_has_no_tensors() -> None:
    arrays = DataProto.from_dict(non_tensors={"a": [1, 2, 3, 4]}, meta_info={"m": 1})
    assert make().union(arrays).non_tensor_batch.keys() == {"labels", "a"}
    mixed = arrays.union(make())
    assert tensors(mixed).keys() == {"obs"}
    assert DataProto().union(make()) == make()
    assert make().union(DataProto(meta_info={"z": 1})).meta_info == {"name": "x", "z": 1}


# ------------------------------------------------------------------ padding and the iterator


def test_padding_what_cannot_be_padded_says_why() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: make(0).padding(2), "without rows"),
        (lambda: make().padding(-1), "must not be negative, got -1"),
        (lambda: make().padding(1, "middle"), "'middle'"),
        (lambda: pad_dataproto_to_divisor(make(), 0), "size_divisor must be at least 1, got 0"),
        (lambda: unpad_dataproto(make(), 5), "5 padding rows"),
        (lambda: unpad_dataproto(make(), -1), "-1 padding rows"),
        (lambda: fold_batch_dim(make(), 3), "4 rows cannot be folded into 3"),
        (lambda: unfold_batch_dim(make(), 2), "cannot be unfolded alike"),
    ]
    for call, message in cases:
        with pytest.raises(BatchError, match=message):
            call()
    empty, added = pad_dataproto_to_divisor(make(0), 4)
    assert (len(empty), added) == (0, 0)
    padded, added = pad_dataproto_to_divisor(make(3), 7)
    assert padded.non_tensor_batch["labels"].tolist() == ["l0", "l1", "l2", "l0", "l1", "l2", "l0"]
    assert added == 4


def test_folding_a_jagged_column_is_refused_in_words() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    with pytest.raises(BatchError, match="'j' is a nested"):
        fold_batch_dim(DataProto.from_dict({"j": ragged}), 1)


def test_the_iterator_checks_before_the_first_batch_is_asked_for() -> None:
    batch = make()
    for arguments, message in [
        ({"mini_batch_size": 3, "epochs": 1}, "4 rows do not divide"),
        ({"mini_batch_size": 0, "epochs": 1}, "mini_batch_size must be at least 1"),
        ({"mini_batch_size": 2, "epochs": 1, "dataloader_kwargs": {"shufle": True}}, "'shufle'"),
        ({"mini_batch_size": 2, "epochs": 1, "dataloader_kwargs": {"shuffle": True, "sampler": [0]}}, "either"),
    ]:
        with pytest.raises(BatchError, match=message):
            batch.make_iterator(**arguments)  # type: ignore[arg-type]
    options = {"sampler": [3, 1], "num_workers": 2}
    minis = list(batch.make_iterator(1, 1, dataloader_kwargs=options))
    assert [mini.non_tensor_batch["labels"].tolist() for mini in minis] == [["l3"], ["l1"]]
    assert options == {"sampler": [3, 1], "num_workers": 2}
    assert [len(mini) for mini in batch.make_iterator(3, 2, dataloader_kwargs={"drop_last": True})] == [3, 3]
    orders = {
        seed: [
            mini.non_tensor_batch["labels"].tolist() for mini in make(8).make_iterator(4, 3, seed, {"shuffle": True})
        ]
        for seed in (1, 2)
    }
    assert orders[1] != orders[2]
    assert orders[1][:2] != orders[1][2:4]


def test_lists_of_dicts_turn_into_dicts_of_lists() -> None:
    assert list_of_dict_to_dict_of_list([{"a": 1, "b": 2}, {"a": 3, "b": 4}]) == {"a": [1, 3], "b": [2, 4]}
    assert list_of_dict_to_dict_of_list([]) == {}
    with pytest.raises(MissingKeyError, match="entry 1 has no 'b'"):
        list_of_dict_to_dict_of_list([{"a": 1, "b": 2}, {"a": 3}])
