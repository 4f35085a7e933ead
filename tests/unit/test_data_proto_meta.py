"""What concat does with meta, and what two values being equal means."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import DataProto, PerPart, union_numpy_dict, union_tensor_dict
from core.data.equality import values_equal
from core.errors import BatchError, MergeConflictError


def join(*metas: dict[str, Any]) -> dict[str, Any]:
    """Concat batches of one row each, that were made apart as results of ranks are."""
    parts = [DataProto.from_dict({"x": torch.ones(1)}, meta_info=copy.deepcopy(meta)) for meta in metas]
    return DataProto.concat(parts).meta_info


def test_metrics_of_all_parts_become_a_dict_of_lists_in_order() -> None:
    merged = join(
        {"metrics": {"loss": 1.0}}, {}, {"metrics": [{"loss": 2.0}, {"loss": 3.0}]}, {"metrics": None}, {"metrics": {}}
    )
    assert merged == {"metrics": {"loss": [1.0, 2.0, 3.0]}}
    assert merged["metrics"]["loss"].parts == (0, 2, 2)


def test_equal_metrics_of_ranks_become_lists_too() -> None:
    assert join({"metrics": {"loss": 0.5}}, {"metrics": {"loss": 0.5}}) == {"metrics": {"loss": [0.5, 0.5]}}
    assert join({"metrics": {"loss": 0.5}}) == {"metrics": {"loss": [0.5]}}


def test_a_metric_that_a_part_lacks_is_never_taken_for_another_parts() -> None:
    merged = join({"metrics": {"acc": 0}}, {"metrics": {"loss": 1, "acc": 1}})["metrics"]
    assert merged == {"acc": [0, 1], "loss": [1]}
    assert merged["acc"].parts == (0, 1)
    assert merged["loss"].parts == (1,)
    again = pickle.loads(pickle.dumps(merged))
    assert again["loss"].parts == (1,)
    assert isinstance(again["loss"], list)


def test_metrics_that_were_merged_before_survive_a_cut_and_a_join() -> None:
    batch = DataProto.from_dict({"x": torch.ones(4)}, meta_info={"metrics": {"loss": [0.5, 0.7]}})
    assert DataProto.concat(batch.chunk(2)) == batch
    apart = [copy.deepcopy(part) for part in batch.chunk(2)]
    assert DataProto.concat(apart) == batch


@pytest.mark.parametrize("n_parts", [1, 2, 4])
def test_the_parts_of_one_cut_keep_their_metrics_as_they_were(n_parts: int) -> None:
    batch = DataProto.from_dict({"x": torch.ones(4)}, meta_info={"metrics": {"loss": 0.5}})
    assert DataProto.concat(batch.chunk(n_parts)) == batch
    assert DataProto.concat(batch.split(3)) == batch


def test_metrics_that_are_no_dicts_are_refused() -> None:
    with pytest.raises(MergeConflictError, match="part 1 holds a float"):
        join({"metrics": {"a": 1}}, {"metrics": 0.5})


def test_numbers_that_differ_are_kept_per_part() -> None:
    merged = join(*({"timing": {"gen": 0.1 + rank * 1e-6}, "seconds": float(rank)} for rank in range(4)))
    assert merged["timing"]["gen"] == [0.1 + rank * 1e-6 for rank in range(4)]
    assert merged["seconds"] == [0.0, 1.0, 2.0, 3.0]
    assert merged["seconds"].parts == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        [float("nan"), 1.0],
        [np.float32(1), np.int64(2)],
        [torch.tensor(1.0), torch.tensor(float("nan"))],
        [torch.tensor(1), 2],
        [np.array(1.0), 2.0],
        [None, 1.0],
        [1 + 2j, 1.0],
    ],
)
def test_any_kind_of_number_is_kept_per_part(values: list[Any]) -> None:
    merged = join({"n": values[0]}, {"n": values[1]}, {})["n"]
    assert isinstance(merged, PerPart)
    assert values_equal(list(merged), values)
    assert merged.parts == (0, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "b"),
        (True, False),
        (True, 1),
        ([1, 2], [1, 3]),
        ({"mode": "a"}, {"mode": "b"}),
        (np.arange(3), np.arange(3) + 1),
        (torch.arange(3), torch.arange(4)),
        (None, "a"),
        ("a", 1),
        ({1}, {2}),
        (np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)),
    ],
)
def test_settings_that_differ_are_an_error_that_names_the_key(one: Any, other: Any) -> None:
    with pytest.raises(MergeConflictError, match=r"^Conflicting values for meta_info key 'config'") as caught:
        join({"config": one}, {}, {"config": other})
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.key.split(".")[0] == "config"


def test_equal_values_and_keys_of_only_some_parts_stay_as_they_are() -> None:
    meta = {"name": "x", "nan": float("nan"), "array": np.array([1, np.nan]), "tensor": torch.ones(2), "none": None}
    merged = join(meta, {**meta, "extra": [1]}, meta)
    assert values_equal(merged, {**meta, "extra": [1]})


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.floats(width=32).map(np.float32)
    | st.lists(st.floats(), max_size=3).map(np.array)
    | st.lists(st.floats(), max_size=3).map(torch.tensor)
    | st.floats().map(torch.tensor),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=6,
)
_metas = st.dictionaries(st.sampled_from(["a", "b", "timing"]), _values)


@settings(max_examples=60, deadline=None)
@given(_metas, _metas)
def test_merging_meta_of_any_kind_succeeds_or_says_which_key_conflicts(one: Any, other: Any) -> None:
    before = copy.deepcopy((one, other))
    try:
        merged = DataProto.concat([DataProto(meta_info=one), DataProto(meta_info=other)]).meta_info
    except MergeConflictError as error:
        message = str(error)
    else:
        message = "Conflicting values for meta_info key 'none'"
        assert merged.keys() == one.keys() | other.keys()
        for key in one.keys() - other.keys():
            assert values_equal(merged[key], one[key])
    assert message.startswith("Conflicting values for meta_info key '")
    assert values_equal((one, other), before)
    assert values_equal(DataProto.concat([DataProto(meta_info=one)] * 2).meta_info, one)


@settings(max_examples=60, deadline=None)
@given(_values, _values)
def test_equality_never_fails_is_symmetric_and_holds_for_copies(one: Any, other: Any) -> None:
    assert values_equal(one, other) is values_equal(other, one)
    assert values_equal(one, copy.deepcopy(one))
    assert values_equal(one, pickle.loads(pickle.dumps(one)))


class Rude:
    """An object that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


