"""DataProto against the simplest model of a batch: a list of rows."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from core.data import (
    DataProto,
    balanced_sizes,
    collate_fn,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)
from core.errors import UnevenSplitError

Rows = list[dict[str, Any]]
quick = settings(max_examples=20, deadline=None)

_DTYPES = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.uint8, torch.complex64, torch.float8_e4m3fn]


def make_batch(n_rows: int, kinds: frozenset[str], seed: int) -> DataProto:
    """Build a batch of ``n_rows`` with the asked kinds of columns; every row is told apart by its contents."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for dtype in _DTYPES:
        if str(dtype) in kinds:
            tensors[str(dtype)] = torch.randint(0, 100, (n_rows, 2), generator=generator).to(dtype)
    if "ids" in kinds:
        tensors["ids"] = torch.arange(n_rows, dtype=torch.float32).unsqueeze(1)
    if "nan" in kinds:
        tensors["nan"] = torch.where(torch.arange(n_rows) % 2 == 0, torch.nan, 1.0)
    if "jagged" in kinds:
        sizes = torch.randint(0, 4, (n_rows,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        values = torch.arange(int(offsets[-1]), dtype=torch.float32)
        tensors["jagged"] = torch.nested.nested_tensor_from_jagged(values, offsets=offsets)
        tensors["jagged3d"] = torch.nested.nested_tensor_from_jagged(
            torch.stack([values, values]), offsets=offsets, jagged_dim=2
        )
    if "inner" in kinds:
        tensors["inner"] = TensorDict({"x": torch.arange(n_rows)}, batch_size=[n_rows])
    arrays: dict[str, Any] = {}
    if "int32" in kinds:
        arrays["int32"] = rng.integers(0, 9, size=(n_rows, 3), dtype=np.int32)
    if "floats" in kinds:
        arrays["floats"] = np.where(np.arange(n_rows) % 3 == 0, np.nan, rng.random(n_rows))
    if "text" in kinds:
        arrays["text"] = [f"row {number}" for number in range(n_rows)]
    if "lists" in kinds:
        arrays["lists"] = [[number] * (number % 3) for number in range(n_rows)]
    if "square" in kinds:
        arrays["square"] = [[number, str(number)] for number in range(n_rows)]
    if "things" in kinds:
        arrays["things"] = [{"t": torch.tensor([number]), "n": None} for number in range(n_rows)]
    meta = {"name": "x", "temperature": 0.5, "metrics": {"loss": 0.25}, "nan": float("nan"), "mask": np.arange(3)}
    return DataProto.from_dict(tensors, arrays, meta)


_KINDS = [
    *map(str, _DTYPES),
    *("ids", "nan", "jagged", "inner", "int32", "floats", "text", "lists", "square", "things"),
]


@st.composite
def batches(draw: st.DrawFn, min_rows: int = 0, ragged: bool = True) -> DataProto:
    """Draw a batch with at least one column."""
    kinds = draw(st.frozensets(st.sampled_from(_KINDS), min_size=1))
    if not ragged:
        kinds = (kinds - {"jagged"}) | {"ids"}
    batch = make_batch(draw(st.integers(min_rows, 9)), kinds, draw(st.integers(0, 99)))
    return batch.with_row_ids(np.arange(len(batch)) + 100)


def plain(value: Any) -> Any:
    """Turn a value into something that compares exactly: tensors and arrays by dtype, shape and bytes."""
    if isinstance(value, torch.Tensor):
        shape, flat = tuple(value.shape), value.contiguous().reshape(-1)
        return str(value.dtype), shape, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    if isinstance(value, TensorDict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def rows_of(batch: DataProto) -> Rows:
    """Return the rows of a batch, each a dict from key to a plain value, with the row's id."""
    n_rows = len(batch)
    rows: Rows = [{} for _ in range(n_rows)]
    columns: dict[str, Any] = dict(batch.non_tensor_batch)
    if batch.batch is not None:
        columns.update(batch.batch.items())
    for key, column in columns.items():
        parts = column.unbind() if isinstance(column, torch.Tensor) else [column[number] for number in range(n_rows)]
        for row, part in zip(rows, parts, strict=True):
            row[key] = plain(part)
    ids = batch.row_ids
    if ids is not None:
        for row, number in zip(rows, ids, strict=True):
            row["row id"] = int(number)
    return rows


def same_rows(batch: DataProto, rows: Rows) -> bool:
    batch.check_consistency()
    return rows_of(batch) == rows


@quick
@given(batches(), st.integers(1, 12))
def test_the_parts_of_a_balanced_cut_join_to_the_batch_again(batch: DataProto, n_parts: int) -> None:
    parts = batch.split_balanced(n_parts)
    rows = rows_of(batch)
    sizes = balanced_sizes(len(batch), n_parts)
    assert [len(part) for part in parts] == sizes
    starts = np.cumsum([0, *sizes])
    assert [rows_of(part) for part in parts] == [rows[a:b] for a, b in itertools.pairwise(starts)]
    joined = DataProto.concat(parts)
    assert same_rows(joined, rows)
    assert joined == batch


@quick
@given(batches(), st.integers(1, 12))
def test_chunk_gives_equal_parts_or_an_error_with_the_numbers(batch: DataProto, n_parts: int) -> None:
    if len(batch) % n_parts:
        with pytest.raises(UnevenSplitError, match=f"{len(batch)} rows into {n_parts} ") as caught:
            batch.chunk(n_parts)
        assert (caught.value.n_rows, caught.value.n_parts) == (len(batch), n_parts)
    else:
        parts = batch.chunk(n_parts)
        assert {len(part) for part in parts} == {len(batch) // n_parts}
        assert len(parts) == n_parts
        assert DataProto.concat(parts) == batch
        assert all(part.meta_info is not batch.meta_info for part in parts)


@quick
@given(batches(), st.integers(1, 12))
def test_split_joins_again(batch: DataProto, size: int) -> None:
    parts = batch.split(size)
    assert all(len(part) == size for part in parts[:-1])
    assert DataProto.concat(parts) == batch
    assert same_rows(DataProto.concat(parts), rows_of(batch))


@quick
@given(batches(), st.data())
def test_slices_are_those_of_a_list(batch: DataProto, data: st.DataObject) -> None:
    bound = st.none() | st.integers(-12, 12)
    chosen = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, 3, -1, -2])))
    assert same_rows(batch[chosen], rows_of(batch)[chosen])


