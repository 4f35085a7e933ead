"""Lines of the contract with drivers of this field that no other module tests; a test's name says the line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import core
from core import (
    DISPATCH_MODE_FN_REGISTRY,
    ClassWithInitArgs,
    DataProto,
    DataProtoFuture,
    Dispatch,
    FusedWorker,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    broadcast,
    collect_lazy_compute_data_proto,
    collect_nd_compute,
    collect_nd_compute_dataproto,
    create_colocated_worker_cls,
    dispatch_lazy_compute_data_proto,
    dispatch_nd_compute,
    dispatch_nd_compute_dataproto,
    extract_pg_from_exist,
    get,
    make_nd_compute_dataproto_dispatch_fn,
    parallel_put,
    register,
    sort_placement_group_by_node_ip,
)
from core.cluster import SpawnRequest
from core.cluster.local import LocalCluster
from core.cluster.local_actor import LocalActor
from core.controller import Controller
from core.errors import PoolSpecError, RegistrationError, UsageError
from core.runtime import Runtime
from core.testing import local_controller
from core.worker.facts import normalized_visible_devices, visible_devices
from tests.group_workers import Async, Rows

INFER = make_nd_compute_dataproto_dispatch_fn("infer")
FIXED = {
    "dispatch_fn": partial(dispatch_nd_compute_dataproto, [0, 0, 1, 1], 2),
    "collect_fn": partial(collect_nd_compute_dataproto, [True, False, True, False]),
}
LAZY: dict[str, Callable[..., Any]] = {
    "dispatch_fn": lambda *args, **kwargs: dispatch_lazy_compute_data_proto("infer", *args, **kwargs),
    "collect_fn": lambda *args: collect_lazy_compute_data_proto("infer", *args),
}
LISTS: dict[str, Callable[..., Any]] = {
    "dispatch_fn": partial(dispatch_nd_compute, [1, 1, 0, 0], 2),
    "collect_fn": partial(collect_nd_compute, [False, True, True, False]),
}


class Modes(Rows):
    """Methods in modes that drivers make of the functions core offers."""

    def __init__(self) -> None:
        """Take a place in a mesh of two dp ranks of two; the first of each answers."""
        super().__init__()
        self._register_dispatch_collect_info("infer", dp_rank=self.rank // 2, is_collect=self.rank % 2 == 0)

    @register(dispatch_mode=FIXED)
    def fixed(self, batch: DataProto) -> DataProto:
        """Return the share."""
        return batch

    @register(dispatch_mode=FIXED, blocking=False)
    def fixed_later(self, batch: DataProto) -> DataProto:
        """Return the share, non-blocking."""
        return batch

    @register(dispatch_mode=LAZY)
    def lazy(self, batch: DataProto) -> DataProto:
        """Return the share."""
        return batch

    @register(dispatch_mode=LISTS)
    def lists(self, item: str, more: str) -> str:
        """Return the item with the rank."""
        return f"{item}{more}{self.rank}"

    @register(dispatch_mode=INFER)
    def infer(self, columns: Any) -> Any:
        """Return the share."""
        return columns

    @register(dispatch_mode=INFER, blocking=False)
    def infer_later(self, columns: Any) -> Any:
        """Return the share, non-blocking."""
        return columns

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def told(self, one: Any, other: Any = None) -> list[str]:
        """Return the types of what came."""
        return [type(one).__name__, type(other).__name__]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def told_async(self, one: Any, other: Any = None) -> list[str]:
        """Return the types of what came."""
        return [type(one).__name__, type(other).__name__]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, materialize_futures=False)
    def told_raw(self, one: Any) -> str:
        """Return the type of what came."""
        return type(one).__name__

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def timed(self, batch: DataProto) -> DataProto:
        """Say a timing that differs by rank."""
        return with_timing(self, batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def timed_later(self, batch: DataProto) -> DataProto:
        """Say a timing that differs by rank, non-blocking."""
        return with_timing(self, batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def timed_by_rank(self, batch: DataProto) -> DataProto:
        """Say a timing that differs by rank, joined by nobody."""
        return with_timing(self, batch)

    @register(dispatch_mode=INFER)
    def timed_mesh(self, batch: DataProto) -> DataProto:
        """Say a timing that differs by rank, on a mesh."""
        return with_timing(self, batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def contradict(self, batch: DataProto) -> DataProto:
        """Say a setting that differs by rank."""
        batch.meta_info["config"] = f"of rank {self.rank}"
        return batch


def with_timing(worker: Worker, batch: DataProto) -> DataProto:
    """Put a timing of the rank's own into the meta."""
    batch.meta_info["timing"] = {"gen": 0.1 + worker.rank * 1e-6}
    return batch


