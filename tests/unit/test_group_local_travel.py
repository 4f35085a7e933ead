"""Groups that travel to another process, groups made of handles again and again, and groups of users' subclasses."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pytest
import torch

from core import (
    DataProto,
    Dispatch,
    DistGlobalInfo,
    DistRankInfo,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    SubRayResourcePool,
    Worker,
    WorkerGroup,
    broadcast,
    create_colocated_worker_cls,
    func_generator,
    get,
    register,
    split_resource_pool,
)
from core.controller import Controller
from core.errors import UsageError
from core.events import GroupClosed, GroupCreated, PoolCreated, WorkerEnded, WorkerStarted
from core.finalizers import drain
from core.testing import RecordingObserver
from tests.group_workers import Rows

Local = tuple[Controller, RecordingObserver]
ROWS = RayClassWithInitArgs(Rows)


class Taker(Worker):
    """A worker that is sent another group."""

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def use(self, group: Any) -> tuple[str, list[Any], str]:
        """Call the group, close it, and say what came."""
        came = group.echo(7)
        group.close()
        return type(group).__name__, came, group.name


class Extended(RayWorkerGroup):
    """A group as some projects derive theirs."""

    def __init__(self, *args: Any, label: str = "", **kwargs: Any) -> None:
        """Keep a label besides."""
        super().__init__(*args, **kwargs)
        self.label = label

    def _init_with_resource_pool(
        self,
        resource_pool: Any,
        ray_cls_with_init: Any,
        bin_pack: bool = True,
        detached: bool = False,
        worker_env: Any = None,
    ) -> None:
        """Add a variable."""
        super()._init_with_resource_pool(
            resource_pool, ray_cls_with_init, bin_pack, detached, {**(worker_env or {}), "MINE": "1"}
        )


def sent(group: RayWorkerGroup) -> Any:
    """Return what arrives of a group."""
    return pickle.loads(cloudpickle.dumps(group))


def collected() -> None:
    """Collect what nobody holds, and have done what is due then."""
    gc.collect()
    assert drain()


def test_a_pickled_group_is_a_group_on_the_same_workers_and_closing_it_ends_none(local: Local) -> None:
    group = RayWorkerGroup([2], ROWS, use_gpu=False, name_prefix="rows")
    copy = sent(group)
    assert isinstance(copy, RayWorkerGroup)
    assert copy.workers == group.workers
    batch = DataProto.from_dict({"id": torch.arange(4)})
    assert len(copy.act(batch, broadcast("keep"))) == 4
    assert copy.echo(3) == group.echo(3) == [3, 3]
    copy.close()
    copy.close()
    assert group.echo(4) == [4, 4]


def test_a_group_that_is_sent_to_a_worker_is_called_there_and_recorded_there(local: Local) -> None:
    group = RayWorkerGroup([2], ROWS, use_gpu=False, name_prefix="rows")
    taker = RayWorkerGroup([1], RayClassWithInitArgs(Taker), use_gpu=False)
    kind, came, name = taker.use(group)
    assert (kind, came) == ("RayWorkerGroup", [7, 7])
    assert name == "rows_2"
    assert [event.group for event in local[1].of(GroupCreated)] == ["rows", "Taker", "rows_2"]
    assert group.echo(1) == [1, 1]
    ended = [event for event in local[1].of(WorkerEnded) if event.group == "rows"]
    assert ended == []


def test_a_role_and_what_a_subclass_keeps_travel_too(local: Local) -> None:
    made_of = create_colocated_worker_cls({"actor": ROWS, "critic": ROWS})
    group = Extended([1], made_of, use_gpu=False, label="mine")
    role = group.spawn({"actor"})["actor"]
    group.fuse({"critic"})
    assert sent(role).echo(2) == [2]
    copy = sent(group)
    assert (type(copy), copy.label) == (Extended, "mine")
    assert copy.critic.echo(5) == [5]


def test_a_closed_group_is_not_sent(local: Local) -> None:
    group = RayWorkerGroup([1], ROWS, use_gpu=False)
    group.close()
    with pytest.raises(UsageError, match="is closed and cannot be sent"):
        pickle.dumps(group)


def test_groups_made_of_handles_at_every_step_are_one_group_in_the_record(local: Local) -> None:
    owner = RayWorkerGroup([2], ROWS, use_gpu=False, name_prefix="owner")
    before = {kind: len(local[1].of(kind)) for kind in (GroupCreated, PoolCreated, WorkerStarted)}
    for step in range(20):
        engine = RayWorkerGroup(worker_handles=owner.workers, ray_cls_with_init=ROWS, name_prefix="engine")
        assert engine.echo(step) == [step, step]
        assert engine.name == "engine"
        del engine
        if step % 5 == 0:
            collected()
    grown = {kind.__name__: len(local[1].of(kind)) - n for kind, n in before.items()}
    assert grown == {"GroupCreated": 1, "PoolCreated": 1, "WorkerStarted": 2}
    assert local[1].of(GroupClosed) == []
    assert owner.echo(1) == [1, 1]
    local[0].runtime.close()
    assert sorted(event.group for event in local[1].of(GroupClosed)) == ["engine", "owner"]


def test_a_group_of_handles_that_was_closed_comes_back_under_another_name(local: Local) -> None:
    owner = RayWorkerGroup([1], ROWS, use_gpu=False)
    with RayWorkerGroup(worker_handles=owner.workers, ray_cls_with_init=ROWS, name_prefix="engine"):
        pass
    again = RayWorkerGroup(worker_handles=owner.workers, ray_cls_with_init=ROWS, name_prefix="engine")
    assert again.name == "engine_2"


def test_a_subclass_that_overrides_how_workers_are_made_is_called(local: Local) -> None:
    group = Extended([1], RayClassWithInitArgs(Environment), use_gpu=False, worker_env={"THEIRS": "2"})
    assert group.variables() == [("1", "2")]


class Environment(Worker):
    """A worker that shows two variables."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def variables(self) -> tuple[str | None, str | None]:
        """Return them."""
        from core.cluster import environ

        return environ().get("MINE"), environ().get("THEIRS")


