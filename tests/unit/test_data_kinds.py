"""Arrays and tensors of every kind: rows come back bit for bit through every path, or the column is refused by name."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import MemoryMappedTensor, TensorDict

from core import DataProto, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.data import collate_fn, fold_batch_dim, pack, unfold_batch_dim
from core.data.equality import values_equal
from core.data.memory import raw_bytes
from core.data.tensors import cat_arrays
from core.errors import BatchError, MergeConflictError, ShareError
from core.testing import local_controller
from tests.unit.test_data_proto_wire import travel

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is in (beta|prototype).*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*PyTorch API of MaskedTensors.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*invariant checks.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:the matrix subclass.*:PendingDeprecationWarning"),
]


class Pair(NamedTuple):
    """A named tuple as a row."""

    one: Any
    other: str


@dataclass
class Answer:
    """A user's own class as a row."""

    text: str
    ids: list[Any]


@dataclass(frozen=True, slots=True)
class Frozen:
    """Another one, of another build."""

    ids: Any


class Tagged(torch.Tensor):
    """A user's own tensor, with an attribute."""

    tag: str


class Tracked(np.ndarray[Any, np.dtype[Any]]):
    """A user's own array."""


_RECORD = np.dtype({"names": ["a", "b"], "formats": ["i1", ">f8"], "offsets": [0, 8], "itemsize": 24})

ROWS: dict[str, Callable[[int], list[Any]]] = {
    "equal lists": lambda n: [[i, i + 1] for i in range(n)],
    "ragged lists": lambda n: [[i] * (i % 3) for i in range(n)],
    "empty lists": lambda n: [[] for _ in range(n)],
    "nested lists": lambda n: [[[i, "a"], [None, 2.5]] for i in range(n)],
    "half nested lists": lambda n: [[[i], [i, i]] for i in range(n)],
    "lists of arrays": lambda n: [[np.arange(3), np.float32(i)] for i in range(n)],
    "lists of tuples": lambda n: [[(i, i), (i, 2)] for i in range(n)],
    "chats": lambda n: [[{"role": "user", "content": str(i)}] for i in range(n)],
    "tuples": lambda n: [(i, i + 1) for i in range(n)],
    "named tuples": lambda n: [Pair(i, "x") for i in range(n)],
    "mixed": lambda n: [([i, 1], (i, 1), "text", None, {"a": i}, i, np.int8(1))[i % 7] for i in range(n)],
    "equal arrays": lambda n: [np.array([i, 2], dtype=np.int16) for i in range(n)],
    "numpy scalars": lambda n: [np.float32(i) for i in range(n)],
    "dates": lambda n: [np.datetime64("2026-01-01", "ns") for _ in range(n)],
    "numbers": lambda n: [True, 2**70, -1, 0.5][:n] + [None] * max(n - 4, 0),
    "strings": lambda n: ["", "Zürich", "\U0001f3bc"][:n] + ["a" * i for i in range(max(n - 3, 0))],
    "bytes": lambda n: [bytes([i, 0]) for i in range(n)],
    "sets": lambda n: [{i, 7} for i in range(n)],
    "own class": lambda n: [Answer(str(i), [i]) for i in range(n)],
    "tensors": lambda n: [torch.full((2,), i) for i in range(n)],
    "masked arrays": lambda n: [np.ma.array([1, i], mask=[True, False]) for i in range(n)],
    "nothing": lambda n: [None] * n,
}

