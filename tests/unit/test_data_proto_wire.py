"""What travels comes back bit for bit, can be written to, and shares nothing."""

from __future__ import annotations

import copy
import pickle
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from core.data import (
    DataProto,
    deserialize_single_tensor,
    deserialize_tensordict,
    pack,
    serialize_single_tensor,
    serialize_tensordict,
)
from core.data.equality import tensors_equal, values_equal
from core.data.memory import raw_bytes
from core.errors import BatchError

_NAMES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
DTYPES = [getattr(torch, name) for name in _NAMES if hasattr(torch, name)]


def bits(tensor: torch.Tensor) -> bytes:
    return raw_bytes(tensor.detach().contiguous()).numpy().tobytes() if tensor.numel() else b""


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Fill a tensor with random bits: NaNs with payloads and all."""
    generator = torch.Generator().manual_seed(5)
    n_bytes = int(torch.Size(shape).numel()) * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (n_bytes,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if n_bytes else torch.empty(shape, dtype=dtype)


def travel(value: Any) -> Any:
    """Send a value as Ray does: buffers out of band, read-only memory on arrival."""
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(payload, buffers=[bytes(buffer.raw()) for buffer in buffers])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4,), (4, 3), (0,), (0, 3), (4, 0), (2, 2, 2)], ids=str)
def test_every_dtype_and_shape_travels_bit_for_bit_and_can_be_written_to(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    batch = DataProto.from_dict({"x": random_tensor(shape, dtype)})
    assert batch.batch is not None
    ways = [travel(batch), *(pickle.loads(pickle.dumps(batch, protocol)) for protocol in (2, 3, 4, 5))]
    for again in [*ways, copy.deepcopy(batch)]:
        tensor = again.batch["x"]
        assert tensor.dtype is dtype
        assert tensor.shape == shape
        assert bits(tensor) == bits(batch.batch["x"])
        before = bits(batch.batch["x"])
        tensor.view(torch.uint8).fill_(1) if tensor.numel() else None
        assert bits(batch.batch["x"]) == before
        assert len(again) == shape[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_can_be_indexed_cut_repeated_and_joined(dtype: torch.dtype) -> None:
    batch = DataProto.from_dict({"x": random_tensor((4, 2), dtype)})
    assert batch.batch is not None
    rows = [bits(row) for row in batch.batch["x"].view(torch.uint8)]

    def rows_of(other: DataProto) -> list[bytes]:
        assert other.batch is not None
        assert other.batch["x"].dtype is dtype
        return [bits(row) for row in other.batch["x"].view(torch.uint8)]

    assert rows_of(batch[[2, 0]]) == [rows[2], rows[0]]
    assert rows_of(batch.repeat(2)) == [row for row in rows for _ in range(2)]
    assert rows_of(DataProto.concat(batch.chunk(4))) == rows
    assert DataProto.concat(batch.chunk(2)) == batch
    changed = copy.deepcopy(batch)
    assert changed.batch is not None
    changed.batch["x"].view(torch.uint8)[0, 0] ^= 1
    assert changed != batch


@pytest.mark.parametrize("name", ["uint4", "int4", "uint1"])
def test_types_of_less_than_a_byte_travel(name: str) -> None:
    dtype = getattr(torch, name)
    tensor = torch.arange(6, dtype=torch.uint8).view(dtype)
    again = travel(DataProto.from_dict({"x": tensor}))
    assert again.batch["x"].dtype is dtype
    assert bits(again.batch["x"]) == bits(tensor)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[:, 1:2],
        lambda t: t[:1].expand(4, 6),
        lambda t: t.unfold(0, 2, 1),
        lambda t: t.to(torch.complex64).conj(),
        lambda t: t.to(torch.complex64).conj().imag,
        lambda t: torch.nn.Parameter(t),
    ],
)
def test_views_of_any_stride_travel_as_their_values(view: Any) -> None:
    tensor = view(torch.arange(24.0).reshape(4, 6))
    again = travel(DataProto.from_dict({"x": tensor})).batch["x"]
    assert torch.equal(again, tensor.detach().resolve_conj().resolve_neg())
    again += 1


def test_tensors_come_back_detached_and_as_leaves_that_can_be_changed_in_place() -> None:
    leaf = torch.ones(3, requires_grad=True)
    again = travel(DataProto.from_dict({"leaf": leaf, "result": leaf * 2}))
    assert not again.batch["leaf"].requires_grad
    again.batch["leaf"] += 1
    assert again.batch["result"].tolist() == [2, 2, 2]
    assert leaf.requires_grad


def test_arrays_come_back_with_their_dtype_and_can_be_written_to() -> None:
    structured = np.array([(1, 2.5), (2, np.nan)], dtype=[("a", "i4"), ("b", "f8")])
    arrays = {
        "ints": np.arange(6, dtype=np.int32).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(12.0).reshape(2, 6)[:, ::2],
        "text": np.array(["a", "bcd"]),
        "time": np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"),
        "half": np.array([1.5, np.nan], dtype=np.float16),
        "structured": structured,
        "objects": np.array([{"a": np.arange(3)}, None], dtype=object),
        "bytes": np.array([b"a", b"bc"]),
        "empty": np.zeros((2, 0)),
    }
    batch = DataProto.from_dict(non_tensors=arrays, meta_info={"array": np.arange(3.0), "tensor": torch.arange(3)})
    again = travel(batch)
    assert again == batch
    for key, array in arrays.items():
        assert again.non_tensor_batch[key].dtype == array.dtype
        assert again.non_tensor_batch[key].flags.writeable
    again.non_tensor_batch["objects"][0]["a"] += 1
    again.meta_info["array"] += 1
    again.meta_info["tensor"] += 1
    assert batch.non_tensor_batch["objects"][0]["a"].tolist() == [0, 1, 2]
    assert batch.meta_info["array"].tolist() == [0, 1, 2]


def test_a_contiguous_tensor_is_sent_as_a_view_of_its_own_memory() -> None:
    batch = DataProto.from_dict({"x": torch.arange(1000.0)}, {"a": np.arange(1000)})
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert batch.batch is not None
    addresses = {np.frombuffer(buffer.raw(), dtype=np.uint8).__array_interface__["data"][0] for buffer in buffers}
    assert batch.batch["x"].data_ptr() in addresses
    assert batch.non_tensor_batch["a"].__array_interface__["data"][0] in addresses
    assert len(payload) < 1000


def test_a_shard_takes_only_its_own_rows_along_in_and_out_of_band() -> None:
    batch = DataProto.from_dict(
        {"x": torch.arange(80_000.0).reshape(80, 1000)},
        {"things": [torch.zeros(80, 1000)[number] for number in range(80)]},
    )
    part = batch.chunk(80)[7]
    assert len(pickle.dumps(part)) < 10_000
    assert len(pickle.dumps(part, protocol=2)) < 20_000
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(part, protocol=5, buffer_callback=buffers.append)
    assert sum(len(buffer.raw()) for buffer in buffers) == 8000


def test_no_part_of_the_format_is_torchs_own_pickle() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    batch = DataProto.from_dict(
        {"x": torch.ones(2), "j": jagged}, {"t": [torch.ones(1), {"deep": [torch.ones(2)]}]}, {"m": (torch.ones(1),)}
    )
    names = [str(argument) for _, argument, _ in pickletools.genops(pickle.dumps(batch)) if argument is not None]
    assert not [name for name in names if "torch" in name]
    assert values_equal(travel(batch).meta_info["m"], (torch.ones(1),))


def test_an_empty_batch_and_one_of_rows_without_keys_travel() -> None:
    for batch, n_rows in [
        (DataProto(), 0),
        (DataProto(TensorDict({}, batch_size=[10])), 10),
        (DataProto(TensorDict({}, batch_size=[0])), 0),
        (DataProto.from_dict(non_tensors={"a": [1, 2]}), 2),
        (DataProto(meta_info={"only": "meta"}), 0),
    ]:
        again = travel(batch)
        assert again == batch
        assert len(again) == n_rows
        assert (again.batch is None) is (batch.batch is None)


def jagged(*sizes: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(float(n)) for n in sizes], layout=torch.jagged)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
def test_nested_tensors_of_both_layouts_travel() -> None:
    strided = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 5)], layout=torch.strided)
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(10.0), offsets=torch.tensor([1, 4, 9]), lengths=torch.tensor([2, 3])
    )
    wide = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(2, 5)], layout=torch.jagged)
    batch = DataProto.from_dict({"strided": strided, "jagged": jagged(3, 0), "holes": holes, "wide": wide})
    again = travel(batch)
    assert again == batch
    assert again.batch["strided"].layout is torch.strided
    assert again.batch["wide"].shape[1] == 2
    assert [row.tolist() for row in again.batch["holes"].unbind()] == [[1, 2], [4, 5, 6]]
    again.batch["jagged"].values().add_(1)
    assert batch[[1, 0]][[1, 0]] == batch
    assert DataProto.concat(batch.chunk(2)) == batch


def test_jagged_columns_that_belong_together_still_do_after_every_operation() -> None:
    ids = jagged(3, 1, 2, 0)
    mask = torch.nested.nested_tensor_from_jagged(torch.ones(6), offsets=ids.offsets())  # type: ignore[attr-defined]
    batch = DataProto.from_dict({"ids": ids, "mask": mask})
    rows = [[0, 1, 2], [0], [0, 1], []]
    for other, order in [
        (travel(batch), [0, 1, 2, 3]),
        (batch[[2, 0, 0]], [2, 0, 0]),
        (batch[1:3], [1, 2]),
        (batch.repeat(2), [0, 0, 1, 1, 2, 2, 3, 3]),
        (DataProto.concat(batch.chunk(2)), [0, 1, 2, 3]),
        (travel(batch[1:]), [1, 2, 3]),
    ]:
        assert other.batch is not None
        product = other.batch["ids"] * other.batch["mask"]
        assert [row.tolist() for row in product.unbind()] == [rows[number] for number in order]


def test_inner_tensordicts_and_values_that_are_no_tensors_travel() -> None:
    batch = TensorDict(
        {
            "inner": TensorDict({"x": torch.ones(2, 3)}, batch_size=[2, 3]),
            "lone": NonTensorData({"t": torch.ones(1)}, batch_size=[2]),
            "stack": NonTensorStack("a", ["b"]),
        },
        batch_size=[2],
    )
    again = travel(DataProto(batch))
    assert again == DataProto(batch)
    assert again.batch["inner"].batch_size == (2, 3)
    assert again.batch.get("stack").tolist() == ["a", ["b"]]
    lazy = LazyStackedTensorDict(*[TensorDict({"x": torch.ones(n)}, batch_size=[]) for n in (1, 2)], stack_dim=0)
    assert [item["x"].shape[0] for item in travel(pack(lazy)).tensordicts] == [1, 2]


def test_what_is_shared_or_contains_itself_stays_so() -> None:
    ring: list[Any] = [torch.ones(1)]
    ring.append(ring)
    tensor = torch.arange(3)
    again = travel(DataProto(meta_info={"ring": ring, "a": tensor, "b": [tensor]}))
    assert again.meta_info["ring"][1] is again.meta_info["ring"]
    assert again.meta_info["a"] is again.meta_info["b"][0]
    array = np.empty(2, dtype=object)
    array[0], array[1] = np.arange(3), array
    batch = DataProto.from_dict(non_tensors={"a": array})
    received = travel(batch).non_tensor_batch["a"]
    assert received[1] is received
    assert travel(batch) == batch


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_sparse_tensors_travel_and_layouts_that_cannot_are_named() -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(travel(pack({"s": sparse}))["s"].to_dense(), torch.eye(3))
    with pytest.raises(BatchError, match=r"layout torch._mkldnn .* cannot be sent"):
        pickle.dumps(pack(torch.eye(3).to_mkldnn()))


class Special(DataProto):
    """A user's own batch."""

    note = ""