def rows(n_rows: int, auto_padding: bool = False) -> DataProto:
    """Make a batch whose rows carry ids from 0 on."""
    return DataProto.from_dict({"id": torch.arange(float(n_rows))}, auto_padding=auto_padding)


def ids(batch: Any) -> list[int]:
    """Return the ids of a batch's rows."""
    column = batch.batch["id"] if isinstance(batch, DataProto) else batch["id"]
    return [int(row) for row in column]


@pytest.fixture(scope="module")
def four() -> Iterator[RayWorkerGroup]:
    """A group of four."""
    with local_controller():
        yield RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(Modes), name_prefix="modes")


TIMINGS = [0.1 + rank * 1e-6 for rank in range(4)]


# Case H5 of the field (verl#4030, #3909) and its kin.
def test_h5_meta_that_differs_by_rank_is_kept_per_rank(four: RayWorkerGroup) -> None:
    out = four.timed(rows(8))
    assert (len(out), out.meta_info["timing"]["gen"]) == (8, TIMINGS)
    assert out.meta_info["timing"]["gen"].parts == (0, 1, 2, 3)


@pytest.mark.parametrize("n_rows", [1, 3, 8, 10])
def test_h5_in_a_padded_call_and_a_future_all_four_are_there(four: RayWorkerGroup, n_rows: int) -> None:
    for out in (four.timed(batch=rows(n_rows, True)), four.timed_later(rows(n_rows, True)).get()):
        assert (ids(out), out.meta_info["timing"]["gen"]) == (list(range(n_rows)), TIMINGS)


def test_h5_a_future_handed_on_a_function_and_a_fused_role_keep_them_too(four: RayWorkerGroup) -> None:
    handed_on = four.act(four.timed_later(rows(8)), broadcast("keep"))
    assert len(handed_on) == 8
    assert set(TIMINGS) == set(handed_on.meta_info["timing"]["gen"])
    assert four.execute_with_func_generator(with_timing, rows(8)).meta_info["timing"]["gen"] == TIMINGS
    with local_controller():
        role = RayClassWithInitArgs(Modes)
        made = RayWorkerGroup(RayResourcePool([4]), create_colocated_worker_cls({"a": role, "b": role}))
        assert made.spawn(["b"])["b"].timed(rows(8)).meta_info["timing"]["gen"] == TIMINGS


def test_h5_on_a_mesh_each_rank_that_counts_is_there_and_by_rank_each_has_its_own(four: RayWorkerGroup) -> None:
    assert four.timed_mesh(rows(8)).meta_info["timing"]["gen"] == [TIMINGS[0], TIMINGS[2]]
    assert [part.meta_info["timing"]["gen"] for part in four.timed_by_rank(rows(8))] == TIMINGS


def test_h5_a_setting_that_differs_is_an_error_all_the_same(four: RayWorkerGroup) -> None:
    with pytest.raises(AssertionError, match="Conflicting values for meta_info key 'config'"):
        four.contradict(rows(8))


@pytest.mark.parametrize("method", ["told", "told_async"])
def test_materialize_futures_resolves_positional_and_keyword_arguments_in_the_worker(
    four: RayWorkerGroup, method: str
) -> None:
    future = four.act_later(rows(4), broadcast("keep"))
    assert getattr(four, method)(future, other=future) == [["DataProto", "DataProto"]] * 4
    assert four.told_raw(future) == ["DataProtoFuture"] * 4


def test_n_d_dispatch_functions_are_usable_in_modes_of_the_users_own(four: RayWorkerGroup) -> None:
    assert ids(four.fixed(rows(6))) == [0, 1, 2, 3, 4, 5]
    later = four.fixed_later(rows(6))
    assert isinstance(later, DataProtoFuture)
    assert ids(later.get()) == [0, 1, 2, 3, 4, 5]
    assert ids(four.lazy(batch=rows(6))) == [0, 1, 2, 3, 4, 5]
    assert four.lists(["a", "b"], more=["x", "y"]) == ["by1", "ax2"]


