"""Padding is right whatever the method does: every mode of cutting rows against a model that needs none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, broadcast
from core.errors import RowIdentityError, UnevenSplitError
from core.testing import local_controller
from tests.group_workers import Rows, behave
from tests.row_model import BEHAVIOURS, agrees, joined, plain, real_shares, rows

METHODS = {"batch": "act", "pad": "act_pad", "split": "act_split", "error": "act"}


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[int, RayWorkerGroup]]:
    """One group of each world size from 1 to 8."""
    with local_controller():
        yield {
            size: RayWorkerGroup(RayResourcePool([size]), RayClassWithInitArgs(Rows), name_prefix=f"of{size}")
            for size in range(1, 9)
        }


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(1, 8),
    n_rows=st.integers(0, 40),
    how=st.sampled_from(BEHAVIOURS),
    uneven=st.sampled_from(("batch", "pad", "split", "error")),
    later=st.booleans(),
    keyword=st.booleans(),
)
def test_every_real_row_comes_back_once_in_order_and_no_padding_row_ever(
    groups: dict[int, RayWorkerGroup], size: int, n_rows: int, how: str, uneven: str, later: bool, keyword: bool
) -> None:
    batch = rows(n_rows, auto_padding=uneven == "batch")
    before = rows(n_rows)
    method = getattr(groups[size], METHODS[uneven] + ("_later" if later else ""))
    got: Any = None
    refused: UnevenSplitError | RowIdentityError | None = None
    try:
        out = method(batch=batch, how=broadcast(how)) if keyword else method(batch, broadcast(how))
        got = out.get() if later else out
    except (UnevenSplitError, RowIdentityError) as error:
        refused = error
    if isinstance(refused, UnevenSplitError):
        assert uneven == "error"
        assert n_rows % size
        assert (refused.n_rows, refused.n_parts) == (n_rows, size)
    elif isinstance(refused, RowIdentityError):
        assert how == "fresh interleaved"
        assert refused.n_rows_in + refused.n_padding == -(-n_rows // size)
        assert refused.n_rows_out == 2 * (refused.n_rows_in + refused.n_padding)
    else:
        assert agrees(got, how, n_rows, real_shares(n_rows, size, padded=uneven != "split"))
    assert batch == before
    assert batch.row_ids is None
    assert len(batch) == n_rows


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("how", ["keep", "interleave", "tile", "drop", "reorder", "list", "columns", "none"])
def test_a_future_that_holds_padding_gives_a_second_group_real_rows_only(
    groups: dict[int, RayWorkerGroup], how: str, later: bool
) -> None:
    future = groups[4].act_later(rows(10, auto_padding=True), broadcast("interleave"))
    # The second group cuts 20 rows into 6 shares: 4 each, the last one nothing but padding.
    method = groups[6].act_pad_later if later else groups[6].act_pad
    out = method(future, broadcast(how))
    whole = rows(10).repeat(2)
    parts = [plain(behave(whole[start:stop], how)) for start, stop in real_shares(20, 6, padded=True)]
    assert plain(out.get() if later else out) == joined(parts)
    assert plain(future.get()) == plain(whole)


def test_the_same_batch_twice_in_one_call_is_padded_once(groups: dict[int, RayWorkerGroup]) -> None:
    batch = rows(5, auto_padding=True)
    out = groups[4].execute_with_func_generator(_union, batch, batch)
    assert plain(out)["id"] == plain(rows(5))["id"]
    assert len(batch) == 5


def _union(worker: Rows, one: DataProto, other: DataProto) -> DataProto:
    assert one == other
    return one


def test_flipped_labels_in_a_new_batch_are_refused_unless_a_column_names_the_rows(
    groups: dict[int, RayWorkerGroup],
) -> None:
    labels = torch.tensor([1, 0, 1, 0, 0, 1, 1])
    with pytest.raises(RowIdentityError, match="3 rows and 1 padding rows and returned 4 rows"):
        groups[2].execute_with_func_generator(_flipped, DataProto.from_dict({"label": labels}, auto_padding=True))
    named = DataProto.from_dict({"label": labels, "id": torch.arange(7)}, auto_padding=True)
    out = groups[2].execute_with_func_generator(_flipped_with_id, named)
    assert out.batch["label"].tolist() == (1 - labels).tolist()


def _flipped(worker: Rows, batch: DataProto) -> DataProto:
    return DataProto.from_dict({"label": 1 - batch.batch["label"]})


def _flipped_with_id(worker: Rows, batch: DataProto) -> DataProto:
    return DataProto.from_dict({"label": 1 - batch.batch["label"], "id": batch.batch["id"]})


def test_a_batch_that_a_worker_kept_from_a_padded_call_comes_back_without_its_padding(
    groups: dict[int, RayWorkerGroup],
) -> None:
    group = groups[4]
    group.execute_with_func_generator(_keep_aside, rows(5, auto_padding=True))
    kept = group.execute_with_func_generator(_kept, rows(4))
    assert plain(kept)["id"] == plain(rows(5))["id"]


def _keep_aside(worker: Any, batch: DataProto) -> None:
    worker.kept = batch


def _kept(worker: Any, batch: DataProto) -> Any:
    return worker.kept


def test_a_mode_of_the_users_own_made_of_our_functions_pads_as_ours_does(groups: dict[int, RayWorkerGroup]) -> None:
    out = groups[4].act_custom(rows(5, auto_padding=True), broadcast("fresh"))
    assert plain(out) == {"y": [[0.0], [2.0], [4.0], [6.0], [8.0]]}


def test_batches_of_different_lengths_in_a_padded_call_are_refused(groups: dict[int, RayWorkerGroup]) -> None:
    future = groups[2].act_later(rows(6), broadcast("keep"))
    with pytest.raises(ValueError, match="different lengths"):
        groups[4].execute_with_func_generator(_union, rows(5, auto_padding=True), rows(6, auto_padding=True))
    with pytest.raises(ValueError, match="different lengths"):
        groups[4].execute_with_func_generator(_union, rows(5, auto_padding=True), future)


def test_a_future_whose_rows_do_not_match_those_of_a_batch_is_refused(groups: dict[int, RayWorkerGroup]) -> None:
    future = groups[2].act_later(rows(6), broadcast("keep"))
    with pytest.raises(ValueError, match="different lengths: a rank got 2 rows and 0 padding rows, 3 rows"):
        groups[2].execute_with_func_generator(_first, rows(4), future)
    assert len(groups[2].execute_with_func_generator(_first, rows(2), future)) == 2


def _first(worker: Any, batch: DataProto, other: DataProto) -> DataProto:
    del worker, other
    return batch