def test_a_subclass_that_leaves_out_what_starts_the_workers_is_refused_in_words(local: Local) -> None:
    class Silent(RayWorkerGroup):
        def __init__(self) -> None:
            pass

    class Own(RayWorkerGroup):
        def _init_with_resource_pool(self, **_: Any) -> None:  # type: ignore[override]
            pass

    with pytest.raises(UsageError, match=r"Silent.__init__ did not call super\(\).__init__"):
        Silent()
    with pytest.raises(UsageError, match=r"did not call super\(\)._init_with_resource_pool"):
        Own([1], ROWS)
    with pytest.raises(UsageError, match="cannot be made by itself"):
        WorkerGroup()


def test_a_func_generator_of_the_users_makes_the_methods_and_ours_those_of_every_group(local: Local) -> None:
    asked: list[tuple[str, bool]] = []

    def generate(group: Any, method_name: str, **functions: Any) -> Any:
        asked.append((method_name, functions["blocking"]))
        return func_generator(group, method_name, **functions)

    class Bound(RayWorkerGroup):
        """Binds as a project of its own."""

    group = Bound([2], ROWS, use_gpu=False)
    assert isinstance(group, WorkerGroup)
    names = group._bind_worker_method(group.ray_cls_with_init.cls, generate)
    assert ("echo", True) in asked
    assert "echo" in names
    assert group.echo(1) == [1, 1]
    assert type(group.echo).__name__ == "echo"
    group._bind_worker_method(Rows, func_generator)
    assert repr(group.echo).startswith("<bound method echo")
    ref = group._execute_remote_single_worker(group.workers[1], "echo", 9)
    assert get(ref) == 9


def test_parts_of_a_pool_are_sub_pools_that_count_their_bundles_over_all_groups(local: Local) -> None:
    pool = RayResourcePool([2, 4])
    assert pool.pgs is None
    parts: Sequence[Any] = split_resource_pool(pool, [2, 4])
    assert all(isinstance(part, SubRayResourcePool) for part in parts)
    assert [(part.start_bundle_index, part.subgroup_world_size) for part in parts] == [(0, 2), (2, 4)]
    assert pool.pgs == pool.get_placement_groups() == parts[1].pgs
    inner: Any = split_resource_pool(parts[1], 2)[1]
    assert (inner.start_bundle_index, inner.subgroup_world_size) == (4, 2)


def test_a_workers_place_in_a_mesh_is_noted_as_drivers_for_verl_do() -> None:
    assert DistRankInfo(tp_rank=0, dp_rank=1, pp_rank=0, cp_rank=0).dp_rank == 1
    assert DistGlobalInfo(tp_size=1, dp_size=2, pp_size=1, cp_size=1).dp_size == 2