def test_a_subclass_and_what_was_set_on_it_travel() -> None:
    batch = Special.from_dict({"x": torch.ones(2)}, auto_padding=True).with_row_ids([4, 5])
    batch.note = "hello"
    again = travel(batch)
    assert type(again) is Special
    assert again.note == "hello"
    assert again.is_padding_enabled()
    assert values_equal(again.row_ids, np.array([4, 5]))


def test_state_round_trips_without_pickle_and_without_consolidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", "numpy")
    monkeypatch.setattr(TensorDict, "consolidate", lambda *_, **__: pytest.fail("consolidate was called"))
    batch = DataProto.from_dict({"x": torch.ones(2)}, {"a": ["x", "y"]}, {"m": 1})
    again = DataProto.__new__(DataProto)
    again.__setstate__(batch.__getstate__())
    assert again == batch
    assert travel(batch) == batch


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_single_tensors_serialize_to_dtype_shape_and_bytes(dtype: torch.dtype) -> None:
    for shape in [(), (3,), (2, 0), (2, 3)]:
        tensor = random_tensor(shape, dtype)
        name, size, raw = serialize_single_tensor(tensor)
        assert (name, size) == (str(dtype).removeprefix("torch."), shape)
        for received in (raw, bytes(raw), bytearray(raw), memoryview(bytes(raw))):
            again = deserialize_single_tensor((name, size, received))
            assert again.dtype is dtype
            assert again.shape == shape
            assert bits(again) == bits(tensor)