ARRAYS: dict[str, Callable[[int], np.ndarray[Any, Any]]] = {
    "plain": lambda n: np.arange(3.0 * n).reshape(n, 3),
    "read-only": lambda n: _read_only(np.arange(n)),
    "big-endian": lambda n: np.arange(n, dtype=">i4"),
    "negative strides": lambda n: np.arange(2 * n).reshape(2, n).T[::-1],
    "fortran": lambda n: np.asfortranarray(np.arange(2 * n).reshape(n, 2)),
    "repeated by stride 0": lambda n: np.broadcast_to(np.arange(2), (n, 2)),
    "records": lambda n: np.array([(i, i / 2) for i in range(n)], dtype=_RECORD),
    "records with objects": lambda n: np.array([(i, [i]) for i in range(n)], dtype=[("a", "i4"), ("b", "O")]),
    "dates": lambda n: np.arange(n).astype("M8[D]"),
    "dates of nanoseconds": lambda n: np.arange(n).astype("M8[ns]"),
    "durations": lambda n: np.arange(n).astype(">m8[25us]"),
    "not a time": lambda n: np.full(n, "NaT", dtype="M8[s]"),
    "fixed strings": lambda n: np.array(["ab", "c", "\U0001f3bc"] * n)[:n],
    "fixed bytes": lambda n: np.array([b"ab", b"c"] * n)[:n],
    "numpy strings": lambda n: np.array(["ab", "c" * 50, "\U0001f3bc"] * n, dtype=np.dtypes.StringDType())[:n],
    "float16": lambda n: np.arange(n, dtype=np.float16),
    "longdouble": lambda n: np.arange(n, dtype=np.longdouble) / 3,
    "complex": lambda n: np.arange(n) * (1 + 2j),
    "bool": lambda n: np.arange(n) % 2 == 0,
    "no width": lambda n: np.zeros((n, 0), dtype=np.int8),
    "objects of two axes": lambda n: np.array([[i, "a"] for i in range(n)], dtype=object).reshape(n, 2),
}

TENSORS: dict[str, Callable[[int], torch.Tensor]] = {
    "plain": lambda n: torch.arange(2.0 * n).reshape(n, 2),
    "parameter": lambda n: torch.nn.Parameter(torch.arange(1.0 * n)),
    "buffer": lambda n: torch.nn.Buffer(torch.arange(n)),
    "memory-mapped": lambda n: MemoryMappedTensor.from_tensor(torch.arange(n)),
    "requires grad": lambda n: torch.arange(1.0 * n, requires_grad=True) * 2,
    "conj": lambda n: (torch.arange(n) * (1 + 2j)).conj(),
    "neg": lambda n: (torch.arange(n) * (1 + 2j)).conj().imag,
    "not contiguous": lambda n: torch.arange(2 * n).reshape(2, n).t(),
    "expanded": lambda n: torch.arange(3).expand(n, 3),
    "no width": lambda n: torch.zeros(n, 0, dtype=torch.bfloat16),
    "sparse": lambda n: torch.eye(n).to_sparse(),
    "sparse, not coalesced": lambda n: torch.sparse_coo_tensor(torch.zeros(1, 2), torch.ones(2), (n,)),
    "jagged": lambda n: torch.nested.nested_tensor_from_jagged(torch.arange(2 * n), offsets=torch.arange(n + 1) * 2),
    "float8": lambda n: torch.arange(n).to(torch.float8_e4m3fn),
}


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def exact(value: Any) -> Any:
    """Turn a value into something that is equal only to what is of the same types and bits."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        value = value.detach() if value.layout is not torch.strided else value.detach().as_subclass(torch.Tensor)
        value = (value.to_dense() if value.layout is torch.sparse_coo else value).resolve_conj().resolve_neg()
        return "tensor", str(value.dtype), tuple(value.shape), _bits(value)
    if isinstance(value, np.ma.MaskedArray):
        return kind, str(value.dtype), np.ma.getmaskarray(value).tolist(), value.tolist()
    if isinstance(value, np.ndarray):
        is_bytes = not (value.dtype.hasobject or value.dtype.names or value.dtype == np.longdouble)
        content = (
            value.tobytes()
            if is_bytes
            else [exact(item) for item in (value.ravel() if value.dtype == np.longdouble else value.ravel().tolist())]
        )
        return kind, repr(value.dtype), value.shape, content
    if isinstance(value, np.void):  # there may be unused bytes between its fields
        return kind, repr(value.dtype), [exact(item) for item in value.item()]
    if isinstance(value, np.longdouble):  # nor are all of its bytes used
        return kind, repr(value)
    if isinstance(value, np.generic):
        return kind, repr(value.dtype), value.tobytes()
    if isinstance(value, dict):
        return kind, [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [exact(item) for item in value]
    return kind, value


def _bits(tensor: torch.Tensor) -> bytes:
    return raw_bytes(tensor.contiguous()).numpy().tobytes() if tensor.numel() else b""


def rows_in(batch: DataProto) -> list[Any]:
    """Return the rows of the column "x", exactly."""
    if batch.batch is not None and "x" in set(batch.batch.keys()):
        column = batch.batch.get("x")
        column = column.to_dense() if column.layout is torch.sparse_coo else column
        parts = column.unbind() if column.is_nested else [column.select(0, row) for row in range(column.shape[0])]
        return [exact(part) for part in parts]
    return [exact(batch[row].non_tensor_batch["x"]) for row in range(len(batch))]


class Echo(Worker):
    """Gives back what it gets, and says which types its rows are of."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo(self, batch: Any) -> Any:
        """Give rows back."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def later(self, batch: DataProto) -> DataProto:
        """Give rows back later."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def kinds(self, batch: DataProto) -> list[str]:
        """Return the types of the rows, as plain indexing gives them."""
        return [type(batch.non_tensor_batch["x"][row]).__name__ for row in range(len(batch))]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def remade(self, batch: DataProto) -> DataProto:
        """Make a new batch of the rows."""
        return DataProto.from_dict(non_tensors={"x": list(batch.non_tensor_batch["x"])})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give_back(self, value: Any) -> Any:
        """Give a value back."""
        return value


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    """Two ranks on the local cluster."""
    with (
        local_controller(),
        RayResourcePool([2], use_gpu=False) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Echo)) as made,
    ):
        yield made


