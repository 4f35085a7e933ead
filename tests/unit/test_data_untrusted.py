"""Files that anybody may have written: each is read as it was saved, or is one typed error."""

from __future__ import annotations

import pickle
import random
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch

from core import DataProto
from core.data import wire
from core.data.disk import _MARK
from core.errors import BatchError

pytestmark = pytest.mark.filterwarnings("ignore:.*is in (beta|prototype).*:UserWarning")


def saved(content: object, path: Path, protocol: int = 5) -> str:
    """Write a pickle as if it were a batch's file."""
    path.write_bytes(_MARK + pickle.dumps(content, protocol))
    return str(path)


def rich() -> DataProto:
    """Return a batch of columns of every kind."""
    jagged = torch.nested.nested_tensor_from_jagged(torch.arange(9.0), offsets=torch.tensor([0, 2, 2, 9]))
    tensors = {"a": torch.arange(6).view(3, 2), "j": jagged, "b": torch.ones(3, dtype=torch.bfloat16)}
    arrays = {
        "objects": np.array(["x", {"y": 1}, None], dtype=object),
        "texts": np.array(["a", "bc", ""]),
        "pairs": np.zeros(3, dtype=np.dtype([("p", "<i4"), ("q", ">f8", (2,))], align=True)),
    }
    meta = {
        "day": np.datetime64("2020-01-01T01", "h"),
        "ordered": OrderedDict(a=1),
        "counted": Counter("abb"),
        "uuid": UUID(int=7),
        "dtypes": [np.dtype("M8[3us]"), np.dtype(">i4"), np.dtype(object), np.dtype("U3")],
        "sparse": torch.eye(2).to_sparse(),
        "compressed": torch.eye(2).to_sparse_csc(),
    }
    return DataProto.from_dict(tensors, arrays, meta_info=meta).with_row_ids([4, 5, -1])


def test_what_a_batch_can_be_made_of_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = str(tmp_path / "batch.pkl")
    rich().save_to_disk(path)
    assert DataProto.load_from_disk(path) == DataProto.load_from_disk(path, trusted=True) == rich()
    row_ids = DataProto.load_from_disk(path).row_ids
    assert row_ids is not None
    assert row_ids.tolist() == [4, 5, -1]


class Made:
    """Pickles as a part of the wire format with what its writer likes in it."""

    def __init__(self, name: str, *parts: Any) -> None:
        self.name, self.parts = name, parts

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr(wire, self.name), self.parts


def ones(n: int) -> Made:
    """Make the tensor of so many ones."""
    return Made("_dense", "float32", (n,), np.ones(n, np.float32).view(np.uint8), None)


def numbers(*values: int) -> np.ndarray[Any, Any]:
    """Return numbers as the bytes of a tensor."""
    return np.array(values).view(np.uint8)


@pytest.mark.parametrize(
    "made",
    [
        Made("_sparse", Made("_dense", "int64", (1, 2), numbers(0, 1 << 22), None), ones(2), (3,)),
        Made("_sparse", Made("_dense", "int64", (1, 2), numbers(-9, 1), None), ones(2), (3,)),
        Made(
            "_compressed",
            *(Made("_dense", "int64", (2,), numbers(0, n), None) for n in (9, 1)),
            ones(2),
            (1, 2),
            "sparse_csr",
        ),
        Made("_compressed", ones(2), ones(2), ones(2), (1, 2), "uint8"),
        Made("_new", 3),
        Made("_jagged", ones(3), Made("_dense", "int64", (3,), numbers(0, 2, 1 << 40), None), 1),
        Made("_jagged", ones(3), Made("_dense", "int64", (3,), numbers(0, -2, 3), None), 1),
        Made("_dense", "float32", (1 << 62,), np.zeros(0, np.uint8), None),
        Made("_array", "<f9", (3,), "C", bytearray(27), False),
        Made("_array", "<U1", (1,), "C", bytearray(b"\\xff" * 4), False),
        # Memory that was never filled would be read.
        Made("_dense", "float32", (3,), np.zeros(0, np.uint8), None),
        Made("_tensordict", (3,), None, [("x", "float32", (3,), np.zeros(0, np.uint8), None)]),
    ],
)
def test_a_file_whose_parts_do_not_fit_together_is_damaged(made: Made, tmp_path: Path) -> None:
    path = str(tmp_path / "batch.pkl")
    DataProto(meta_info={"x": made}).save_to_disk(path)
    with pytest.raises(BatchError, match="is damaged"):
        DataProto.load_from_disk(path)