@quick
@given(batches(min_rows=1), st.data())
def test_an_index_of_any_type_selects_those_rows(batch: DataProto, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(-len(batch), len(batch) - 1), max_size=12))
    kind = data.draw(st.sampled_from(["list", "tuple", "array", "int32", "tensor", "reversed"]))
    index: Any = {
        "list": numbers,
        "tuple": tuple(numbers),
        "array": np.array(numbers, dtype=np.int64),
        "int32": np.array(numbers, dtype=np.int32),
        "tensor": torch.tensor(numbers, dtype=torch.int64),
        "reversed": np.array(numbers[::-1], dtype=np.int64)[::-1],
    }[kind]
    rows = rows_of(batch)
    assert same_rows(batch[index], [rows[number] for number in numbers])
    assert same_rows(batch.select_idxs(index), [rows[number] for number in numbers])


@quick
@given(batches(), st.data())
def test_a_mask_of_any_type_selects_where_it_is_true(batch: DataProto, data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch)))
    kept = [row for row, flag in zip(rows_of(batch), mask, strict=True) if flag]
    assert same_rows(batch[np.array(mask, dtype=bool)], kept)
    assert same_rows(batch[torch.tensor(mask, dtype=torch.bool)], kept)
    if mask:
        assert same_rows(batch[mask], kept)
        assert same_rows(batch[[np.bool_(flag) for flag in mask]], kept)