def made_of(kind: str, name: str, n_rows: int) -> DataProto:
    """Make a batch whose column "x" is of that kind."""
    if kind == "tensor":
        return DataProto.from_dict({"x": TENSORS[name](n_rows)})
    column: Any = ROWS[name](n_rows) if kind == "rows" else ARRAYS[name](n_rows)
    return DataProto.from_dict(non_tensors={"x": column})


def put_in(kind: str, name: str, n_rows: int) -> list[Any]:
    """Return the rows that were put in, exactly."""
    if kind == "rows":
        return [exact(row) for row in ROWS[name](n_rows)]
    if kind == "array":
        array = ARRAYS[name](n_rows)
        return [exact(array[row]) for row in range(n_rows)]
    return rows_in(made_of(kind, name, n_rows))


def _on_disk(batch: DataProto, path: Path) -> DataProto:
    batch.save_to_disk(str(path))
    return DataProto.load_from_disk(str(path), trusted=True)


def _reordered(batch: DataProto) -> DataProto:
    again = batch.slice()
    backwards = list(range(len(batch)))[::-1]
    again.reorder(backwards)
    again.reorder(backwards)
    return again


def _folded(batch: DataProto) -> DataProto:
    folded: DataProto = travel(fold_batch_dim(batch, len(batch) // 2))
    return unfold_batch_dim(folded)


PATHS: dict[str, Callable[[DataProto, Any, Path], DataProto]] = {
    "cut and joined": lambda batch, *_: DataProto.concat(batch.split_balanced(3)),
    "taken one by one": lambda batch, *_: DataProto.concat([batch[[row]] for row in range(len(batch))]),
    "some sent, some not": lambda batch, *_: DataProto.concat([travel(batch[:1]), batch[1:]]),
    "repeated": lambda batch, *_: batch.repeat(3, interleave=False)[: len(batch)],
    "reordered": lambda batch, *_: _reordered(batch),
    "padded": lambda batch, *_: _padded(batch),
    "sent": lambda batch, *_: travel(batch),
    "sent in band": lambda batch, *_: pickle.loads(pickle.dumps(batch, 5)),
    "sent by an old protocol": lambda batch, *_: pickle.loads(pickle.dumps(batch, 2)),
    "copied": lambda batch, *_: copy.deepcopy(batch),
    "called": lambda batch, group, _: group.echo(batch.slice()),
    "called with padding": lambda batch, group, _: group.echo(_with_padding(batch)),
    "a future": lambda batch, group, _: group.later(_with_padding(batch)).get(),
    "a future's future": lambda batch, group, _: group.later(group.later(_with_padding(batch))).get(),
    "through a file": lambda batch, _, path: _on_disk(batch, path),
    "row by row": lambda batch, *_: collate_fn([batch[row] for row in range(len(batch))]),
    "folded and unfolded": lambda batch, *_: _folded(batch),
    "as a TensorDict": lambda batch, *_: DataProto.from_tensordict(travel(pack(batch.to_tensordict()))),
}


def _with_padding(batch: DataProto) -> DataProto:
    copied = batch.slice()
    copied._auto_padding = True
    return copied


def _padded(batch: DataProto) -> DataProto:
    longer = batch.slice()
    longer.padding(2)
    return longer[: len(batch)]


_CANNOT = {
    ("tensor", "folded and unfolded"): {"sparse", "sparse, not coalesced", "jagged"},
    ("tensor", "row by row"): {"sparse", "sparse, not coalesced", "jagged"},
}
CASES = [
    *(("rows", name) for name in ROWS),
    *(("array", name) for name in ARRAYS),
    *(("tensor", name) for name in TENSORS),
]


@settings(max_examples=150, deadline=None)
@given(case=st.sampled_from(CASES), path=st.sampled_from(sorted(PATHS)), n_rows=st.sampled_from([2, 4, 6]))
def test_rows_come_back_as_they_were_put_in_through_every_path(
    group: Any, tmp_path_factory: pytest.TempPathFactory, case: tuple[str, str], path: str, n_rows: int
) -> None:
    kind, name = case
    if name in _CANNOT.get((kind, path), ()):
        return
    batch = made_of(kind, name, n_rows)
    again = PATHS[path](batch, group, tmp_path_factory.mktemp("files") / "batch")
    assert rows_in(again) == put_in(kind, name, n_rows)
    assert rows_in(batch) == put_in(kind, name, n_rows), "the caller's batch was changed"
    # A column that is made of single rows can be of another type with the same rows: arrays of one shape are stacked.
    assert (again == batch and batch == again) or path in ("as a TensorDict", "row by row")


# Case 01 of the field (list_rows).
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("n_rows", [3, 4])
def test_list_rows_and_others_reach_a_worker_with_the_types_that_were_put_in(
    group: Any, name: str, n_rows: int
) -> None:
    batch = _with_padding(made_of("rows", name, n_rows))
    kinds = [type(row).__name__ for row in ROWS[name](n_rows)]
    assert list(itertools.chain(*group.kinds(batch)))[:n_rows] == kinds
    assert rows_in(group.remade(batch)) == put_in("rows", name, n_rows)


def test_lists_of_one_length_have_two_axes_where_they_are_made_and_one_where_they_arrive(group: Any) -> None:
    batch = DataProto.from_dict(non_tensors={"x": [[1, 2], [3, 4]]})
    assert batch.non_tensor_batch["x"].shape == (2, 2)
    assert batch[:1].non_tensor_batch["x"].shape == (1, 2)
    got = group.echo(batch)
    assert got.non_tensor_batch["x"].shape == (2,)
    got.non_tensor_batch["x"][0].append(5)
    assert rows_in(got) == [exact([1, 2, 5]), exact([3, 4])]
    halves = group.echo(DataProto.from_dict(non_tensors={"x": [["a", "b"], ["c", "d"]]}))
    unfolded = halves.unfold_column_chunks(2, split_keys=["x"]).non_tensor_batch["x"]
    assert unfolded.tolist() == [["a"], ["b"], ["c"], ["d"]]
    assert unfolded.shape == (4, 1)
    lengths = batch.non_tensor_batch["x"].astype(np.int64)
    assert travel(DataProto(None, {"x": lengths})).non_tensor_batch["x"].dtype == np.int64


REFUSED_ARRAYS: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "masked": lambda: np.ma.array([1.0, -999.0], mask=[False, True]),
    "masked records": lambda: np.ma.array([(1, 2.0)] * 2, dtype="i4,f8"),
    "matrix": lambda: np.asmatrix([[1, 2], [3, 4]]),
    "recarray": lambda: np.rec.array([(1, 2.0)] * 2),
    "own": lambda: np.arange(2).view(Tracked),
}
REFUSED_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "csr": lambda: torch.eye(2).to_sparse_csr(),
    "csc": lambda: torch.eye(2).to_sparse_csc(),
    "bsr": lambda: torch.eye(2).to_sparse_bsr((1, 1)),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 3, torch.qint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
    ),
    "own": lambda: torch.ones(2).as_subclass(Tagged),
    "masked": lambda: torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])),
}