def jagged(lengths: list[int], width: int | None = None) -> torch.Tensor:
    """Make a jagged tensor of these lengths, 3-D with a width, as position ids are."""
    shape = () if width is None else (width,)
    return torch.nested.nested_tensor(
        [torch.full((length, *shape), float(length)) for length in lengths], layout=torch.jagged
    )


@pytest.mark.parametrize("later", [False, True])
def test_a_mesh_deals_tensordicts_dense_and_jagged_and_a_future_gives_one(four: RayWorkerGroup, later: bool) -> None:
    lengths = [3, 1, 4, 2]
    columns = TensorDict(
        {"id": torch.arange(4), "text": jagged(lengths), "position": jagged(lengths, 3)}, batch_size=[4]
    )
    out = four.infer_later(columns).get() if later else four.infer(columns)
    assert isinstance(out, TensorDict)
    assert ids(out) == [0, 1, 2, 3]
    for key in ("text", "position"):
        assert [len(row) for row in out[key].unbind()] == lengths
        assert all(torch.equal(one, other) for one, other in zip(out[key].unbind(), columns[key].unbind(), strict=True))
    assert (four._dispatch_info["infer"], four._collect_info["infer"]) == ([0, 0, 1, 1], [True, False, True, False])


def test_the_dispatch_registry_is_live_and_a_known_mode_is_checked_in_silence(four: RayWorkerGroup) -> None:
    kept = DISPATCH_MODE_FN_REGISTRY.copy()
    try:
        DISPATCH_MODE_FN_REGISTRY.clear()
        with pytest.raises(RegistrationError, match="has no dispatch functions"):
            four.echo(1)
        DISPATCH_MODE_FN_REGISTRY.update(kept)
        assert four.echo(1) == [1] * 4
    finally:
        DISPATCH_MODE_FN_REGISTRY.update(kept)
    core._check_dispatch_mode(Dispatch.ONE_TO_ALL)
    core._check_dispatch_mode(INFER)
    with pytest.raises(AssertionError, match="is not a dispatch mode"):
        core._check_dispatch_mode("ONE_TO_ALL")


def test_parallel_put_gives_references_in_order_and_refuses_nothing_at_all(four: RayWorkerGroup) -> None:
    values = [rows(number) for number in range(6)]
    for threads in (None, 1, 3):
        assert [len(value) for value in get(parallel_put(values, max_workers=threads))] == [0, 1, 2, 3, 4, 5]
    assert four.deal(parallel_put([10, 11, 12, 13])) == [10, 11, 12, 13]
    with pytest.raises(AssertionError, match="at least one value"):
        parallel_put([])
    with pytest.raises(UsageError, match="max_workers=0"):
        parallel_put([1], max_workers=0)


def test_placement_groups_are_taken_from_pools_that_exist_the_largest_for_the_most(four: RayWorkerGroup) -> None:
    pools = {"actor": RayResourcePool([1, 4]), "critic": RayResourcePool([2]), "other": RayResourcePool([8])}
    small, large = pools["actor"].get_placement_groups()
    (middle,) = pools["critic"].get_placement_groups()
    wanted = core.ResourcePool([2, 3])
    assert extract_pg_from_exist(pools, ["actor", "critic"], wanted) == [middle, large]
    assert sort_placement_group_by_node_ip([large, small]) == [large, small]
    for roles, processes in ((["actor"], [2, 2]), (["critic"], [3]), ([], [1]), (["actor"], [1, 1, 1])):
        with pytest.raises(PoolSpecError, match="cannot be placed on the placement groups"):
            extract_pg_from_exist(pools, roles, core.ResourcePool(processes))
    for pool in pools.values():
        pool.close()


def test_class_with_init_args_keeps_them_and_builds() -> None:
    made = ClassWithInitArgs(dict, [("a", 1)], b=2)
    assert (made.cls, made.args, made.kwargs, made.fused_worker_used) == (dict, ([("a", 1)],), {"b": 2}, False)
    assert made() == {"a": 1, "b": 2}
    led = RayClassWithInitArgs(Rows, 1, two=2)
    led.fused_worker_used = True
    assert (led.cls, led.args, led.kwargs, led.fused_worker_used) == (Rows, (1,), {"two": 2}, True)


