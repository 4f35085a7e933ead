"""Padding in the kin of the plain row mode: fused roles, functions, metrics, TensorDicts, types of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    broadcast,
    create_colocated_worker_cls,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from core.errors import RowIdentityError, ShareError, UnevenSplitError
from core.testing import local_controller
from tests.group_workers import Async, Rows, behave
from tests.row_model import BEHAVIOURS, agrees, plain, real_shares, rows

SIZES = (1, 2, 3, 4)
COLUMNS = ("keep", "add", "interleave", "tile", "drop", "negate")


class Pile:
    """A user's type that can be cut and joined, and nothing more: not even its rows can be counted."""

    def __init__(self, items: list[int]) -> None:
        """Hold some items."""
        self.items = items

    def chunk(self, chunks: int) -> list[Pile]:
        """Cut into parts that differ by one at most: a type of the user's may do as it likes."""
        return [Pile(self.items[start:stop]) for start, stop in real_shares(len(self.items), chunks, padded=False)]

    @staticmethod
    def concat(parts: list[Pile]) -> Pile:
        """Join parts."""
        return Pile([item for part in parts for item in part.items])


class Deck(Pile):
    """The same with a length: its rows are counted, and those that do not divide refused."""

    def __len__(self) -> int:
        return len(self.items)

    @staticmethod
    def concat(parts: list[Any]) -> Deck:
        """Join parts."""
        return Deck([item for part in parts for item in part.items])

    def chunk(self, chunks: int) -> list[Pile]:
        """Cut into equal parts."""
        return [Deck(part.items) for part in super().chunk(chunks)]


def with_columns(columns: TensorDict, how: str) -> Any:
    """Do with a TensorDict what ``how`` says."""
    ids = columns["id"]
    match how:
        case "keep":
            return columns
        case "add":
            columns["y"] = 2 * ids
            return columns
        case "interleave":
            return columns[torch.arange(len(ids)).repeat_interleave(2)]
        case "tile":
            return columns[torch.arange(len(ids)).repeat(2)]
        case "drop":
            return columns[ids % 2 == 0]
        case "negate":
            return TensorDict({"y": -ids}, batch_size=columns.batch_size)
    raise ValueError(how)


MESH = make_nd_compute_dataproto_dispatch_fn("dp")


class Kin(Rows):
    """Row modes for what is no DataProto, and for ranks that work in pairs on the same rows."""

    def __init__(self) -> None:
        """Take a place in a mesh of pairs; the first of each answers."""
        super().__init__()
        self._register_dispatch_collect_info("dp", dp_rank=self.rank // 2, is_collect=self.rank % 2 == 0)

    @register(dispatch_mode=MESH, uneven="pad")
    def mesh_pad(self, batch: DataProto, how: str) -> Any:
        """Behave, padded."""
        return behave(batch, how)

    @register(dispatch_mode=MESH, uneven="split", blocking=False)
    def mesh_split_later(self, batch: DataProto, how: str) -> Any:
        """Behave on uneven shares, non-blocking."""
        return behave(batch, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def columns_pad(self, columns: TensorDict, how: str) -> Any:
        """Behave, padded."""
        return with_columns(columns, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="split", blocking=False)
    def columns_split_later(self, columns: TensorDict, how: str) -> Any:
        """Behave on uneven shares, non-blocking."""
        return with_columns(columns, how)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, uneven="pad")
    def by_rank(self, batch: DataProto) -> DataProto:
        """Return the rows this rank got, by rank."""
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, uneven="split", blocking=True)
    def counts(self, batch: DataProto) -> int:
        """Return how many rows this rank got."""
        return len(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def pile(self, pile: Pile) -> Pile:
        """Add one to every item of a user's type."""
        return type(pile)([item + 1 for item in pile.items])

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def pile_later(self, pile: Pile) -> Pile:
        """Add one to every item of a user's type, non-blocking."""
        return type(pile)([item + 1 for item in pile.items])


def behave_with(worker: Worker, batch: DataProto, how: str) -> Any:
    """Behave, as a function that travels with the data."""
    return behave(batch, how)


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[tuple[int, str], RayWorkerGroup]]:
    """Groups by size and by what they do with uneven rows."""
    with local_controller():
        yield {
            (size, uneven): RayWorkerGroup([size], RayClassWithInitArgs(Kin), use_gpu=False, uneven=uneven)
            for size in SIZES
            for uneven in ("error", "pad", "split")
        }