# Case 02 of the field (masked_arrays): the mask is kept where rows are objects, and a column is refused.
@pytest.mark.parametrize("name", REFUSED_ARRAYS)
def test_an_array_that_joining_would_change_is_refused_by_name_with_the_way_out(group: Any, name: str) -> None:
    array = REFUSED_ARRAYS[name]()
    told = rf"'score'\] is a .*({type(array).__name__}|masked array).*; use "
    with pytest.raises(BatchError, match=told):
        DataProto.from_dict(non_tensors={"score": array})
    with pytest.raises(BatchError, match=told):
        DataProto(None, {"score": array})
    batch = DataProto.from_dict({"n": torch.arange(2)})
    batch.non_tensor_batch["score"] = array
    with pytest.raises(BatchError, match=told):
        group.echo(batch)
    with pytest.raises(BatchError, match=told):
        batch[[0]]
    with pytest.raises(BatchError, match="the result is a"):
        cat_arrays([array, array], "the result")


@pytest.mark.parametrize("name", REFUSED_TENSORS)
def test_a_tensor_that_joining_would_change_is_refused_by_name_with_the_way_out(group: Any, name: str) -> None:
    tensor = REFUSED_TENSORS[name]()
    told = r"score.* (is a .*|has layout torch.sparse_.*); use tensor\."
    with pytest.raises(BatchError, match=told):
        DataProto.from_dict({"score": tensor})
    inner = TensorDict({"inner": TensorDict({"score": tensor}, batch_size=[2])}, batch_size=[2])
    with pytest.raises(BatchError, match=rf"inner\.{told}"):
        DataProto(inner)
    with pytest.raises(BatchError, match=rf"#1 of .*inner\.{told}"):
        group.echo(inner)
    batch = DataProto.from_dict({"n": torch.arange(2)})
    batch.batch["score"] = tensor
    with pytest.raises(BatchError, match=rf"#1 of .*{told}"):
        group.echo(batch)
    with pytest.raises(BatchError, match=told):
        travel(batch)
    with pytest.raises(BatchError, match=r"#1 of .*; use tensor"):
        group.echo(tensor)