def objects(*values: Any) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        array[number] = value
    return array


def ring() -> np.ndarray[Any, Any]:
    array = objects(1, None)
    array[1] = array
    return array


_SAME = [
    np.arange(24.0).reshape(2, 3, 4),
    np.array([1.0, np.nan]),
    objects(1.0, float("nan"), "nan"),
    objects(objects(objects(objects(1, float("nan")), "b"), [float("nan")]), {"a": np.arange(3)}),
    objects(torch.ones(2), {"k": torch.tensor([float("nan")])}, [np.ones(2)]),
    np.array(["a", "b"]),
    np.array([b"a", b"b"]),
    np.array(["NaT", "2026-01-01"], dtype="datetime64[D]"),
    np.array([(1, np.nan)], dtype=[("a", "i4"), ("b", "f4")]),
    np.array([complex(1, float("nan"))]),
    np.array([], dtype=object),
    ring(),
]


@pytest.mark.parametrize("number", range(len(_SAME)))
def test_equal_arrays_of_every_kind_unite(number: int) -> None:
    one, other = (
        {"nd_array": _SAME[number], "a": np.zeros(1)},
        {"nd_array": pickle.loads(pickle.dumps(_SAME[number])), "b": np.ones(1)},
    )
    united = union_numpy_dict(one, other)
    assert united is one
    assert set(united) == {"nd_array", "a", "b"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(3), np.arange(4)),
        (np.array([1.0]), np.array([np.nan])),
        (objects(float("nan")), objects("nan")),
        (objects([1, 2]), objects([1, 3])),
        (objects(np.ones(2)), objects(np.ones(3))),
        (objects(torch.ones(2)), objects(np.ones(2))),
        (objects(True), objects(1)),
        (objects(1), objects(None)),
        (np.array(["a"]), np.array([1])),
        (np.array([1]), np.array([1.0])),
        (objects(Rude()), objects(Rude())),
        (ring(), objects(1, objects(2, None))),
        (objects(objects(objects(1))), objects(objects(objects(2)))),
    ],
)
def test_arrays_that_differ_do_not_unite_and_nothing_is_changed(one: Any, other: Any) -> None:
    first = {"nd_array": one}
    message = "`nd_array` in tensor_dict1 and tensor_dict2 are not the same object."
    with pytest.raises(MergeConflictError) as caught:
        union_numpy_dict(first, {"new": np.ones(1), "nd_array": other})
    assert message in str(caught.value)
    assert set(first) == {"nd_array"}


def test_tensordicts_unite_in_place_when_shared_keys_are_equal_nan_or_not() -> None:
    one = DataProto.from_dict({"a": torch.tensor([1.0, float("nan")])}).batch
    two = DataProto.from_dict({"a": torch.tensor([1.0, float("nan")]), "b": torch.ones(2)}).batch
    three = DataProto.from_dict({"a": torch.tensor([1.0, 2.0]), "c": torch.ones(2)}).batch
    four = DataProto.from_dict({"a": torch.ones(3)}).batch
    assert one is not None
    assert two is not None
    assert three is not None
    assert four is not None
    assert union_tensor_dict(one, two) is one
    assert set(one.keys()) == {"a", "b"}
    with pytest.raises(MergeConflictError, match="`a` in tensor_dict1"):
        union_tensor_dict(one, three)
    assert set(one.keys()) == {"a", "b"}
    with pytest.raises(BatchError, match="batch sizes"):
        union_tensor_dict(one, four)


def test_batches_are_equal_by_value_and_cannot_be_hashed() -> None:
    one = DataProto.from_dict({"x": torch.tensor([float("nan")])}, {"t": ["a"]}, {"m": float("nan")})
    same = DataProto.from_dict(
        {"x": torch.tensor([float("nan")])}, {"t": ["a"]}, {"m": float("nan")}, auto_padding=True
    )
    assert one == same.with_row_ids([7])
    assert one != DataProto.from_dict({"x": torch.tensor([float("nan")])}, {"t": ["b"]}, {"m": float("nan")})
    assert one != DataProto.from_dict({"x": torch.tensor([0.0])}, {"t": ["a"]}, {"m": float("nan")})
    assert one != DataProto.from_dict({"x": torch.tensor([float("nan")])}, {"t": ["a"]})
    assert one != "something else"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