def test_placement_groups_are_one_per_node_made_once_with_a_pinch_of_the_accelerator_type(four: RayWorkerGroup) -> None:
    with RayResourcePool([1, 3], max_colocate_count=3, accelerator_type="A100") as pool:
        groups = pool.get_placement_groups(device_name="cuda")
        assert [group.n_bundles for group in groups] == [1, 3]
        assert pool.get_placement_groups() == groups
        assert groups[0].amounts == {"CPU": 3.0, "GPU": 1.0, "A100": 1e-4}
    with RayResourcePool([1]) as pool:
        assert pool.get_placement_groups(device_name="npu")[0].amounts == {"CPU": 10.0, "NPU": 1.0}
    with RayResourcePool([1], use_gpu=False) as pool:
        assert pool.get_placement_groups()[0].amounts == {"CPU": 10.0}


class Noting(LocalCluster):
    """A cluster that remembers what it was asked to start."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        super().__init__()
        self.asked: list[SpawnRequest] = []

    def spawn(self, request: SpawnRequest) -> LocalActor:
        """Remember the request and start the worker."""
        self.asked.append(request)
        return super().spawn(request)


@pytest.fixture
def noting() -> Iterator[Noting]:
    """A cluster that remembers what it was asked to start, as the current one."""
    cluster = Noting()
    with Controller(Runtime(lambda: cluster)):
        yield cluster


def test_groups_on_one_pool_take_a_fraction_of_each_gpu_and_what_their_class_asks_for(noting: Noting) -> None:
    pool = RayResourcePool([2], max_colocate_count=4)
    led = RayClassWithInitArgs(Rows)
    led.set_additional_resource({"ssd": 1})
    led.update_options({"max_concurrency": 2})
    for prefix in ("a", "b"):
        RayWorkerGroup(pool, led, name_prefix=prefix, worker_env={"k": "v"})
    assert [(one.num_gpus, one.device) for one in noting.asked] == [(0.25, "GPU")] * 4
    assert noting.asked[0].options == {"max_concurrency": 2, "resources": {"ssd": 1}}
    assert noting.asked[3].env == {"k": "v"}
    RayWorkerGroup(pool, led, use_gpu=False)
    RayWorkerGroup(RayResourcePool([1]), led, device_name="npu")
    assert [(one.num_gpus, one.device) for one in noting.asked[4:]] == [(0.0, "GPU"), (0.0, "GPU"), (0.1, "NPU")]


def test_profile_steps_run_workers_on_gpus_under_nsight_with_the_options_given(noting: Noting) -> None:
    led = RayClassWithInitArgs(Rows)
    led.update_options({"runtime_env": {"env_vars": {"k": "v"}}})
    settings: dict[str, Any] = {"worker_nsight_options": {"t": "cuda"}}
    RayWorkerGroup(RayResourcePool([1]), led, profile_steps=[1, 2], **settings)
    RayWorkerGroup(RayResourcePool([1]), led, profile_steps=None, **settings)
    RayWorkerGroup(RayResourcePool([1], use_gpu=False), led, profile_steps=[1], device_name="cpu", **settings)
    plain = {"env_vars": {"k": "v"}}
    assert [one.options["runtime_env"] for one in noting.asked] == [{**plain, "nsight": {"t": "cuda"}}, plain, plain]
    with pytest.raises(UsageError, match=r"profile_steps=\[3\] needs worker_nsight_options"):
        RayWorkerGroup(RayResourcePool([1]), led, profile_steps=[3])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "not set"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "3"),
        ({"HIP_VISIBLE_DEVICES": "1,2"}, "1,2"),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "4"}, "4"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "5"}, "5"),
    ],
)
def test_visible_devices_have_their_own_keys_and_hip_is_told_as_cuda_too(given: dict[str, str], told: str) -> None:
    settled = {**given, **normalized_visible_devices(given)}
    assert visible_devices(settled) == told
    assert settled.get("CUDA_VISIBLE_DEVICES") == given.get("HIP_VISIBLE_DEVICES", given.get("CUDA_VISIBLE_DEVICES"))


@pytest.mark.parametrize("other", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_visible_devices_that_contradict_each_other_are_refused(other: str) -> None:
    with pytest.raises(UsageError, match="ROCR_VISIBLE_DEVICES=0 is set together"):
        normalized_visible_devices({"ROCR_VISIBLE_DEVICES": "0", other: "0"})
    with pytest.raises(UsageError, match="differ"):
        normalized_visible_devices({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"})


class Outer(Worker):
    """A worker that holds another worker, and leads a group of its own."""

    def __init__(self) -> None:
        """Build both."""
        super().__init__()
        self.inner = Worker()
        self.led = RayWorkerGroup([2], RayClassWithInitArgs(Rows), use_gpu=False, name_prefix=f"led_by_{self.rank}_")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ranks(self) -> tuple[int, int, list[Any]]:
        """Return the inner worker's rank and world size, and what the group answers."""
        return self.inner.rank, self.inner._world_size, self.led.execute_all_sync("unregistered", self.rank)