@pytest.fixture(scope="module")
def fused() -> Iterator[dict[int, RayWorkerGroup]]:
    """By size, the role "critic" of processes that it shares with another role; one role has async methods."""
    roles = {"actor": RayClassWithInitArgs(Async), "critic": RayClassWithInitArgs(Rows)}
    with local_controller():
        yield {
            size: RayWorkerGroup(RayResourcePool([size]), create_colocated_worker_cls(roles)).spawn(roles)["critic"]
            for size in SIZES
        }


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    n_rows=st.integers(0, 14),
    how=st.sampled_from(BEHAVIOURS),
    uneven=st.sampled_from(("batch", "pad", "split")),
    later=st.booleans(),
)
def test_a_fused_role_gets_its_real_rows_back_as_a_group_of_its_own_does(
    fused: dict[int, RayWorkerGroup], size: int, n_rows: int, how: str, uneven: str, later: bool
) -> None:
    batch, before = rows(n_rows, auto_padding=uneven == "batch"), rows(n_rows)
    name = {"batch": "act", "pad": "act_pad", "split": "act_split"}[uneven] + ("_later" if later else "")
    refused = False
    got = None
    try:
        out = getattr(fused[size], name)(batch, broadcast(how))
        got = out.get() if later else out
    except RowIdentityError:
        refused = True
    assert refused <= (how == "fresh interleaved")
    assert refused or agrees(got, how, n_rows, real_shares(n_rows, size, padded=uneven != "split"))
    assert batch == before


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    n_rows=st.integers(0, 14),
    how=st.sampled_from(BEHAVIOURS),
    uneven=st.sampled_from(("error", "pad", "split")),
    keyword=st.booleans(),
)
def test_a_function_that_travels_with_the_rows_gets_them_as_a_method_does(
    groups: dict[tuple[int, str], RayWorkerGroup], size: int, n_rows: int, how: str, uneven: str, keyword: bool
) -> None:
    batch, before = rows(n_rows), rows(n_rows)
    run = groups[size, uneven].execute_with_func_generator
    refused: Exception | None = None
    got = None
    try:
        if keyword:
            got = run(behave_with, batch=batch, how=broadcast(how))
        else:
            got = run(behave_with, batch, broadcast(how))
    except (RowIdentityError, UnevenSplitError) as error:
        refused = error
    if isinstance(refused, UnevenSplitError):
        assert (uneven, refused.n_rows, refused.n_parts) == ("error", n_rows, size)
        assert n_rows % size
    elif refused is not None:
        assert how == "fresh interleaved"
    else:
        assert agrees(got, how, n_rows, real_shares(n_rows, size, padded=uneven != "split"))
    assert batch == before


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    n_rows=st.integers(0, 14),
    how=st.sampled_from(BEHAVIOURS),
    method=st.sampled_from(("mesh_pad", "mesh_split_later")),
)
def test_ranks_that_work_on_the_same_rows_give_each_real_row_once(
    groups: dict[tuple[int, str], RayWorkerGroup], size: int, n_rows: int, how: str, method: str
) -> None:
    batch, before = rows(n_rows), rows(n_rows)
    refused = False
    got = None
    try:
        out = getattr(groups[size, "error"], method)(batch, broadcast(how))
        got = out.get() if method.endswith("later") else out
    except RowIdentityError:
        refused = True
    assert refused <= (how == "fresh interleaved" and method == "mesh_pad")
    shares = real_shares(n_rows, -(-size // 2), padded=method == "mesh_pad")
    assert refused or agrees(got, how, n_rows, shares)
    assert batch == before


@settings(max_examples=40, deadline=None)
@given(size=st.sampled_from(SIZES), n_rows=st.integers(0, 14))
def test_a_metric_comes_by_rank_and_batches_by_rank_hold_each_real_row_once(
    groups: dict[tuple[int, str], RayWorkerGroup], size: int, n_rows: int
) -> None:
    group = groups[size, "error"]
    parts = group.by_rank(rows(n_rows))
    assert [len(part) for part in parts] == [stop - start for start, stop in real_shares(n_rows, size, padded=True)]
    assert [name for part in parts for name in plain(part)["name"]] == plain(rows(n_rows))["name"]
    assert group.counts(batch=rows(n_rows)) == [stop - start for start, stop in real_shares(n_rows, size, padded=False)]


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    n_rows=st.integers(0, 14),
    how=st.sampled_from(COLUMNS),
    method=st.sampled_from(("columns_pad", "columns_split_later")),
)
def test_a_tensordict_comes_back_whole_or_is_refused_with_the_counts(
    groups: dict[tuple[int, str], RayWorkerGroup], size: int, n_rows: int, how: str, method: str
) -> None:
    given_columns = TensorDict({"id": torch.arange(n_rows)}, batch_size=[n_rows])
    refused: RowIdentityError | None = None
    got = None
    try:
        out = getattr(groups[size, "error"], method)(given_columns, broadcast(how))
        got = out.get() if method.endswith("later") else out
    except RowIdentityError as error:
        refused = error
    padded = method == "columns_pad"
    shares = real_shares(n_rows, size, padded)
    if refused is not None:
        assert padded
        assert how == "tile"
        assert refused.n_rows_out == 2 * (refused.n_rows_in + refused.n_padding)
    else:
        parts = [with_columns(given_columns[start:stop].clone(), how) for start, stop in shares]
        expected = torch.cat([part["y" if how == "negate" else "id"] for part in parts])
        assert got is not None
        assert got["y" if how == "negate" else "id"].tolist() == expected.tolist()
        assert tuple(got.batch_size) == tuple(expected.shape)
    assert list(given_columns.keys()) == ["id"]
    assert given_columns["id"].tolist() == list(range(n_rows))


@settings(max_examples=30, deadline=None)
@given(size=st.sampled_from(SIZES), n_rows=st.integers(0, 14), later=st.booleans())
def test_a_users_type_with_chunk_and_concat_is_cut_and_joined_by_them(
    groups: dict[tuple[int, str], RayWorkerGroup], size: int, n_rows: int, later: bool
) -> None:
    group = groups[size, "error"]
    method = group.pile_later if later else group.pile
    expected = [item + 1 for item in range(n_rows)]
    out = method(Pile(list(range(n_rows))))
    out = out.get() if later else out
    assert (type(out).__name__, out.items) == ("Pile", expected)
    refused = None
    try:
        out = method(Deck(list(range(n_rows))))
        out = out.get() if later else out
        assert (type(out).__name__, out.items) == ("Deck", expected)
    except UnevenSplitError as error:
        refused = (error.n_rows, error.n_parts)
    assert refused == ((n_rows, size) if n_rows % size else None)


def test_a_users_type_is_never_padded_or_cut_unevenly_behind_its_back(
    groups: dict[tuple[int, str], RayWorkerGroup],
) -> None:
    for uneven in ("pad", "split"):
        with pytest.raises(ShareError, match=r"a Deck of 5 rows, which has only chunk and concat"):
            groups[4, uneven].pile(Deck([1, 2, 3, 4, 5]))


class Stubborn(Pile):
    """A type whose ``chunk`` does not do what it is told."""

    def chunk(self, chunks: int) -> list[Pile]:
        """Give one part, whatever was asked for."""
        return [self]


def test_a_users_type_that_gives_another_number_of_parts_is_refused(
    groups: dict[tuple[int, str], RayWorkerGroup],
) -> None:
    with pytest.raises(ShareError, match=r"a Stubborn, whose chunk\(4\) returned 1 parts"):
        groups[4, "error"].pile(Stubborn([1, 2, 3, 4]))


def test_a_tensor_without_rows_is_refused_in_words(groups: dict[tuple[int, str], RayWorkerGroup]) -> None:
    with pytest.raises(ShareError, match="is a Tensor, which has no rows"):
        groups[2, "error"].act(torch.tensor(3.0), broadcast("keep"))
