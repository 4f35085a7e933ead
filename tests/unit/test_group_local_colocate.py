"""Several roles in one process: their methods, their groups, and each other."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from core import (
    DataProto,
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
    register,
)
from core.errors import RegistrationError, UnknownNameError
from core.events import GroupClosed, GroupCreated
from core.testing import RecordingObserver, local_controller


class Actor(Worker):
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def add(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict({"id": batch.batch["id"] + self.shift})

    def unregistered(self) -> str:
        return f"rank {self.rank}"


class Critic(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def minus_the_actors_shift(self, value: float) -> float:
        actor = self.get_fused_worker_by_name("actor")
        return float(value - actor.shift)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def neighbours(self) -> list[str]:
        return sorted(getattr(self, self.fused_worker_attr_name))


class ActorRollout(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def gen(self) -> str:
        return "generated"


def roles() -> dict[str, RayClassWithInitArgs]:
    return {"actor": RayClassWithInitArgs(Actor, 3.0), "critic": RayClassWithInitArgs(Critic)}


def rows(n_rows: int) -> DataProto:
    return DataProto.from_dict({"id": torch.arange(float(n_rows))}, auto_padding=True)


@pytest.fixture(params=[create_colocated_worker_cls, create_colocated_worker_cls_fused])
def group(request: pytest.FixtureRequest) -> Iterator[RayWorkerGroup]:
    with local_controller():
        yield RayWorkerGroup(RayResourcePool([2]), request.param(roles()))


def test_each_role_has_a_group_with_its_own_names(group: RayWorkerGroup) -> None:
    spawned = group.spawn(prefix_set=roles().keys())
    assert list(spawned) == ["actor", "critic"]
    assert spawned["actor"].add(rows(5)).batch["id"].tolist() == [3, 4, 5, 6, 7]
    assert spawned["critic"].minus_the_actors_shift(10.0) == [7.0, 7.0]


def test_the_whole_group_has_the_roles_methods_under_their_prefix(group: RayWorkerGroup) -> None:
    assert group.actor_add(rows(3)).batch["id"].tolist() == [3, 4, 5]


def test_a_role_finds_the_others_in_its_process(group: RayWorkerGroup) -> None:
    assert group.spawn(["critic"])["critic"].neighbours() == [["actor", "critic"]] * 2


def test_a_fused_role_is_an_attribute_of_the_group(group: RayWorkerGroup) -> None:
    group.fuse(["actor", "critic"])
    assert group.actor.add(rows(2)).batch["id"].tolist() == [3, 4]
    assert group.critic.neighbours()[0] == ["actor", "critic"]


def test_a_roles_unregistered_method_is_called_by_name(group: RayWorkerGroup) -> None:
    assert group.spawn(["actor"])["actor"].execute_all_sync("unregistered") == ["rank 0", "rank 1"]


def test_a_role_that_is_not_there_is_named_with_those_that_are(group: RayWorkerGroup) -> None:
    with pytest.raises(UnknownNameError, match="no role 'rollout'; it has actor, critic"):
        group.spawn(["rollout"])


def test_fault_12_a_role_whose_name_starts_with_anothers_keeps_its_methods_apart() -> None:
    both = {"actor": RayClassWithInitArgs(Actor, 1.0), "actor_rollout": RayClassWithInitArgs(ActorRollout)}
    with local_controller():
        spawned = RayWorkerGroup(RayResourcePool([1]), create_colocated_worker_cls(both)).spawn(both)
        assert not hasattr(spawned["actor"], "rollout_gen")
        assert spawned["actor_rollout"].gen() == ["generated"]


def test_a_subclass_of_the_raw_class_uses_its_roles() -> None:
    raw: Any = create_colocated_worker_raw_cls(roles())

    class Both(raw):  # type: ignore[misc]
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def shifted(self, value: float) -> float:
            return float(self.actor.shift + value)

    with local_controller():
        assert RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Both)).shifted(1.0) == [4.0, 4.0]


def test_the_processes_live_as_long_as_any_role_does() -> None:
    with local_controller():
        whole = RayWorkerGroup(RayResourcePool([2]), create_colocated_worker_cls(roles()))
        actor = whole.spawn(["actor"])["actor"]
        del whole
        gc.collect()
        assert actor.add(rows(1)).batch["id"].tolist() == [3]


def test_the_record_knows_each_role_as_a_group() -> None:
    with local_controller() as (_, seen):
        whole = RayWorkerGroup(RayResourcePool([2]), create_colocated_worker_cls(roles()), name_prefix="both")
        spawned = whole.spawn(["actor", "critic"])
        spawned["critic"].close()
        assert [event.group for event in seen.of(GroupCreated)] == ["both", "actor", "critic"]
        assert [event.group for event in seen.of(GroupClosed)] == ["critic"]
        assert spawned["actor"].add(rows(1)).batch["id"].tolist() == [3]
        _watch(seen, whole)


def _watch(seen: RecordingObserver, whole: RayWorkerGroup) -> None:
    whole.close()
    assert seen.of(GroupClosed)[-1].group == "both"


@pytest.mark.parametrize("name", ["rank", "not a name", "execute_with_func_generator"])
def test_a_role_whose_name_every_worker_has_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="cannot be a role"):
        create_colocated_worker_cls({name: RayClassWithInitArgs(Critic)})