def arguments() -> dict[str, Any]:
    """Return values of every kind that can travel as an argument, by name."""
    values: dict[str, Any] = {f"array: {name}": make(4) for name, make in ARRAYS.items()}
    values |= {f"tensor: {name}": make(4) for name, make in TENSORS.items() if name != "jagged"}
    values |= {f"refused as a column: {name}": make() for name, make in REFUSED_ARRAYS.items()}
    tagged = torch.arange(3).as_subclass(Tagged)
    tagged.tag = "a"
    lone = {"0-d array": np.array(3, dtype=">i2"), "0-d tensor": torch.tensor(2.5), "tagged": tagged}
    kinds: dict[str, Callable[[Any], Any]] = {
        "lone": lambda value: value,
        "in a list": lambda value: [value, 1],
        "in a dict": lambda value: {"a": (value, None)},
        "in an object": lambda value: Answer("x", [value]),
        "in a frozen object": lambda value: Frozen(value),
        "in a named tuple": lambda value: Pair(value, "x"),
        "in an object array": lambda value: _one_object(value),
    }
    return {
        f"{name}, {where}": put(value)
        for (name, value), (where, put) in itertools.product((values | lone).items(), kinds.items())
    }


def _one_object(value: Any) -> np.ndarray[Any, Any]:
    made = np.empty(1, dtype=object)
    made[0] = value
    return made