@quick
@given(batches(), st.integers(0, 3), st.booleans())
def test_repeat_is_interleaved_or_tiled(batch: DataProto, times: int, interleave: bool) -> None:
    rows = rows_of(batch)
    expected = [row for row in rows for _ in range(times)] if interleave else rows * times
    assert same_rows(batch.repeat(times, interleave=interleave), expected)


@quick
@given(batches(), st.data())
def test_sample_level_repeat_takes_one_count_per_row(batch: DataProto, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(batch), max_size=len(batch)))
    expected = [row for row, count in zip(rows_of(batch), counts, strict=True) for _ in range(count)]
    for given_counts in (
        counts,
        tuple(counts),
        np.array(counts, dtype=np.int64),
        torch.tensor(counts, dtype=torch.int64),
    ):
        if len(counts):
            assert same_rows(batch.sample_level_repeat(given_counts), expected)


@quick
@given(batches(), st.randoms(use_true_random=False))
def test_reorder_puts_rows_into_an_order_and_back(batch: DataProto, random: Any) -> None:
    rows = rows_of(batch)
    order = list(range(len(batch)))
    random.shuffle(order)
    batch.reorder(torch.tensor(order, dtype=torch.int64))
    assert same_rows(batch, [rows[number] for number in order])
    batch.reorder(indices=torch.tensor(order, dtype=torch.int64).argsort())
    assert same_rows(batch, rows)