def test_bytes_that_start_anywhere_in_memory_become_a_tensor() -> None:
    raw = bytearray(b"\0" + torch.arange(3.0).numpy().tobytes())
    assert deserialize_single_tensor(("float32", (3,), memoryview(raw)[1:])).tolist() == [0, 1, 2]


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(BatchError, match="'float3' is not a dtype"):
        deserialize_single_tensor(("float3", (1,), b"\0"))


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float8_e4m3fn], ids=str
)
def test_tensordicts_serialize_to_batch_size_device_and_items(dtype: torch.dtype) -> None:
    parts = [random_tensor((2, 3), dtype), random_tensor((4, 5), dtype)]
    plain = [part.view(torch.uint8) if dtype.itemsize == 1 else part for part in parts]
    nested = torch.nested.nested_tensor(plain, layout=torch.strided)
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    batch = TensorDict({"dense": random_tensor((2, 3), dtype), "nested": nested, "rows": rows}, [2], device="cpu")
    size, device, items = serialize_tensordict(batch)
    assert (size, device) == ((2,), "cpu")
    assert items["nested"][0] == "strided"
    again = deserialize_tensordict((size, device, items))
    assert again.batch_size == batch.batch_size
    assert str(again.device) == "cpu"
    for key in ("dense", "nested", "rows"):
        assert again[key].layout is batch[key].layout
        assert again[key].is_nested or bits(again[key]) == bits(batch[key])
        assert all(
            tensors_equal(one, other)
            for one, other in zip(again[key].unbind(), batch[key].unbind(), strict=True)
            if dtype.itemsize == 1 or key == "rows"
        )
    two = TensorDict({"x": torch.ones(2, 3, 4)}, batch_size=[2, 3])
    assert deserialize_tensordict(serialize_tensordict(two)).batch_size == (2, 3)