@dataclass
class Own:
    """A user's own class as a row."""

    ids: list[int]


class Tagged(torch.Tensor):
    """A user's own tensor."""


@pytest.mark.parametrize("value", [Own([1]), torch.ones(2).as_subclass(Tagged)], ids=["dataclass", "tensor"])
def test_a_class_of_the_users_own_is_refused_by_its_name_and_read_from_a_trusted_file(
    value: object, tmp_path: Path
) -> None:
    path = str(tmp_path / "batch.pkl")
    DataProto(meta_info={"x": value}).save_to_disk(path)
    with pytest.raises(BatchError, match=rf"holds a \S*test_data_untrusted\.{type(value).__name__}, .*trusted=True"):
        DataProto.load_from_disk(path)
    assert type(DataProto.load_from_disk(path, trusted=True).meta_info["x"]) is type(value)


class Call:
    """Pickles as a call, followed by a state."""

    def __init__(self, called: Any, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.parts = (called, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


MADE_OF: Any = np.array([None]).__reduce__()
RECONSTRUCT, START = MADE_OF[:2]
OBJECTS, FLOATS = np.dtype(object), np.dtype("f4")


@pytest.mark.parametrize(
    "made",
    [
        # Numpy would take as many objects from the list as it is told, and beyond.
        Call(RECONSTRUCT, START, (1, (120,), OBJECTS, False, ["x"])),
        Call(RECONSTRUCT, START, (1, (-1,), FLOATS, False, b"")),
        Call(RECONSTRUCT, START, (1, (9,), FLOATS, False, b"")),
        Call(RECONSTRUCT, (np.ndarray, (1000,), b"d")),
        # Numbers would be called objects, or lie beyond their row.
        Call(np.dtype, ("i8", False, True), (3, "|", None, None, None, -1, -1, 63)),
        Call(np.dtype, ("V4", False, True), (3, "|", None, ("p",), {"p": (np.dtype("i8"), 900)}, 4, 1, 16)),
        # An array of memory that nobody filled; a state that is none.
        Call(np.ndarray, ((1000,),)),
        Call(UUID, ("0" * 32,), (None, {"int": 3})),
    ],
)
def test_what_numpy_would_believe_is_looked_at_first(made: object, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="is damaged"):
        DataProto.load_from_disk(saved(DataProto(meta_info={"x": made}), tmp_path / "batch.pkl"))


def in_a_row(first: object, state: object) -> bytes:
    """Return a pickle that gives what ``first`` comes to another state."""
    return pickle.dumps(first, 2)[:-1] + pickle.dumps(state, 2)[2:-1] + pickle.BUILD + pickle.STOP


@pytest.mark.parametrize(
    "content",
    [
        # A tensor can lie on the memory that an array gives away.
        in_a_row(Call(RECONSTRUCT, START, (1, (4,), FLOATS, False, bytes(16))), (1, (9,), FLOATS, False, bytes(36))),
        # The whole process has functions and classes in common.
        in_a_row(wire._dense, (None, {"__defaults__": (1,)})),
        in_a_row(DataProto, (None, {"check_consistency": len})),
        pickle.dumps(np.zeros(3), 5),
        in_a_row(wire._rebuild, None)[:-2] + pickle.dumps((1, {}), 2)[2:-1] + pickle.REDUCE + pickle.STOP,
        # So many bytes would be cleared before it shows that they are not there.
        pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + (1 << 40).to_bytes(8, "little") + pickle.STOP,
    ],
)
def test_no_state_reaches_what_others_hold_and_no_size_is_believed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "batch.pkl"
    path.write_bytes(_MARK + content)
    with pytest.raises(BatchError):
        DataProto.load_from_disk(str(path))
    assert DataProto.check_consistency is not len
    assert wire._dense.__defaults__ is None


@pytest.mark.parametrize(
    "state",
    [
        {"batch": 5, "non_tensor_batch": {}, "meta_info": {}},
        {"batch": None, "non_tensor_batch": {"x": [1]}, "meta_info": {}},
        {"batch": None, "non_tensor_batch": {"x": np.zeros(2), "y": np.zeros(3)}, "meta_info": {}},
        {"batch": None, "non_tensor_batch": {}, "meta_info": {}, "chunk": 3},
        {"batch": None},
    ],
)
def test_a_batch_of_other_parts_is_damaged(state: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="is damaged"):
        DataProto.load_from_disk(saved(Made("_rebuild", DataProto, state), tmp_path / "batch.pkl"))


MANY = range(10**15)


@pytest.mark.parametrize(
    "made",
    [
        *(Call(kind, (MANY,)) for kind in (set, frozenset, deque, Counter, OrderedDict, bytearray, torch.Size)),
        Call(bytearray, (10**15,)),
        Call(RECONSTRUCT, START, (1, MANY, FLOATS, False, b"")),
        Made("_tensordict", MANY, None, []),
        Made("_non_tensor", "x", MANY, None),
        Made("_array", "<f4", MANY, "C", bytearray(4), False),
        # A number of a dtype, without its bytes.
        Call(np.float32(0).__reduce__()[0], (np.dtype("V2000000000"),)),
    ],
)
def test_a_few_bytes_do_not_become_many(made: object, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="is damaged: ValueError"):
        DataProto.load_from_disk(saved(DataProto(meta_info={"x": made}), tmp_path / "batch.pkl"))


def nested(n: int) -> bytes:
    """Return the part of a pickle that makes a tuple which holds one tuple twice, which holds another twice."""
    return b")" + b"".join(pickle.MEMOIZE + pickle.BINGET + bytes([i]) + pickle.TUPLE2 for i in range(n))


SET = b"cbuiltins\nset\n"
DEEP = b")" + pickle.TUPLE1 * 100_000


@pytest.mark.parametrize("key", [nested(100), DEEP], ids=["wide", "deep"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"}", b"Ns"),
        (b"}(", b"Nu"),
        (b"(", b"Nd"),
        (pickle.EMPTY_SET + b"(", pickle.ADDITEMS),
        (b"(", pickle.FROZENSET),
        (SET + b"(](", b"etR"),
        (b"(" + SET + b"](", b"eo"),
        (b"ccollections\nCounter\n(](", b"etR"),
        (b"ccore.data.wire\n_tensordict\n()N](", b"N\x86etR"),
    ],
)
def test_a_key_that_takes_forever_to_hash_is_refused(before: bytes, after: bytes, key: bytes, tmp_path: Path) -> None:
    path = tmp_path / "batch.pkl"
    path.write_bytes(_MARK + pickle.PROTO + b"\x05" + before + key + after + pickle.STOP)
    with pytest.raises(BatchError, match="nested too deeply"):
        DataProto.load_from_disk(str(path))


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_containers_of_every_kind_are_read_whatever_the_protocol(protocol: int, tmp_path: Path) -> None:
    value = {
        "kinds": [{1, 2}, frozenset("ab"), deque([1, 2], 3), Counter("aab"), OrderedDict(a=1), bytearray(b"xy")],
        "ranges": [range(3), slice(1, 2), torch.Size([2, 3])],
        (1, ("a", (2, 3))): np.float32(2),
    }
    path = saved(DataProto(meta_info={"x": value}), tmp_path / "batch.pkl", protocol)
    assert DataProto.load_from_disk(path).meta_info["x"] == value


def test_a_file_with_any_bytes_changed_is_read_or_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "batch.pkl"
    rich().save_to_disk(str(path))
    whole, chance = path.read_bytes(), random.Random(5)
    n_read = 0
    for _ in range(600):
        broken = bytearray(whole)
        for _ in range(chance.choice((1, 2, 4))):
            at = chance.randrange(len(_MARK), len(broken))
            broken[at : at + chance.choice((0, 1, 1, 3))] = chance.randbytes(chance.choice((0, 1, 1, 3)))
        path.write_bytes(broken)
        try:
            batch = DataProto.load_from_disk(str(path))
        except BatchError:
            continue
        n_read += 1
        assert len(batch[:1]) in {0, 1}
        batch.get_data_info()
    assert 0 < n_read < 600