@quick
@given(batches(min_rows=1, ragged=False), st.data())
def test_fold_and_unfold_undo_each_other_and_leave_their_input_alone(batch: DataProto, data: st.DataObject) -> None:
    n_new = data.draw(st.sampled_from([n for n in range(1, len(batch) + 1) if len(batch) % n == 0]))
    rows, before = rows_of(batch), copy.deepcopy(batch)
    folded = fold_batch_dim(batch, n_new)
    assert len(folded) == n_new
    assert folded.row_ids is None
    assert folded.batch is not None
    assert folded.batch["ids"].shape == (n_new, len(batch) // n_new, 1)
    assert batch == before
    again = unfold_batch_dim(folded)
    assert len(folded) == n_new
    assert again == batch
    assert same_rows(again, [{key: value for key, value in row.items() if key != "row id"} for row in rows])


@quick
@given(batches(min_rows=1), st.integers(1, 20))
def test_padding_to_a_divisor_cycles_rows_and_can_be_undone(batch: DataProto, divisor: int) -> None:
    rows = rows_of(batch)
    padded, n_added = pad_dataproto_to_divisor(batch, divisor)
    assert (len(rows) + n_added) % divisor == 0
    assert 0 <= n_added < divisor
    assert same_rows(padded, [rows[number % len(rows)] for number in range(len(rows) + n_added)])
    assert same_rows(unpad_dataproto(padded, n_added), rows)
    assert same_rows(batch, rows)
    assert unpad_dataproto(padded, n_added) == batch


@quick
@given(batches(min_rows=1), st.integers(0, 5), st.sampled_from(["", "first", "last"]))
def test_padding_in_place_repeats_one_row(batch: DataProto, size: int, candidate: str) -> None:
    rows = rows_of(batch)
    batch.padding(size, candidate)
    assert same_rows(batch, rows + [rows[0 if candidate == "first" else -1]] * size)


@quick
@given(batches(), st.data())
def test_select_pop_rename_and_union_are_those_of_dicts(batch: DataProto, data: st.DataObject) -> None:
    tensor_keys = [] if batch.batch is None else list(batch.batch.keys())
    array_keys = list(batch.non_tensor_batch)
    chosen_tensors = data.draw(st.lists(st.sampled_from(tensor_keys), unique=True) if tensor_keys else st.just([]))
    chosen_arrays = data.draw(st.lists(st.sampled_from(array_keys), unique=True) if array_keys else st.just([]))
    rows, whole, n_rows = rows_of(batch), copy.deepcopy(batch), len(batch)
    chosen = {*chosen_tensors, *chosen_arrays}

    selected = batch.select(chosen_tensors, chosen_arrays, ["name"])
    assert same_rows(selected, [{k: v for k, v in row.items() if k in chosen or k == "row id"} for row in rows])
    assert set(selected.meta_info) == {"name"}
    assert batch == whole

    popped = batch.pop(chosen_tensors, chosen_arrays, ["name"])
    assert popped == selected
    assert len(popped) == n_rows
    assert same_rows(popped, rows_of(selected))
    left = tensor_keys or set(array_keys) - chosen
    if left:
        assert same_rows(batch, [{k: v for k, v in row.items() if k not in chosen} for row in rows])
    assert "name" not in batch.meta_info

    assert batch.union(popped) is batch
    assert same_rows(batch, rows)
    assert batch == whole
    keys = [*tensor_keys, *array_keys]
    batch.rename(keys, [f"{key}!" for key in keys])
    assert rows_of(batch) == [{k if k == "row id" else f"{k}!": v for k, v in row.items()} for row in rows]
    assert same_rows(whole.with_row_ids(None), [{k: v for k, v in row.items() if k != "row id"} for row in rows])


@quick
@given(batches(min_rows=1), st.data(), st.booleans())
def test_the_iterator_visits_every_row_once_in_each_epoch(batch: DataProto, data: st.DataObject, shuffle: bool) -> None:
    size = data.draw(st.sampled_from([n for n in range(1, len(batch) + 1) if len(batch) % n == 0]))
    rows, options = rows_of(batch), {"shuffle": shuffle}
    minis = list(batch.make_iterator(size, epochs=2, seed=3, dataloader_kwargs=options))
    assert [len(mini) for mini in minis] == [size] * (2 * len(batch) // size)
    seen = [row for mini in minis for row in rows_of(mini)]
    per_epoch = [seen[: len(rows)], seen[len(rows) :]]
    if shuffle:
        for epoch in per_epoch:
            assert sorted(row["row id"] for row in epoch) == [row["row id"] for row in rows]
            assert all(row in rows for row in epoch)
    else:
        assert per_epoch == [rows, rows]
    again = list(batch.make_iterator(size, epochs=2, seed=3, dataloader_kwargs=options))
    assert minis == again
    assert all(mini.meta_info.keys() == batch.meta_info.keys() for mini in minis)


@quick
@given(batches(min_rows=1))
def test_single_rows_collate_to_the_batch_again(batch: DataProto) -> None:
    again = collate_fn([batch[number] for number in range(len(batch))])
    for row, row_again in zip(rows_of(batch), rows_of(again), strict=True):
        del row["row id"]
        assert row_again == row
    assert DataProto(meta_info=again.meta_info) == DataProto(meta_info=batch.meta_info)


@quick
@given(batches(), st.sampled_from([2, 3, 4, 5]), st.booleans())
def test_pickling_keeps_every_byte(batch: DataProto, protocol: int, out_of_band: bool) -> None:
    if out_of_band:
        buffers: list[pickle.PickleBuffer] = []
        payload = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
        again = pickle.loads(payload, buffers=[bytes(buffer.raw()) for buffer in buffers])
    else:
        again = pickle.loads(pickle.dumps(batch, protocol=protocol))
    assert same_rows(again, rows_of(batch))
    assert again == batch
    assert type(again) is DataProto


@quick
@given(batches())
def test_copies_are_equal_and_deep_ones_share_nothing(batch: DataProto) -> None:
    deep, shallow = copy.deepcopy(batch), copy.copy(batch)
    assert same_rows(deep, rows_of(batch))
    assert same_rows(shallow, rows_of(batch))
    shallow.meta_info["new"] = 1
    shallow.non_tensor_batch["new"] = np.zeros(len(batch))
    assert "new" not in batch.meta_info
    assert "new" not in batch.non_tensor_batch
    ids = None if deep.batch is None else deep.batch.get("ids", None)
    if ids is not None and deep.batch is not None and batch.batch is not None:
        ids += 1
        assert torch.equal(batch.batch["ids"], deep.batch["ids"] - 1)
