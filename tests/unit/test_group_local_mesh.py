"""n-d meshes: ranks of one dp rank get one share, and the ranks that count answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from core import (
    DataProto,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from core.errors import MissingKeyError, RegistrationError, ShareError, UnevenSplitError
from core.testing import RecordingObserver, local_controller


class Meshed(Worker):
    """Four ranks as two dp ranks of two; the second rank of each answers."""

    def __init__(self, collects: tuple[bool, ...] = (False, True, False, True)) -> None:
        super().__init__()
        self._register_dispatch_collect_info("infer", dp_rank=self.rank // 2, is_collect=collects[self.rank])

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("infer"))
    def twice(self, batch: DataProto) -> DataProto:
        return batch.repeat(2)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("infer"), blocking=False)
    def later(self, batch: DataProto) -> DataProto:
        batch.batch["from"] = torch.full((len(batch),), float(self.rank))
        return batch

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("unheard"))
    def lost(self, batch: DataProto) -> DataProto:
        return batch


@pytest.fixture(scope="module")
def seen_and_group() -> Iterator[tuple[RecordingObserver, RayWorkerGroup]]:
    with local_controller() as (_, seen):
        yield seen, RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(Meshed))


def rows(n_rows: int, auto_padding: bool = False) -> DataProto:
    return DataProto.from_dict({"id": torch.arange(float(n_rows))}, auto_padding=auto_padding)


def test_rows_are_cut_by_dp_rank_and_answered_once(seen_and_group: tuple[RecordingObserver, RayWorkerGroup]) -> None:
    _, group = seen_and_group
    assert group.twice(rows(4)).batch["id"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_workers_are_asked_for_the_mesh_once(seen_and_group: tuple[RecordingObserver, RayWorkerGroup]) -> None:
    _, group = seen_and_group
    group.twice(rows(2))
    assert group._dispatch_info["infer"] == [0, 0, 1, 1]
    assert group._collect_info["infer"] == [False, True, False, True]


def test_padding_counts_the_dp_ranks_and_never_comes_back(
    seen_and_group: tuple[RecordingObserver, RayWorkerGroup],
) -> None:
    seen, group = seen_and_group
    assert group.twice(rows(5, auto_padding=True)).batch["id"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    finished = seen.last_call()
    assert finished.shard_sizes == (3, 3, 3, 3)
    assert (finished.rows, finished.padding_rows) == (5, 1)


def test_uneven_rows_are_refused_by_dp_ranks_not_ranks(
    seen_and_group: tuple[RecordingObserver, RayWorkerGroup],
) -> None:
    _, group = seen_and_group
    with pytest.raises(UnevenSplitError) as caught:
        group.twice(rows(5))
    assert (caught.value.n_rows, caught.value.n_parts) == (5, 2)


def test_a_future_holds_the_answers_that_count(seen_and_group: tuple[RecordingObserver, RayWorkerGroup]) -> None:
    _, group = seen_and_group
    made = group.later(group.later(rows(5, auto_padding=True))).get()
    assert made.batch["id"].tolist() == [0, 1, 2, 3, 4]
    assert made.batch["from"].tolist() == [1, 1, 1, 3, 3]


def test_a_mesh_nobody_registered_is_named(seen_and_group: tuple[RecordingObserver, RayWorkerGroup]) -> None:
    _, group = seen_and_group
    with pytest.raises(MissingKeyError, match=r"no mesh 'unheard', it registered infer"):
        group.lost(rows(4))


def test_a_dp_rank_that_nobody_answers_for_is_an_error() -> None:
    with local_controller():
        group = RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(Meshed, (True, True, False, False)))
        with pytest.raises(ShareError, match=r"no rank collects for dp ranks \[1\]"):
            group.twice(rows(4))


def test_fault_14_a_place_is_taken_over_by_its_mesh_and_not_by_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    source, target = Worker(), Worker()
    source._register_dispatch_collect_info("actor", 3, True)
    source._register_dispatch_collect_info("ref", 1, False)
    target.set_dispatch_collect("actor", **source.get_dispatch_collect())
    assert (target._query_dispatch_info("actor"), target._query_collect_info("actor")) == (3, True)
    with pytest.raises(RegistrationError, match=r"unclear: there are actor, ref"):
        target.set_dispatch_collect("rollout", **source.get_dispatch_collect())


def test_a_single_place_is_taken_over_under_another_name_and_twice_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    source, target = Worker(), Worker()
    source._register_dispatch_collect_info(mesh_name="actor", dp_rank=2, is_collect=True)
    target.set_dispatch_collect(mesh_name="ref", **source.get_dispatch_collect())
    assert target.get_dispatch_collect() == {"dispatch_dp_rank": {"ref": 2}, "collect_dp_rank": {"ref": True}}
    with pytest.raises(ValueError, match="was registered before"):
        target.set_dispatch_collect("ref", **source.get_dispatch_collect())
