"""Splitting a call's arguments: what each rank gets, and what must be known later to join the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from tensordict import TensorDictBase

from core.data.future import DataProtoFuture
from core.data.proto import DataProto
from core.data.rows import chunked, is_splittable, row_count, split_rows_into_shares
from core.data.shares import Share, Uneven, plan_shares
from core.errors import ShareError

T = TypeVar("T")


@dataclass(frozen=True)
class Broadcast(Generic[T]):
    """An argument that goes to every rank as it is, whatever the mode and whatever its length."""

    value: T


@dataclass(frozen=True)
class PerRank(Generic[T]):
    """An argument of which item ``i`` goes to rank ``i``, whatever the mode."""

    values: Sequence[T]


def broadcast(value: T) -> Broadcast[T]:
    """Mark ``value`` to be sent to every rank as it is."""
    return Broadcast(value)


def per_rank(values: Sequence[T]) -> PerRank[T]:
    """Mark ``values`` to be sent one per rank."""
    return PerRank(values)


class RankArguments(NamedTuple):
    """What one rank is called with. ``share`` is its part of the rows, None when the mode splits no rows."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    share: Share | None = None


class Dispatched(NamedTuple):
    """The arguments of every rank that executes.

    Ranks that get the same share one object in ``ranks``, so that it need be serialised only once. ``rows`` are the
    rows of the caller's batch; ``padded`` says that results may hold padding rows; ``sources`` are the ranks whose
    results count, in order, None for all.
    """

    ranks: tuple[RankArguments, ...]
    rows: int = 0
    padded: bool = False
    sources: tuple[int, ...] | None = None

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Return the rows sent to each rank, padding included; empty when no rows were split."""
        if self.ranks[0].share is None:
            return ()
        return tuple(rank.share.size for rank in self.ranks if rank.share is not None)

    @property
    def padding_rows(self) -> int:
        """Return how many padding rows the batch was given, counted once for ranks that work on the same rows."""
        if self.ranks[0].share is None:
            return 0
        distinct = {id(rank): rank for rank in self.ranks}.values()
        return sum(rank.share.n_padding for rank in distinct if rank.share is not None)

    def columns(self) -> tuple[tuple[list[Any], ...], dict[str, list[Any]]]:
        """Transpose: return one list over the ranks per argument, positional ones and keywords."""
        first = self.ranks[0]
        args = tuple([rank.args[index] for rank in self.ranks] for index in range(len(first.args)))
        return args, {name: [rank.kwargs[name] for rank in self.ranks] for name in first.kwargs}


class Arguments(NamedTuple):
    """A call's arguments with the names to speak of them in errors."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = MappingProxyType({})

    def named(self) -> list[tuple[str, Any]]:
        """Return ``(name, value)`` of each, positional ones as "#1", "#2", ..."""
        return [(f"#{index + 1}", value) for index, value in enumerate(self.args)] + list(self.kwargs.items())

    def ranks(self, columns: Sequence[Sequence[Any]], shares: Sequence[Share | None]) -> tuple[RankArguments, ...]:
        """Turn one column of values per argument into one set of arguments per rank."""
        n_args = len(self.args)
        names = tuple(self.kwargs)
        return tuple(
            RankArguments(
                tuple(column[rank] for column in columns[:n_args]),
                {name: column[rank] for name, column in zip(names, columns[n_args:], strict=True)},
                share,
            )
            for rank, share in enumerate(shares)
        )


def send_to_all(world_size: int, arguments: Arguments) -> Dispatched:
    """Give every rank the same."""
    columns = [_marked(value, world_size, name) for name, value in arguments.named()]
    if columns and any(column is not None for column in columns):
        filled = [
            [value] * world_size if column is None else column
            for column, (_, value) in zip(columns, arguments.named(), strict=True)
        ]
        return Dispatched(arguments.ranks(filled, [None] * world_size))
    one = RankArguments(arguments.args, arguments.kwargs)
    return Dispatched((one,) * world_size)


def split_lists(world_size: int, arguments: Arguments) -> Dispatched:
    """Give rank ``i`` item ``i`` of each argument, which must have one item per rank.

    Raises:
        ShareError: An argument is not a list of that length.
    """
    columns = []
    for name, value in arguments.named():
        column = _marked(value, world_size, name)
        if column is None:
            if not isinstance(value, (list, tuple)) or len(value) != world_size:
                length = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
                raise ShareError(
                    f"argument {name} must be a list with one item for each of {world_size} ranks, got "
                    f"{type(value).__name__}{length}; core.broadcast(value) sends one value to every rank",
                    argument=name,
                )
            column = list(value)
        columns.append(column)
    return Dispatched(arguments.ranks(columns, [None] * world_size))


