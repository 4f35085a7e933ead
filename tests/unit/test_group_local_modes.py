"""Every mode through a group on the cluster inside this process: cases from the field, and their kin."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from core import (
    DataProto,
    DataProtoFuture,
    Dispatch,
    Execute,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    broadcast,
    collect_all_to_all,
    dispatch_one_to_all,
    get,
    per_rank,
    register,
)
from core.errors import BatchError, RegistrationError, ShareError, UnevenSplitError, WorkerMethodError
from core.events import CallAwaited, CallFinished, CallStarted, RankFinished
from core.testing import RecordingObserver, local_controller
from tests.group_workers import Async, Rows

Watched = tuple[RayWorkerGroup, RecordingObserver]


def rows(n_rows: int, auto_padding: bool = False) -> DataProto:
    """Make a batch whose rows carry ids from 0 on."""
    return DataProto.from_dict(
        {"id": torch.arange(n_rows, dtype=torch.float32).reshape(n_rows, 1)}, auto_padding=auto_padding
    )


def ids(batch: DataProto) -> list[int]:
    """Return the ids of a batch's rows."""
    return [int(row) for row in batch.batch["id"].flatten()]


class More(Rows):
    """Modes that ``Rows`` does not need."""

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    def direct(self) -> None:
        """Be called on the worker only."""

    @register(dispatch_mode={"dispatch_fn": dispatch_one_to_all, "collect_fn": lambda group, out: sum(out)})
    def summed(self, value: int) -> int:
        """Return what came; the mode adds up."""
        return value

    @register(
        dispatch_mode={
            "dispatch_fn": lambda group, *args: (([[rank, rank] for rank in range(group.world_size)],), {}),
            "collect_fn": collect_all_to_all,
        }
    )
    def numbered(self, numbers: list[int]) -> list[int]:
        """Return what the mode made up."""
        return numbers

    @register(
        dispatch_mode={"dispatch_fn": dispatch_one_to_all, "collect_fn": lambda group, out: ("collected", out)},
        execute_mode=Execute.RANK_ZERO,
    )
    def zero_collected(self, value: int) -> int:
        """Return what came, on rank 0."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def metric_batch(self, batch: DataProto) -> DataProto:
        """Return the rows this rank got."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, blocking=False)
    def metric_batch_later(self, batch: DataProto) -> DataProto:
        """Return the rows this rank got, non-blocking."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def tensors(self, batch: Any) -> Any:
        """Return twice what came, without ids to go by."""
        return batch * 2 if isinstance(batch, torch.Tensor) else batch.apply(lambda column: column * 2)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    def kind_of(self, batch: Any) -> list[str]:
        """Return the name of the type that came."""
        return [type(batch).__name__]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def mixture(self, batch: DataProto) -> Any:
        """Return a batch on rank 0 and a number elsewhere."""
        return batch if self.rank == 0 else 3


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """A group of four and what it tells its observer."""
    with local_controller() as (_, seen):
        yield RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(More), name_prefix="more"), seen


@pytest.fixture
def four(watched: Watched) -> RayWorkerGroup:
    """The group of four."""
    return watched[0]


def last_call(seen: RecordingObserver) -> CallFinished:
    """Return how the latest call ended."""
    started = seen.of(CallStarted)[-1].call_id
    while True:
        for event in seen.of(CallFinished):
            if event.call_id == started:
                return event
        seen.await_count(CallFinished, len(seen.of(CallFinished)) + 1)


# Case H1 of the field (verl PR #1356), by position and by keyword, blocking and not.
@pytest.mark.parametrize("method", ["act", "act_later"])
@pytest.mark.parametrize("keyword", [False, True])
def test_h1_auto_pad_leaves_the_callers_batch_alone(four: RayWorkerGroup, method: str, keyword: bool) -> None:
    batch = rows(5, auto_padding=True)
    for _ in range(2):
        call = getattr(four, method)
        out = call(batch=batch, how=broadcast("add column")) if keyword else call(batch, broadcast("add column"))
        out = out.get() if isinstance(out, DataProtoFuture) else out
        assert ids(out) == [0, 1, 2, 3, 4]
        assert out.batch["y"].flatten().tolist() == [0, 2, 4, 6, 8]
        assert ids(batch) == [0, 1, 2, 3, 4]
        assert set(batch.batch.keys()) == {"id"}


# Case H2 of the field (verl PR #2324).
@pytest.mark.parametrize("method", ["act", "act_later"])
def test_h2_auto_pad_with_every_row_twice_gives_exactly_ten_rows(four: RayWorkerGroup, method: str) -> None:
    out = getattr(four, method)(rows(5, auto_padding=True), broadcast("interleave"))
    out = out.get() if isinstance(out, DataProtoFuture) else out
    assert ids(out) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


# Case H3 of the field (verl#3933).
def test_h3_an_uneven_split_is_balanced_and_in_order(watched: Watched) -> None:
    four, seen = watched
    assert ids(four.act_split(rows(5), broadcast("keep"))) == [0, 1, 2, 3, 4]
    assert last_call(seen).shard_sizes == (2, 1, 1, 1)
    assert ids(four.act_split(rows(124), broadcast("keep"))) == list(range(124))


# Case H4 of the field (verl#149).
def test_h4_a_batch_smaller_than_the_group_gives_each_rank_one_row(watched: Watched) -> None:
    _, seen = watched
    eight = RayWorkerGroup(RayResourcePool([8]), RayClassWithInitArgs(Rows))
    assert ids(eight.act(rows(3, auto_padding=True), broadcast("keep"))) == [0, 1, 2]
    ended = last_call(seen)
    assert (ended.shard_sizes, ended.padding_rows, ended.rows, ended.rows_out) == ((1,) * 8, 5, 3, 3)
    eight.close()


# Case H6 of the field, and its kin.
def test_h6_rank_zero_gets_the_plain_argument(watched: Watched) -> None:
    four, seen = watched
    assert four.echo_zero(7) == (0, 7)
    assert len([span for span in seen.of(RankFinished) if span.call_id == last_call(seen).call_id]) == 1
    assert four.echo_zero(value=7) == (0, 7)
    assert four.echo_zero([1, 2, 3, 4]) == (0, [1, 2, 3, 4])
    assert get(four.echo_zero_later(7)) == (0, 7)
    assert four.echo_rank_zero([1, 2, 3, 4]) == (0, [1, 2, 3, 4])
    assert four.execute_func_rank_zero(max, 3, 4) == 4
    assert four.execute_rank_zero_sync("unregistered", [1, 2, 3, 4]) == (0, [1, 2, 3, 4])
    assert get(four.execute_rank_zero("unregistered", value=5)) == (0, 5)


def test_a_users_collect_function_sees_the_one_result_of_rank_zero(four: RayWorkerGroup) -> None:
    assert four.zero_collected(7) == ("collected", 7)


# Case H11 of the field (verl#2299), with threads for processes.
def test_h11_queueing_and_running_are_told_apart_per_rank(watched: Watched) -> None:
    four, seen = watched
    get([*four.nap_later(0.05), *four.nap_later(0.05)])
    calls = [event.call_id for event in seen.of(CallStarted) if event.method == "nap_later"]
    seen.await_count(RankFinished, len(seen.of(CallStarted)))
    first, second = (_spans(seen, call) for call in calls)
    for spans in (first, second):
        run_s = [(span.finished_ns - span.started_ns) / 1e9 for span in spans if span.finished_ns and span.started_ns]
        assert run_s == pytest.approx([0, 0.05, 0.1, 0.15], abs=0.04)
    queue_s = [(span.started_ns - span.submitted_ns) / 1e9 for span in second if span.started_ns]
    assert queue_s[3] == pytest.approx(0.15, abs=0.04)
    assert queue_s[0] < 0.04


def _spans(seen: RecordingObserver, call_id: int) -> list[RankFinished]:
    while len(found := [span for span in seen.of(RankFinished) if span.call_id == call_id]) < 4:
        seen.await_count(RankFinished, len(seen.of(RankFinished)) + 1)
    return sorted(found, key=lambda span: span.rank)


@pytest.mark.parametrize("value", [7, None, "text", [1, 2], [1, 2, 3, 4], {"a": 1}, (1, 2, 3, 4)])
def test_one_to_all_gives_the_same_to_all_and_a_list_back(four: RayWorkerGroup, value: object) -> None:
    assert four.echo(value) == [value] * 4
    assert four.echo(value=value) == [value] * 4
    assert get(four.echo_later(value)) == [value] * 4


def test_fault_8_all_to_all_keeps_the_convention_and_says_what_is_meant(four: RayWorkerGroup) -> None:
    assert four.echo_all([1, 2, 3, 4]) == [1, 2, 3, 4]
    assert four.echo_all([1, 2, 3]) == [[1, 2, 3]] * 4
    assert four.echo_all(broadcast([1, 2, 3, 4])) == [[1, 2, 3, 4]] * 4
    assert four.echo_all(per_rank((1, 2, 3, 4)), other="x") == [(1, "x"), (2, "x"), (3, "x"), (4, "x")]
    assert four.execute_all_sync("unregistered", [5, 6, 7, 8]) == [(0, 5), (1, 6), (2, 7), (3, 8)]
    assert four.execute_all_sync("unregistered", value=[5, 6]) == [(rank, [5, 6]) for rank in range(4)]
    assert get(four.execute_all("unregistered")) == [(rank, None) for rank in range(4)]
    assert get(four.execute_all_async("unregistered", "x")) == [(rank, "x") for rank in range(4)]


def test_dp_compute_deals_values_or_references_one_per_rank(four: RayWorkerGroup) -> None:
    assert four.deal([1, 2, 3, 4]) == [1, 2, 3, 4]
    assert get(four.deal_later(value=[1, 2, 3, 4])) == [1, 2, 3, 4]
    assert four.deal(four.deal_later([5, 6, 7, 8])) == [5, 6, 7, 8]
    with pytest.raises(ShareError, match="4 ranks"):
        four.deal([1, 2, 3])


def test_dp_compute_metric_gives_a_list_by_rank(four: RayWorkerGroup) -> None:
    assert four.count(rows(8)) == [2, 2, 2, 2]
    assert four.count(rows(5, auto_padding=True)) == [2, 2, 2, 2]


def test_batches_by_rank_hold_no_padding_blocking_or_not(four: RayWorkerGroup) -> None:
    batch = rows(5, auto_padding=True)
    for parts in (four.metric_batch(batch), get(four.metric_batch_later(batch))):
        assert [ids(part) for part in parts] == [[0, 1], [2, 3], [4], []]
        assert all(part.row_ids is None for part in parts)


def test_a_function_in_first_place_runs_on_each_ranks_share(four: RayWorkerGroup) -> None:
    out = four.execute_with_func_generator(lambda worker, batch: batch[:1], rows(8))
    assert ids(out) == [0, 2, 4, 6]
    with pytest.raises(ShareError, match="takes a function in first place"):
        four.execute_with_func_generator(rows(8))


@pytest.mark.parametrize("n_rows", [0, 3, 8])
def test_tensors_and_tensordicts_are_padded_like_batches(four: RayWorkerGroup, n_rows: int) -> None:
    values = torch.arange(n_rows)
    assert four.tensors(values).tolist() == (values * 2).tolist()
    out = four.tensors(batch=TensorDict({"id": values}, batch_size=[n_rows]))
    assert out["id"].tolist() == (values * 2).tolist()
    assert tuple(out.batch_size) == (n_rows,)


def test_rows_that_do_not_divide_are_an_error_that_names_the_method(watched: Watched) -> None:
    four, seen = watched
    for method in (four.act, four.act_later):
        with pytest.raises(UnevenSplitError, match=r"10 rows of argument #1 of more\.act\w* into 4 equal shares"):
            method(rows(10), broadcast("keep"))
        ended = last_call(seen)
        assert ended.status == "error"
        assert ended.error is not None
        assert ended.error.type == "UnevenSplitError"


def test_a_users_mode_is_handed_the_group_and_collects(four: RayWorkerGroup) -> None:
    assert four.summed(3) == 12
    assert four.numbered() == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_a_direct_method_is_refused_through_the_group(four: RayWorkerGroup) -> None:
    with pytest.raises(RegistrationError, match=r"more\.direct .* called on the worker itself"):
        four.direct()


def test_ranks_that_disagree_about_the_type_of_a_batch_are_refused_by_rank(four: RayWorkerGroup) -> None:
    with pytest.raises(ShareError, match="rank 0: DataProto, rank 1: int"):
        four.mixture(rows(4))


def test_a_future_is_a_dataproto_future_that_gives_the_same_again(watched: Watched) -> None:
    four, seen = watched
    future = four.act_later(rows(5, auto_padding=True), broadcast("interleave"))
    assert isinstance(future, DataProtoFuture)
    assert ids(future.get()) == ids(future.get()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    call_id = seen.of(CallStarted)[-1].call_id
    assert [event.call_id for event in seen.of(CallAwaited)].count(call_id) == 1


def test_a_part_of_a_future_is_that_part_and_parts_of_parts_compose(four: RayWorkerGroup) -> None:
    future = four.act_later(rows(5, auto_padding=True), broadcast("interleave"))
    halves = future.chunk(2)
    assert ids(halves[1].get()) == [2, 3, 3, 4, 4]
    assert ids(halves[1].chunk(5)[4].get()) == [4]
    with pytest.raises(UnevenSplitError):
        future.chunk(3)[0].get()


def test_a_future_nobody_holds_any_more_still_reaches_the_next_call(four: RayWorkerGroup) -> None:
    later = four.act_later(four.act_later(rows(8), broadcast("keep")), broadcast("reorder"))
    gc.collect()
    assert ids(later.get()) == [1, 0, 3, 2, 5, 4, 7, 6]


def test_a_future_arrives_as_such_where_the_method_wants_it(four: RayWorkerGroup) -> None:
    assert four.kind_of(four.act_later(rows(4), broadcast("keep"))) == ["DataProtoFuture"] * 4


def test_a_future_of_something_without_rows_cannot_be_dealt(four: RayWorkerGroup) -> None:
    with pytest.raises(BatchError, match="a future of NoneType has no rows"):
        four.act(four.act_later(rows(4), broadcast("none")), broadcast("keep"))


def test_workers_change_what_they_got_and_it_stays_local(four: RayWorkerGroup) -> None:
    batch = rows(8)
    out = four.execute_with_func_generator(_add_rank, batch)
    assert out.batch["id"].flatten().tolist() == [0, 1, 3, 4, 6, 7, 9, 10]
    assert ids(batch) == list(range(8))


def _add_rank(worker: Worker, batch: DataProto) -> DataProto:
    batch.batch["id"] += worker.rank
    batch.meta_info["rank"] = 1.0 * worker.rank
    return batch


def test_a_large_value_for_all_ranks_is_sent_once_and_arrives_whole(watched: Watched) -> None:
    four, seen = watched
    value = np.arange(100_000)
    assert all(np.array_equal(out, value) for out in four.echo(value))
    assert last_call(seen).bytes_out == value.nbytes
    assert all(np.array_equal(out, value) for out in four.echo(value=value))


@pytest.mark.parametrize("method", ["act_async", "act"])
def test_async_and_plain_methods_of_one_class_both_run(watched: Watched, method: str) -> None:
    group = RayWorkerGroup(RayResourcePool([4]), RayClassWithInitArgs(Async))
    batch = rows(5, auto_padding=True)
    out = group.act_async(batch) if method == "act_async" else group.act(batch, broadcast("add column"))
    assert out.batch["y"].flatten().tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(WorkerMethodError) as caught:
        group.fail_async()
    assert (caught.value.cause_type, caught.value.method) == ("LookupError", "fail_async")
    group.close()


def test_the_record_of_a_call_has_its_rows_padding_and_one_span_per_rank(watched: Watched) -> None:
    four, seen = watched
    four.act(rows(5, auto_padding=True), broadcast("interleave"))
    ended = last_call(seen)
    assert (ended.status, ended.rows, ended.rows_out, ended.shard_sizes) == ("ok", 5, 10, (2, 2, 2, 2))
    assert ended.padding_rows == 3
    spans = _spans(seen, ended.call_id)
    assert [span.rank for span in spans] == [0, 1, 2, 3]
    assert all(span.rows_in == 2 and span.rows_out == 4 and span.status == "ok" for span in spans)
    for span in spans:
        assert span.started_ns is not None
        assert span.finished_ns is not None
        assert span.submitted_ns <= span.started_ns <= span.finished_ns <= span.ready_ns


def test_every_call_ends_once_also_when_it_fails(watched: Watched) -> None:
    four, seen = watched
    with pytest.raises(WorkerMethodError):
        four.fail(1)
    future = four.fail_later(rows(8))
    with pytest.raises(WorkerMethodError):
        future.get()
    four.echo(1)
    last_call(seen)
    seen.await_count(CallFinished, len(seen.of(CallStarted)))
    ended = [event.call_id for event in seen.of(CallFinished)]
    assert sorted(ended) == [event.call_id for event in seen.of(CallStarted)]


def test_the_record_has_the_ranks_that_execute_a_call(watched: Watched) -> None:
    four, seen = watched
    four.execute_all_sync("echo", 1)
    four.execute_rank_zero_sync("echo", 1)
    assert [event.ranks for event in seen.of(CallStarted)[-2:]] == [(0, 1, 2, 3), (0,)]