def test_a_tensor_on_a_device_that_is_not_here_comes_back_on_the_cpu() -> None:
    meta = travel(DataProto(TensorDict({"x": torch.empty(2, device="meta")}, batch_size=[2])))
    assert meta.batch["x"].is_meta
    batch = DataProto.from_dict({"x": torch.ones(2)}).to("cpu")
    assert travel(batch).batch.device == torch.device("cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_single_row_of_a_strided_view_travels_compares_and_is_joined(dtype: torch.dtype) -> None:
    # Torch calls one element contiguous whatever its stride, but does not view its bytes then.
    one = random_tensor((6,), dtype)[::3][:1]
    again = travel(DataProto.from_dict({"x": one}))
    assert bits(again.batch["x"]) == bits(one)
    assert tensors_equal(again.batch["x"], one)
    large = random_tensor((1 << 20,), dtype)
    joined = DataProto.concat([DataProto.from_dict({"x": one}), DataProto.from_dict({"x": large})])
    assert bits(joined.batch["x"]) == bits(one) + bits(large)


@dataclass(frozen=True, slots=True)
class Sample:
    """A result with slots, whose state is a list made for the pickle."""

    tokens: list[int]
    reward: float


def test_many_dataclasses_and_nested_lists_travel_each_with_its_own_values() -> None:
    samples = [Sample([number, number + 1], number / 2) for number in range(300)]
    assert pickle.loads(pickle.dumps(pack(samples))) == samples
    rows = [[[number, str(number)], [-number, {"n": number}]] for number in range(300)]
    batch = DataProto.from_dict(non_tensors={"rows": rows, "samples": samples})
    back = pickle.loads(pickle.dumps(batch))
    assert back.non_tensor_batch["rows"].tolist() == rows
    assert list(back.non_tensor_batch["samples"]) == samples
