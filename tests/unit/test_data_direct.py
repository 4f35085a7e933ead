"""What stays on the worker that made it: a value taken apart and put together, and the store where all else fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from core import (
    DataProto,
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    create_colocated_worker_cls,
    register,
)
from core.cluster.ray_options import offers_directly
from core.cluster.ray_transport import Offer
from core.data.direct import Offered, _TakingApart, kept_here, noting, with_tensors
from core.data.equality import values_equal
from core.events import Notice
from core.testing import local_controller
from core.worker import shell_class
from tests.unit.test_data_proto_wire import DTYPES, bits, random_tensor

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype.*:UserWarning"),
]


def taken_apart(value: Any) -> tuple[Offered, torch.Tensor]:
    """Return what travels in place of a value, and the memory that stays."""
    taken = _TakingApart()
    pickled = taken.pickled(value)
    offer = Offer(None, None, "")
    return Offered("G.m", "nixl", offer, tuple(taken.columns), pickled, tuple(taken.buffers)), taken.memory()


def as_stored(memory: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return memory as it comes through the store: an array that cannot be written to."""
    array = memory.numpy().copy()
    array.flags.writeable = False
    return array


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=6
    ),
    stored=st.booleans(),
)
def test_tensors_of_any_dtype_and_shape_are_put_together_bit_for_bit(shapes: list[Any], stored: bool) -> None:
    sent = [random_tensor((3, *shape), dtype) for dtype, shape in shapes]
    offered, memory = taken_apart({"list": sent, "text": "x", "view": torch.arange(12.0).reshape(3, 4).t()})
    got = offered.put_together(as_stored(memory) if stored else memory)
    assert [(one.dtype, one.shape, bits(one)) for one in got["list"]] == [
        (one.dtype, one.shape, bits(one)) for one in sent
    ]
    assert torch.equal(got["view"], torch.arange(12.0).reshape(3, 4).t())


def test_a_batch_leaves_its_tensors_and_nothing_else_and_each_comes_out_with_memory_of_its_own() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(n + 1, 2) for n in range(4)], layout=torch.jagged)
    batch = DataProto(
        TensorDict({"x": torch.randn(4, 5), "r": ragged, "none": torch.empty(4, 0)}, batch_size=[4]),
        {"text": np.array(["a", "b", "c", "d"], dtype=object)},
        {"lr": 0.5},
    )
    offered, memory = taken_apart(batch)
    assert [column.shape for column in offered.columns] == [(4, 5), (10, 2), (5,)]
    got = offered.put_together(memory)
    memory.zero_()
    assert values_equal(batch, got)
    got.batch["x"].zero_()
    assert got.batch["r"].values().any()


def test_a_tensor_in_two_places_is_laid_out_once_and_is_one_again() -> None:
    tensor = torch.arange(6.0)
    offered, memory = taken_apart([tensor, {"again": tensor}])
    assert (len(offered.columns), memory.numel()) == (1, 24)
    first, second = offered.put_together(memory)
    assert first is second["again"]


def test_results_that_hold_references_go_through_the_store() -> None:
    reference = type("ObjectRef", (), {})()
    value = [torch.zeros(100_000), reference]
    notes: list[str] = []
    with noting(notes):
        assert kept_here(value, "Held.m", "nixl") is value
    assert notes == [
        "Held.m goes through shared memory and not by tensor_transport='nixl': the result holds references of the "
        "cluster"
    ]


def test_results_without_an_offer_pass_as_they_are() -> None:
    parts = [1, "two", torch.zeros(3)]
    assert with_tensors(parts) is parts


class Kept(Worker):
    """Gives rows back."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="nixl")
    def keep(self, batch: DataProto) -> DataProto:
        """Give the rows back."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def take(self, batch: DataProto) -> DataProto:
        """Give the rows to the driver."""
        return batch


def test_workers_of_classes_with_such_a_method_are_made_for_it_and_no_others() -> None:
    made_of = {"kept": RayClassWithInitArgs(Kept), "plain": RayClassWithInitArgs(Worker)}
    fused = create_colocated_worker_cls(made_of).user_class
    assert [offers_directly(shell_class(kind)) for kind in (Kept, fused, Worker)] == [True, True, False]


def test_a_cluster_without_a_direct_transport_uses_the_store_and_says_so() -> None:
    batch = DataProto.from_dict({"x": torch.randn(6, 20_000)})
    with (
        local_controller() as (_, seen),
        RayResourcePool([2], use_gpu=False) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Kept)) as untyped,
    ):
        group: Any = untyped
        made = group.keep(batch)
        assert torch.equal(group.take(made).batch["x"], batch.batch["x"])
        assert torch.equal(made.get().batch["x"], batch.batch["x"])
        (told,) = [event.text for event in seen.events if isinstance(event, Notice)]
    assert told.endswith("by tensor_transport='nixl': the workers of a local cluster share the driver's process")