def exact_argument(value: Any) -> Any:
    """Look through an object too."""
    return (type(value), exact(value.ids)) if isinstance(value, (Answer, Frozen)) else exact(value)


def test_values_of_every_kind_travel_as_arguments_and_results_wherever_they_sit(group: Any) -> None:
    wrong = []
    for name, value in arguments().items():
        wrong += [name for got in group.give_back(value) if exact_argument(got) != exact_argument(value)]
    assert wrong == []
    tagged = torch.arange(3).as_subclass(Tagged)
    tagged.tag = "a"
    got = group.give_back(tagged)[0]
    assert type(got) is Tagged
    assert got.tag == "a"


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
def test_compressed_sparse_tensors_travel_as_arguments(group: Any, layout: str) -> None:
    tensor = REFUSED_TENSORS[layout]()
    for got in (*group.give_back(tensor), travel(pack([tensor]))[0]):
        assert got.layout == tensor.layout
        assert values_equal(got, tensor)
        assert torch.equal(got.values(), tensor.values())


@pytest.mark.parametrize("name", ["quantized", "masked"])
def test_a_tensor_that_cannot_travel_is_named_with_its_argument_or_its_rank(group: Any, name: str) -> None:
    with pytest.raises(ShareError, match=r"argument #1 of .*give_back is a list .*cannot be sent.*tensor\."):
        group.give_back([REFUSED_TENSORS[name]()])


def test_parts_of_other_dtypes_are_joined_only_where_no_value_changes() -> None:
    days, late = np.array(["2026-01-01"], "M8[D]"), np.array(["3000-01-01"], "M8[D]")
    nanoseconds = np.array(["2026-01-01"], "M8[ns]")
    assert cat_arrays([days, nanoseconds], "x").tolist() == [nanoseconds[0].item()] * 2
    with pytest.raises(MergeConflictError, match="'x' has different dtypes"):
        cat_arrays([late, nanoseconds], "x")
    for other in (np.array(["a"], dtype=np.dtypes.StringDType()), np.zeros(1, _RECORD), np.array([b"a"])):
        with pytest.raises(MergeConflictError, match="'x' has different dtypes"):
            cat_arrays([other, np.array(["a"])], "x")
    mixed = cat_arrays([nanoseconds, np.array([None], dtype=object)], "x")
    assert [type(item) for item in mixed] == [np.datetime64, type(None)]


def test_a_masked_array_selects_no_rows_and_is_equal_only_with_its_mask() -> None:
    batch = DataProto.from_dict({"x": torch.arange(3)})
    with pytest.raises(TypeError, match="masked array"):
        batch[np.ma.array([True, True, False], mask=[False, True, False])]
    with pytest.raises(BatchError, match="masked array"):
        batch.sample_level_repeat(np.ma.array([1, 1, 1], mask=[False, True, False]))
    one = np.ma.array([1, 2], mask=[False, True])
    assert values_equal(one, one.copy())
    assert not values_equal(one, np.ma.array([1, 2], mask=[False, False]))
    assert not values_equal(one, np.array([1, 2]))
