"""What a call moves: every value serialised once, counted in bytes and in time, and refused when there is no room."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from core import DataProto, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, broadcast, register
from core.controller import Controller
from core.data.batch import payload_bytes
from core.errors import ObjectStoreFullError
from core.events import CallFinished, RankFinished
from core.testing import RecordingObserver, local_controller

Both = tuple[Controller, RecordingObserver]
N_RANKS = 3
N_ROWS = 6
ROW_BYTES = 8 * 1024


class Counted:
    """A value of 80 KB that counts, in this process, how often it is pickled."""

    n_pickled = 0

    def __init__(self) -> None:
        self.weight = np.zeros(10_000)

    def __reduce__(self) -> tuple[Any, ...]:
        Counted.n_pickled += 1
        return Counted, ()


class Mover(Worker):
    """Takes and gives bytes in every mode."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def to_all(self, *values: Any) -> None:
        """Take what all ranks get."""

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def to_first(self, value: Any) -> Any:
        """Give back what the first rank got."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def each(self, value: Any) -> Any:
        """Give back what this rank got."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo(self, batch: DataProto) -> DataProto:
        """Give the rows back."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def echo_later(self, batch: DataProto) -> DataProto:
        """Give the rows back, later."""
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def to_all_later(self, value: Any) -> Any:
        """Give back what all ranks get, later."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def measure(self, batch: DataProto, value: Any = None) -> int:
        """Count rows."""
        return len(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, function: Callable[[DataProto], DataProto], batch: DataProto) -> DataProto:
        """Apply a function."""
        return function(batch)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Any, RecordingObserver]]:
    """A group of three ranks, on a cluster whose store holds 10 MB, and what was told of it."""
    with (
        local_controller({"CPU": 64, "object_store_memory": 10e6}) as (_, seen),
        RayResourcePool([N_RANKS], use_gpu=False) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Mover)) as group,
    ):
        yield group, seen