def split_by_convention(world_size: int, arguments: Arguments) -> Dispatched:
    """Send one item per rank when *every* argument is a list of ``world_size`` items, else give every rank the same.

    That is the convention of ``execute_all`` and ALL_TO_ALL that drivers in this field rely on; ``broadcast`` and
    ``per_rank`` say which of the two is meant whatever the length.
    """
    values = [value for _, value in arguments.named()]
    if values and all(isinstance(value, list) and len(value) == world_size for value in values):
        return split_lists(world_size, arguments)
    return send_to_all(world_size, arguments)


def split_rows(world_size: int, arguments: Arguments, uneven: Uneven | None, method: str) -> Dispatched:
    """Cut every argument into one share of rows per rank.

    ``uneven`` says what to do with rows that do not divide; None leaves it to the batch (``auto_padding``), else error.

    Raises:
        ShareError: An argument has no rows to split, or batches of different lengths meet in a padded call.
        UnevenSplitError: The rows do not divide and nothing says what to do then.
    """
    named = arguments.named()
    marked = [_marked(value, world_size, name) for name, value in named]
    unmarked = [(name, value) for (name, value), column in zip(named, marked, strict=True) if column is None]
    for name, value in unmarked:
        _require_rows(name, value, method)
    batches = [(name, value) for name, value in unmarked if row_count(value) is not None]
    has_futures = any(isinstance(value, DataProtoFuture) for _, value in unmarked)
    how = uneven or (Uneven.PAD if any(_pads(value) for _, value in batches) else Uneven.ERROR)
    shares = _shares(batches, world_size, how, method)
    futures_how = uneven or Uneven.PAD if unmarked and not batches else how
    columns = [
        column
        if column is not None
        else value.chunk(world_size, futures_how)
        if isinstance(value, DataProtoFuture)
        else chunked(value, world_size, f"{name} of {method}")
        if name not in shares
        else split_rows_into_shares(value, shares[name], f"{name} of {method}")
        for (name, value), column in zip(named, marked, strict=True)
    ]
    first = next(iter(shares.values()), None)
    rank_shares: Sequence[Share | None] = first if first is not None else [None] * world_size
    padded = any(share is not None and share.n_padding for share in rank_shares) or has_futures
    return Dispatched(
        arguments.ranks(columns, rank_shares), rows=sum(share.n_real for share in first or ()), padded=padded
    )


def _marked(value: Any, world_size: int, name: str) -> list[Any] | None:
    """Return the column of an argument whose caller marked how to send it, else None."""
    if isinstance(value, Broadcast):
        return [value.value] * world_size
    if isinstance(value, PerRank):
        if len(value.values) != world_size:
            raise ShareError(
                f"argument {name} is marked per_rank with {len(value.values)} items, the group has {world_size} ranks",
                argument=name,
            )
        return list(value.values)
    return None


def _require_rows(name: str, value: Any, method: str) -> None:
    if not isinstance(value, DataProtoFuture) and not is_splittable(value):
        size = f" of batch size {list(value.batch_size)}" if isinstance(value, TensorDictBase) else ""
        raise ShareError(
            f"argument {name} of {method} is a {type(value).__name__}{size}, which has no rows to split among the "
            f"ranks; pass a DataProto, a TensorDict with rows or a type with chunk and concat, or "
            f"core.broadcast(value) to send it to every rank",
            argument=name,
        )


def _pads(value: Any) -> bool:
    return isinstance(value, DataProto) and value.is_padding_enabled()


def _shares(
    batches: Sequence[tuple[str, Any]], world_size: int, how: Uneven, method: str
) -> dict[str, tuple[Share, ...]]:
    counts = {name: row_count(value) or 0 for name, value in batches}
    _require_rows_that_match(counts, world_size, method)
    return {name: plan_shares(count, world_size, how, f"argument {name} of {method}") for name, count in counts.items()}


def _require_rows_that_match(counts: Mapping[str, int], world_size: int, method: str) -> None:
    """Refuse batches of which no row of one belongs to rows of the other: a rank would get parts of two splits.

    Two rows of one for each row of the other match, as prompts and two answers each do; a batch without rows matches
    any.

    Raises:
        ShareError: The batches do not match, or they do and not all divide by the ranks.
    """
    if len(set(counts.values())) < 2 or world_size == 1:
        return
    words = ", ".join(f"{name}: {count}" for name, count in counts.items())
    if any(count % world_size for count in counts.values()):
        raise ShareError(
            f"the batches of {method} have different lengths ({words}) and do not all divide by {world_size} ranks; "
            f"they cannot be split by rows"
        )
    filled = [(count, name) for name, count in counts.items() if count]
    (fewest, name) = min(filled)
    odd = next((other for count, other in filled if count % fewest), None)
    if odd is not None:
        raise ShareError(
            f"arguments {name} and {odd} of {method} have {fewest} and {counts[odd]} rows, which cannot be split by "
            f"rows; pass as many rows of each, or a whole number for each row; core.broadcast(value) sends all of "
            f"one to every rank, core.per_rank(parts) what you cut yourself",
            argument=odd,
        )