def test_a_role_that_leads_a_worker_group_and_holds_another_worker_works() -> None:
    with local_controller():
        roles = {"outer": RayClassWithInitArgs(Outer), "plain": RayClassWithInitArgs(Rows)}
        whole = RayWorkerGroup(RayResourcePool([2]), create_colocated_worker_cls(roles), name_prefix="whole")
        outer = whole.spawn(roles.keys())["outer"]
        assert outer.ranks() == [(rank, 2, [(0, rank), (1, rank)]) for rank in range(2)]


def test_a_worker_is_built_from_the_environment_of_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    worker = Worker(cuda_visible_devices="2,3")
    assert (worker.rank, worker.world_size, worker._world_size) == (1, 4, 4)
    assert worker.get_master_addr_port() == ("10.0.0.1", "29500")
    assert worker.get_cuda_visible_devices() == "2,3"
    assert set(told) <= set(worker.env_keys())
    address, port = worker.get_available_master_addr_port()
    assert address
    assert 0 < int(port) < 65536
    assert (worker.fused_worker_dict, worker.get_fused_worker_by_name("x")) == ({}, None)


def test_a_subclass_that_never_calls_the_constructor_still_runs_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(Worker):
        def __init__(self) -> None:
            pass

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Bare().execute_with_func_generator(lambda worker, value: (worker.rank, value), 3) == (0, 3)
    assert Bare().execute_func_rank_zero(max, 1, 2) == 2


def test_sync_and_async_roles_in_one_process_give_what_separate_groups_give_bit_for_bit() -> None:
    batch = DataProto.from_dict({"id": torch.rand(7, 3)}, non_tensors={"name": list("abcdefg")}, auto_padding=True)
    roles = {"sync": RayClassWithInitArgs(Rows), "async_": RayClassWithInitArgs(Async)}
    with local_controller():
        spawned = RayWorkerGroup([3], create_colocated_worker_cls(roles), use_gpu=False).spawn(roles)
        alone = {name: RayWorkerGroup([3], led, use_gpu=False, name_prefix=name) for name, led in roles.items()}
        for group in (spawned, alone):
            assert group["sync"].act(batch, broadcast("keep")) == batch
        assert spawned["async_"].act_async(batch) == alone["async_"].act_async(batch)
        assert (
            spawned["async_"].act_later(batch, broadcast("add column")).get()
            == alone["sync"].act_later(batch, broadcast("add column")).get()
        )
    assert issubclass(create_colocated_worker_cls(roles).user_class, FusedWorker)


def test_a_group_works_by_its_pool_alone_or_by_a_plain_list_positional_or_keyword() -> None:
    with local_controller():
        led = RayClassWithInitArgs(Rows)
        for group in (
            RayWorkerGroup([2], led, use_gpu=False),
            RayWorkerGroup(resource_pool=RayResourcePool(process_on_nodes=[2]), ray_cls_with_init=led),
            RayWorkerGroup(RayResourcePool([2]), led, True, "named_", False),
        ):
            assert group.echo(1) == [1, 1]
            assert group.worker_names[1].endswith("Rows_0:1")
        assert group.name_prefix == "named_"


def test_one_rank_answers_a_call_of_rank_zero_with_one_reference() -> None:
    with local_controller():
        group = RayWorkerGroup([3], RayClassWithInitArgs(Rows), use_gpu=False)
        ref = group.execute_rank_zero_async("unregistered", 5)
        assert not isinstance(ref, list)
        assert get(ref) == (0, 5)
        refs = group.execute_all_async("unregistered", [1, 2, 3])
        assert get(refs) == [(0, 1), (1, 2), (2, 3)]
        assert get(group.echo_later(4)) == [4, 4, 4]