def rows() -> DataProto:
    """Make a batch of six rows of 8 KiB."""
    return DataProto.from_dict({"x": torch.zeros(N_ROWS, ROW_BYTES // 8, dtype=torch.float64)})


def called(seen: RecordingObserver, call: Callable[[], Any]) -> tuple[CallFinished, list[RankFinished]]:
    """Make a call, wait for its value, and return what was told of it."""
    n_before = len(seen.of(CallFinished))
    value = call()
    if hasattr(value, "get"):
        value.get()
    finished = seen.await_count(CallFinished, n_before + 1)[n_before]
    return finished, [rank for rank in seen.of(RankFinished) if rank.call_id == finished.call_id]


WHOLE = N_ROWS * ROW_BYTES
TENSOR = torch.zeros(100_000, dtype=torch.uint8)
SMALL = torch.zeros(1_000, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("method", "arguments", "sent", "per_rank", "given_back"),
    [
        ("to_all", (TENSOR,), 100_000, 100_000, 0),
        ("to_all", (SMALL,), 3_000, 1_000, 0),
        ("to_first", (TENSOR,), 100_000, 100_000, 100_000),
        ("each", ([TENSOR, TENSOR.clone(), TENSOR.clone()],), 300_000, 100_000, 300_000),
        ("each", ([TENSOR] * 3,), 100_000, 100_000, 300_000),
        ("echo", (rows(),), WHOLE, WHOLE // 3, WHOLE),
        ("echo_later", (rows(),), WHOLE, WHOLE // 3, WHOLE),
        ("to_all_later", (TENSOR,), 100_000, 100_000, 300_000),
        ("measure", (rows(),), WHOLE, WHOLE // 3, 0),
        ("measure", (rows(), broadcast(TENSOR)), WHOLE + 100_000, WHOLE // 3 + 100_000, 0),
        ("apply", (broadcast, rows()), WHOLE, WHOLE // 3, None),
    ],
)
def test_bytes_and_time_of_every_mode_are_told_per_call_and_per_rank(
    both: tuple[Any, RecordingObserver],
    method: str,
    arguments: tuple[Any, ...],
    sent: int,
    per_rank: int,
    given_back: int | None,
) -> None:
    group, seen = both
    if method == "apply":
        arguments, given_back = (_same, arguments[1]), WHOLE
    finished, ranks = called(seen, lambda: getattr(group, method)(*arguments))
    assert finished.status == "ok"
    assert (finished.bytes_out, finished.bytes_in) == (sent, given_back)
    assert {rank.bytes_in for rank in ranks} == {per_rank}
    assert sum(rank.bytes_out for rank in ranks) == given_back
    assert all(rank.serialise_ns > 0 for rank in ranks)
    assert finished.serialise_ns >= sum(rank.serialise_ns for rank in ranks)
    assert finished.serialise_ns <= finished.dispatch_ns + finished.execute_ns


def _same(batch: DataProto) -> DataProto:
    return batch


def closing_over(value: object) -> Callable[[DataProto], DataProto]:
    """Return a function that carries ``value`` along."""

    def function(batch: DataProto) -> DataProto:
        assert value is not None
        return batch

    return function


@pytest.mark.parametrize(
    "call",
    [
        lambda group, value: group.to_all(value),
        lambda group, value: group.to_all([value]),
        lambda group, value: group.measure(rows(), broadcast(value)),
        lambda group, value: group.execute_all_sync("to_all", [value] * N_RANKS),
        lambda group, value: group.apply(closing_over(value), rows()),
        lambda group, value: group.apply(functools.partial(_second, value), rows()),
        lambda group, value: group.execute_all_sync("to_all", value),
    ],
    ids=["to all", "in a list", "broadcast among rows", "one object for each", "closure", "partial", "by name"],
)
def test_what_several_ranks_get_is_pickled_once(
    both: tuple[Any, RecordingObserver], call: Callable[[Any, Counted], Any]
) -> None:
    Counted.n_pickled = 0
    call(both[0], Counted())
    assert Counted.n_pickled == 1


def _second(value: object, batch: DataProto) -> DataProto:
    assert value is not None
    return batch


def test_what_the_store_cannot_hold_is_refused_with_the_sizes_and_the_group_goes_on(
    both: tuple[Any, RecordingObserver],
) -> None:
    group, seen = both
    with pytest.raises(ObjectStoreFullError, match=r"Mover\.to_all sends 20,000,000 bytes") as caught:
        group.to_all(torch.zeros(20_000_000, dtype=torch.uint8))
    assert (caught.value.asked_bytes, caught.value.capacity_bytes) == (20_000_000, 10_000_000)
    assert caught.value.method == "to_all"
    assert (seen.of(CallFinished)[-1].status, seen.of(CallFinished)[-1].bytes_out) == ("error", 0)
    # Together too much, though each would fit; what all ranks get counts once.
    with pytest.raises(ObjectStoreFullError):
        group.each([torch.zeros(4_000_000, dtype=torch.uint8) for _ in range(N_RANKS)])
    group.to_all(torch.zeros(8_000_000, dtype=torch.uint8))
    assert len(group.echo(rows())) == N_ROWS


def test_weights_look_into_modules_objects_and_functions() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.BatchNorm1d(10))
    assert payload_bytes(module) == sum(tensor.nbytes for tensor in module.state_dict().values())
    assert payload_bytes(Counted()) == 80_000
    assert payload_bytes(closing_over(np.zeros(5))) == 40
    assert payload_bytes(functools.partial(_second, np.zeros(5))) == 40
    assert payload_bytes(Counted().__reduce__) == 80_000
    assert payload_bytes(torch) == payload_bytes(Counted) == payload_bytes(None) == 0


def column(rows: list[Any]) -> DataProto:
    """Make a batch of an object column."""
    made = np.empty(len(rows), dtype=object)
    made[:] = rows
    return DataProto(None, {"x": made})


KB = 1000
OBJECTS: dict[str, tuple[list[Any], int]] = {
    "arrays": ([np.zeros(n * KB, np.uint8) for n in range(6)], 15 * KB),
    "arrays in dicts": ([{"pixels": np.zeros(KB, np.int16), "tag": "abc"} for _ in range(6)], 6 * (2 * KB + 3)),
    "tensors in lists": ([[torch.zeros(KB)] for _ in range(6)], 24 * KB),
    "texts": (["x" * n * KB for n in range(6)], 15 * KB),
    "texts that are not ASCII": (["\u00fc" * KB, *["x"] * 5], 2 * KB + 5),
    "bytes": ([b"x" * KB] * 6, 6 * KB),
    "chats": ([[{"role": "user", "content": "x" * KB}]] * 6, 6 * (KB + 4)),
    "token ids": ([[n] * KB for n in (1, 300, 1, 300, 1, 300)], 15 * KB),
    "numbers": ([1.5] * 6, 54),
    "deep": ([[[[[["x" * KB]]]]]] * 6, 6 * KB),
}


# Case 04 of the field (object_column_bytes).
@pytest.mark.parametrize("name", OBJECTS)
def test_object_column_bytes_are_those_that_are_sent_in_calls_arguments_and_results(
    both: tuple[Any, RecordingObserver], name: str
) -> None:
    objects, n_bytes = OBJECTS[name]
    batch = column(objects)
    assert payload_bytes(batch) == payload_bytes(objects) == n_bytes
    assert payload_bytes(batch.to_tensordict()) == n_bytes
    assert sum(map(payload_bytes, batch.chunk(3))) == n_bytes
    group, seen = both
    finished, ranks = called(seen, lambda: group.echo(batch))
    assert (finished.bytes_out, finished.bytes_in) == (n_bytes, n_bytes)
    assert sum(rank.bytes_in for rank in ranks) == n_bytes


def test_the_store_is_asked_for_room_for_object_columns_too(both: tuple[Any, RecordingObserver]) -> None:
    with pytest.raises(ObjectStoreFullError, match=r"echo sends 24,000,000 bytes"):
        both[0].echo(column([{"pixels": np.zeros(4_000_000, np.uint8)} for _ in range(6)]))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_many_rows_are_weighed_by_a_sample_and_many_texts_and_arrays_one_by_one() -> None:
    texts = ["x"] * 10_000
    texts[1] = "x" * 5_000_000
    assert payload_bytes(texts) == 5_009_999
    arrays = [np.zeros(1, np.uint8) for _ in range(10_000)]
    arrays[1] = np.zeros(5_000_000, np.uint8)
    assert payload_bytes(arrays) == 5_009_999
    assert payload_bytes([{"a": "x" * (number % 2)} for number in range(10_001)]) == pytest.approx(5_000, rel=0.1)
    assert payload_bytes([1, *[None] * 500, b"x" * KB]) >= KB
    sparse = torch.sparse_coo_tensor(
        torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), (1 << 20, 1 << 20), check_invariants=False
    )
    assert payload_bytes(sparse) == 20
    assert payload_bytes(torch.eye(2).to_sparse_csr()) == 8 + 24 + 16
    assert payload_bytes(torch.empty(5, device="meta")) == 0


def test_a_function_whose_cell_is_still_empty_has_a_weight() -> None:
    def outer() -> Callable[[], object]:
        def inner() -> object:
            return late

        weight = payload_bytes(inner)
        late = weight
        return inner

    assert outer()() == 0
