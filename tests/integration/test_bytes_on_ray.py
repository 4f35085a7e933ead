"""Bytes through a real Ray: bit for bit, written to without harm, share by share, and a store that is too small.

One Ray with a store of 80 MB and three groups for the module.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

import core
from benchmarks.memory import peak_growth
from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core import runtime as runtimes
from core.data import buffer_pool, join_buffer, wire, zero_copy
from core.data.equality import values_equal
from core.errors import ObjectStoreFullError, WorkerMethodError
from core.events import Notice
from core.runtime import Runtime, connect_to_ray
from core.testing import RecordingObserver
from tests.byte_workers import Bytes, Taken, Wrapped
from tests.direct_scene import batch_of_everything
from tests.direct_scene import same as same_batch
from tests.direct_workers import FOLDER, Staying
from tests.unit.test_data_proto_wire import DTYPES, bits, random_tensor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype.*:UserWarning"),
]

STORE_BYTES = 80_000_000
MIB = 1 << 20


@pytest.fixture(scope="module")
def small_store(short_dir: Path) -> Iterator[Runtime]:
    """A Ray whose object store holds 80 MB."""
    ray.init(
        address="local",
        num_cpus=8,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(short_dir),
    )
    runtime = Runtime(connect_to_ray)
    before = runtimes.install(runtime)
    yield runtime
    runtime.close()
    runtimes.install(before)
    ray.shutdown()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where results are that stay on the third group's workers."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def groups(small_store: Runtime, files: Path) -> Iterator[list[Any]]:
    """Three groups of two ranks; the first is used by all tests."""
    with (
        RayResourcePool([2], use_gpu=False, max_colocate_count=1) as pool,
        RayResourcePool([2], use_gpu=False, max_colocate_count=1) as other,
        RayResourcePool([2], use_gpu=False, max_colocate_count=1) as another,
        RayWorkerGroup(pool, RayClassWithInitArgs(Bytes)) as first,
        RayWorkerGroup(other, RayClassWithInitArgs(Bytes)) as second,
        RayWorkerGroup(another, RayClassWithInitArgs(Staying), worker_env={FOLDER: str(files)}) as third,
    ):
        yield [first, second, third]


@pytest.fixture(scope="module")
def group(groups: list[Any]) -> Any:
    """The first group."""
    return groups[0]


def everything() -> dict[str, Any]:
    """Return a value of every kind that can travel, by name."""
    values: dict[str, Any] = {}
    for dtype in DTYPES:
        for shape in ((4, 3), (0, 3), (4, 0), ()):
            values[f"{dtype} {shape}"] = random_tensor(shape, dtype)
    wide = torch.randn(8, 6)
    ragged = [torch.randn(n, 2) for n in (1, 3, 0, 2)]
    values |= {
        "transposed": wide.t(),
        "strided view": wide[::2, 1:5],
        "requires grad": torch.randn(3, requires_grad=True),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "jagged": torch.nested.nested_tensor(ragged, layout=torch.jagged),
        "nested": torch.nested.nested_tensor(ragged),
        "shared storage": {"whole": wide, "part": wide[2:4]},
        "large": torch.arange(MIB, dtype=torch.int64),
        "strings": np.array(["", "Zürich", "\U0001f3bc", "a" * 5000], dtype=object),
        "dicts": np.array([{"a": 1, "t": torch.ones(2)}, {"b": [np.arange(3)]}], dtype=object),
        "fixed strings": np.array(["ab", "c"]),
        "dates": np.array(["2026-11-30"], dtype="datetime64[D]"),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "tensordict": TensorDict({"a": wide, "inner": {"b": wide[:, :2]}}, batch_size=[8]),
        "list": [wide, "text", None, 2.5],
    }
    return values


def same(sent: Any, got: Any) -> bool:
    """Compare bit for bit where that can be, else by value."""
    if isinstance(sent, torch.Tensor) and not sent.is_nested:
        plain = sent.detach().resolve_conj()
        return got.dtype is sent.dtype and got.shape == sent.shape and bits(got) == bits(plain)
    return values_equal(sent, got)


def test_every_kind_of_value_goes_to_all_ranks_and_comes_back_bit_for_bit(group: Any) -> None:
    sent = everything()
    for got in group.give_back(sent):
        assert got.keys() == sent.keys()
        assert [name for name in sent if not same(sent[name], got[name])] == []
        for value in got.values():
            if isinstance(value, torch.Tensor) and value.numel() and not value.is_nested:
                value.view(torch.uint8).zero_() if value.ndim else value.zero_()


def test_images_survive_the_trip(group: Any) -> None:
    image = pytest.importorskip("PIL.Image").fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    batch = DataProto.from_dict({"x": torch.zeros(2)}, {"image": [image, image.rotate(90)]})
    got = group.echo(batch)
    assert [one.tobytes() for one in got.non_tensor_batch["image"]] == [image.tobytes(), image.rotate(90).tobytes()]


COLUMNS = st.lists(
    st.tuples(
        st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=2), st.sampled_from(["plain", "view", "jagged"])
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=COLUMNS, half=st.integers(0, 3), text=st.lists(st.text(), min_size=6, max_size=6))
def test_batches_of_any_columns_are_cut_sent_returned_and_joined_bit_for_bit(
    group: Any, columns: list[tuple[torch.dtype, list[int], str]], half: int, text: list[str]
) -> None:
    n_rows = 2 * half
    tensors: dict[str, torch.Tensor] = {}
    for number, (dtype, shape, kind) in enumerate(columns):
        if kind == "jagged":
            rows = [torch.randn(row % 3, 2) for row in range(n_rows)]
            if rows:
                tensors[f"c{number}"] = torch.nested.nested_tensor(rows, layout=torch.jagged)
                continue
        whole = random_tensor((2 * n_rows, *shape), dtype)
        tensors[f"c{number}"] = whole[::2] if kind == "view" else whole[:n_rows]
    arrays = {"text": np.array(text[:n_rows], dtype=object), "number": np.arange(n_rows, dtype=np.float16)}
    batch = DataProto.from_dict(tensors, arrays, {"step": 3})
    got = group.echo(batch)
    assert len(got) == n_rows
    assert got.meta_info == {"step": 3}
    assert [key for key in tensors if not same(tensors[key], got.batch[key])] == []
    assert values_equal(arrays, got.non_tensor_batch)


def test_what_a_rank_writes_is_its_own_and_what_it_keeps_leaves_the_store(group: Any) -> None:
    tensor, array = torch.zeros(2 * MIB, dtype=torch.int8), np.zeros(2 * MIB, dtype=np.int8)
    refs = ray.put(wire.pack(tensor)), ray.put(wire.pack(array))
    told = group.write(*refs)
    assert [(one[1], one[2]) for one in told] == [(1.0, 1.0), (2.0, 2.0)]
    if not told[0][3]:
        pytest.skip("the store cannot be mapped privately here: it was copied")
    # Another reader of the very same objects sees what was sent.
    untouched = ray.get(list(refs))
    assert not untouched[0].any()
    assert not untouched[1].any()
    assert not tensor.any()
    assert group.look_again() == [(1.0, 1.0, 0), (2.0, 2.0, 0)]


def test_views_refuse_a_write_and_a_tensor_takes_it_and_no_worker_dies_over_either(group: Any) -> None:
    tensor, array = torch.zeros(2 * MIB, dtype=torch.int8), np.zeros(2 * MIB, dtype=np.int8)
    for tensor_sent, array_sent in ((tensor, array), (tensor[:9].clone(), array[:5000])):
        told = group.write_to_views(tensor_sent, array_sent)
        assert [one[1] for one in told] == [False, False]
        assert all("read-only" in one[2] for one in told)
        assert [one[3] for one in told] == [5.0, 6.0]
    assert [one[0] for one in told] == [one[0] for one in group.write(tensor, array)]
    assert [one[1:3] for one in group.write(tensor[:9].clone(), array[:5].copy())] == [(1.0, 1.0), (2.0, 2.0)]


def test_results_can_be_written_to_and_pin_nothing(group: Any) -> None:
    first, second = group.give_back({"t": torch.zeros(MIB), "a": np.zeros(MIB), "l": [torch.zeros(MIB)]})
    for value in (first["t"], first["a"], first["l"][0]):
        value[:] = 1
    assert not second["t"].any()
    assert first["a"].flags.owndata or first["a"].base is not None


@pytest.mark.parametrize("n_rows", [8, MIB])
def test_what_a_future_gave_can_be_written_to_also_within_an_object_and_what_others_get_is_as_it_was(
    group: Any, n_rows: int
) -> None:
    batch = DataProto.from_dict({"x": torch.zeros(4)})
    batch.meta_info = {"kept": Wrapped(DataProto.from_dict({"y": torch.ones(n_rows)})), "loss": torch.tensor(0.5)}
    future = group.pass_on(batch)
    first = future.get()
    first.meta_info["kept"].inner.batch["y"].zero_()
    first.meta_info["loss"].zero_()
    second = future.get()
    assert second.meta_info["kept"].inner.batch["y"].sum() == n_rows
    assert second.meta_info["loss"] == 0.5


def test_the_driver_grows_by_the_joined_batch_and_not_by_its_parts(group: Any) -> None:
    # More than 32 MiB in one piece: less may come from what earlier tests gave back, and growth would not show.
    batch = DataProto.from_dict({"column": torch.zeros(256, 33 * MIB // 256 // 4)})
    group.echo(batch)
    growths = []
    for _ in range(3):
        buffer_pool.release_pool()
        growths.append(peak_growth(lambda: group.echo(batch)).own_bytes)
    assert 0.5 * 33 * MIB < max(growths) < 1.3 * 33 * MIB
    # The next result lies where the one before lay, which nobody holds.
    assert peak_growth(lambda: group.echo(batch)).own_bytes < 0.3 * 33 * MIB


IN_ORDER, LAST_FIRST = [0.0, 0.1], [0.1, 0.0]


@pytest.mark.parametrize(
    ("last", "turns"),
    [
        ("as it came", IN_ORDER),
        ("each twice", LAST_FIRST),
        ("of another type", IN_ORDER),
        ("shorter", LAST_FIRST),
        ("not at all", LAST_FIRST),
    ],
)
def test_answers_that_come_one_after_the_other_are_joined_as_they_come(
    group: Any, monkeypatch: pytest.MonkeyPatch, turns: list[float], last: str
) -> None:
    taken: list[Any] = []
    take = join_buffer.JoinBuffer.take

    def watched(self: Any, parts: Any) -> Any:
        taken.append(take(self, parts))
        return taken[-1]

    monkeypatch.setattr(join_buffer.JoinBuffer, "take", watched)
    x = torch.arange(4 * MIB // 4, dtype=torch.float32).reshape(64, -1)
    batch = DataProto.from_dict({"x": x, "few": torch.arange(64)}, {"a": x.numpy().copy(), "o": ["s"] * 64})
    if last == "not at all":
        with pytest.raises(WorkerMethodError, match="not at all"):
            group.echo_in_turn(batch, core.broadcast(turns), core.broadcast(last))
        return
    joined = group.echo_in_turn(batch, core.broadcast(turns), core.broadcast(last))
    later = group.echo_in_turn_later(batch, core.broadcast(turns), core.broadcast(last)).get()
    as_doubles = DataProto.from_dict({**batch.batch, "x": x.double()}, batch.non_tensor_batch)
    others = {"each twice": batch.repeat(2), "shorter": batch[:-1], "of another type": as_doubles}
    expected = others.get(last, batch)
    assert same_batch(joined, expected)
    assert same_batch(later, expected)
    # A column of two types is converted, and is no matter of memory.
    landed = {"shorter": [False, False], "of another type": [True]}.get(last, [True, True])
    assert [one is not None for one in taken] == landed * 2
    joined.batch["x"].zero_()
    assert joined.non_tensor_batch["a"].flags.writeable
    assert same_batch(later, expected)


def test_a_call_that_failed_leaves_nothing_in_the_driver_for_the_collector(group: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            batch = DataProto.from_dict({"x": torch.zeros(64, MIB // 16)})
            held = weakref.ref(batch.batch)
            # Not pytest.raises: that keeps what it caught.
            with contextlib.suppress(WorkerMethodError):
                group.echo_in_turn(batch, core.broadcast([0.0, 0.1]), core.broadcast("not at all"))
                pytest.fail("it did not fail")
            del batch
            assert held() is None
    finally:
        gc.enable()


def test_a_call_that_the_store_cannot_hold_is_refused_with_the_sizes_and_the_group_goes_on(group: Any) -> None:
    with pytest.raises(ObjectStoreFullError, match=r"object_store_memory") as caught:
        group.echo(DataProto.from_dict({"x": torch.zeros(1000, 100_000 // 4)}))
    assert caught.value.asked_bytes == 100_000_000
    assert 0.9 * STORE_BYTES < caught.value.capacity_bytes <= STORE_BYTES
    assert 0 <= caught.value.free_bytes <= caught.value.capacity_bytes
    with pytest.raises(ObjectStoreFullError):
        group.give_back(np.zeros(100_000_000, dtype=np.uint8))
    # What just fits goes through, there and back, more than once: the store makes room.
    batch = DataProto.from_dict({"x": torch.ones(1000, 50_000 // 4)})
    for _ in range(2):
        assert group.echo(batch).batch["x"].sum() == 1000 * 50_000 // 4


def test_a_chain_of_three_groups_moves_each_byte_once_per_hop_to_the_rank_it_is_for_and_none_through_the_driver(
    groups: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = groups
    n_bytes = 8 * MIB
    rows = torch.arange(16, dtype=torch.float32).repeat_interleave(n_bytes // 16 // 4).reshape(16, -1)
    for group in groups:
        group.count_bytes()
    Taken.count()
    Taken.n_bytes = 0
    hops = [first.pass_on(DataProto.from_dict({"x": rows}))]
    # From here on nothing of it may be pickled in the driver either.
    monkeypatch.setattr(wire, "serialize_single_tensor", _never)
    hops.append(second.pass_on(hops[-1]))
    hops.append(third.pass_on(hops[-1]))
    # A rank takes its own half and no more, on each hop.
    assert [group.count_bytes() for group in groups] == [[n_bytes // 2, n_bytes // 2]] * 3
    assert Taken.n_bytes == 0
    value = hops[-1].get()
    assert Taken.n_bytes == n_bytes
    assert torch.equal(value.batch["x"], rows + 3)


def test_results_that_stay_on_their_workers_are_the_same_bits_for_others_and_neither_store_nor_driver_has_the_tensors(
    groups: list[Any], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, third = groups
    batch = batch_of_everything()
    plain = first.pass_on(batch).get()
    stayed = third.stay(batch)
    first.count_bytes(), Taken.count()
    Taken.n_bytes = 0
    monkeypatch.setattr(wire, "serialize_single_tensor", _never)
    passed = first.pass_on(stayed)
    # What is no tensor goes through the store as ever.
    numbers = batch.non_tensor_batch["numbers"].nbytes
    assert numbers <= sum(first.count_bytes()) < numbers + 65_536
    assert (Taken.n_bytes, len(list(files.iterdir()))) == (0, 2)
    assert same_batch(plain, passed.get())
    # A rank takes what it kept itself, and what its neighbours did, as others would.
    assert same_batch(plain, third.pass_on(stayed).get())
    assert same_batch(plain, first.pass_on(stayed).get())


def test_the_driver_is_given_what_stayed_through_the_store_and_the_record_says_so(
    groups: list[Any], small_store: Runtime
) -> None:
    seen = RecordingObserver()
    small_store.bus.subscribe(seen)
    batch = batch_of_everything()
    assert same_batch(batch, groups[2].stay(batch).get())
    small_store.bus.unsubscribe(seen)
    (told,) = [event.text for event in seen.events if isinstance(event, Notice)]
    assert told.endswith("shared memory and not by tensor_transport='podium_test_files': the driver fetched it")


def _never(*_: object) -> None:
    raise AssertionError("the driver pickled a tensor")


def test_the_counters_of_the_chain_are_those_that_memory_goes_through() -> None:
    Taken.count()
    Taken.n_bytes = 0
    array = np.zeros(100, dtype=np.uint8)
    array.flags.writeable = False
    zero_copy.received_memory(array)
    with zero_copy.borrowing():
        zero_copy.received_array(array)
    assert Taken.n_bytes == 200
