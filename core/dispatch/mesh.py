"""Dispatch over an n-d mesh: ranks of one data-parallel rank get the same share, and one of them answers for it.

With tensor, pipeline or context parallelism several ranks work on the same rows. Each worker registers, per mesh, its
dp rank and whether its result counts; the group asks for that once, on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from core.cluster.fetching import is_ref
from core.data.future import DataProtoFuture
from core.data.rows import join
from core.data.shares import Uneven
from core.dispatch.split import Arguments, Dispatched, split_rows
from core.errors import ShareError


class HasMeshes(Protocol):
    """A worker group, as far as mesh rules look at it."""

    _dispatch_info: dict[str, list[int]]
    _collect_info: dict[str, list[bool]]

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        ...

    def _query_dispatch_info(self, mesh_name: str) -> list[int]:
        """Ask every rank for its dp rank."""
        ...

    def _query_collect_info(self, mesh_name: str) -> list[bool]:
        """Ask every rank whether its result counts."""
        ...


@dataclass(frozen=True, slots=True)
class Mesh:
    """The dp rank of each rank, and whether its result counts."""

    dp_ranks: tuple[int, ...]
    counts: tuple[bool, ...]

    @property
    def dp_size(self) -> int:
        """Return the number of data-parallel ranks."""
        return max(self.dp_ranks) + 1

    @property
    def sources(self) -> tuple[int, ...]:
        """Return the ranks whose results count, by dp rank."""
        counting = [rank for rank, counts in enumerate(self.counts) if counts]
        return tuple(sorted(counting, key=lambda rank: (self.dp_ranks[rank], rank)))


def ask_mesh(group: HasMeshes, mesh_name: str) -> Mesh:
    """Return a group's mesh, asking the workers the first time.

    Raises:
        ShareError: A worker has not registered itself for this mesh, or no rank's result counts.
    """
    # Queried again if the group's number of ranks has changed.
    if len(group._dispatch_info.get(mesh_name, ())) != group.world_size:
        group._dispatch_info[mesh_name] = group._query_dispatch_info(mesh_name)
    if len(group._collect_info.get(mesh_name, ())) != group.world_size:
        group._collect_info[mesh_name] = group._query_collect_info(mesh_name)
    mesh = Mesh(tuple(group._dispatch_info[mesh_name]), tuple(group._collect_info[mesh_name]))
    covered = {mesh.dp_ranks[rank] for rank in mesh.sources}
    if covered != set(range(mesh.dp_size)):
        missing = sorted(set(range(mesh.dp_size)) - covered)
        raise ShareError(
            f"in mesh {mesh_name!r} no rank collects for dp ranks {missing}: dp ranks by rank are "
            f"{list(mesh.dp_ranks)}, results count of ranks {list(mesh.sources)}; register one rank of each dp rank "
            f"with is_collect=True"
        )
    return mesh


def split_over_mesh(mesh: Mesh, arguments: Arguments, uneven: Uneven | None, method: str) -> Dispatched:
    """Cut every argument into one share per dp rank and give each rank the share of its dp rank.

    Raises:
        ShareError: An argument has no rows to split.
        UnevenSplitError: The rows do not divide by the dp ranks.
    """
    dispatched = split_rows(mesh.dp_size, arguments, uneven, method)
    return dispatched._replace(
        ranks=tuple(dispatched.ranks[dp_rank] for dp_rank in mesh.dp_ranks), sources=mesh.sources
    )


def dispatch_nd_compute(
    dp_rank_mapping: Sequence[int], dp_size: int, worker_group: Any, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """Split lists with one item per dp rank: rank ``i`` gets item ``dp_rank_mapping[i]`` of each.

    Raises:
        ShareError: An argument is not a list of ``dp_size`` items.
    """
    del worker_group
    for name, value in Arguments(args, kwargs).named():
        if not isinstance(value, (list, tuple)) or len(value) != dp_size:
            raise ShareError(
                f"argument {name} must be a list with one item for each of {dp_size} dp ranks, got "
                f"{type(value).__name__}",
                argument=name,
            )
    return (
        tuple([value[dp_rank] for dp_rank in dp_rank_mapping] for value in args),
        {name: [value[dp_rank] for dp_rank in dp_rank_mapping] for name, value in kwargs.items()},
    )


def collect_nd_compute(collect_mask: Sequence[bool], worker_group: Any, output: Sequence[Any]) -> list[Any]:
    """Return the results that count, in rank order.

    Raises:
        ShareError: There is not one result per entry of the mask.
    """
    del worker_group
    if len(output) != len(collect_mask):
        raise ShareError(f"{len(output)} results for a collect mask of {len(collect_mask)} ranks")
    return [result for result, counts in zip(output, collect_mask, strict=True) if counts]


def dispatch_nd_compute_dataproto(
    dp_rank_mapping: Sequence[int], dp_size: int, worker_group: Any, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """Cut every argument into one share per dp rank; rank ``i`` gets the share of ``dp_rank_mapping[i]``.

    Raises:
        ShareError: An argument has no rows.
        UnevenSplitError: The rows do not divide.
    """
    columns, named = split_rows(dp_size, Arguments(args, kwargs), None, "a dispatch function").columns()
    return dispatch_nd_compute(dp_rank_mapping, dp_size, worker_group, *columns, **named)


def collect_nd_compute_dataproto(collect_mask: Sequence[bool], worker_group: Any, output: Sequence[Any]) -> Any:
    """Join the results that count, in rank order; references become a ``DataProtoFuture``."""
    counting = collect_nd_compute(collect_mask, worker_group, output)
    return join_or_future(counting)


def join_or_future(output: Sequence[Any]) -> Any:
    """Join batches, or make the future of references."""
    if output and is_ref(output[0]):
        return DataProtoFuture.concat(list(output))
    return join(output, "the method")


def dispatch_lazy_compute_data_proto(
    mesh_name: str, worker_group: HasMeshes, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """Do ``dispatch_nd_compute_dataproto`` over the mesh that the workers registered under ``mesh_name``."""
    mesh = ask_mesh(worker_group, mesh_name)
    return dispatch_nd_compute_dataproto(mesh.dp_ranks, mesh.dp_size, worker_group, *args, **kwargs)


def collect_lazy_compute_data_proto(mesh_name: str, worker_group: HasMeshes, output: Sequence[Any]) -> Any:
    """Join the results that count in the mesh, by dp rank."""
    mesh = ask_mesh(worker_group, mesh_name)
    if len(output) != worker_group.world_size:
        raise ShareError(f"{len(output)} results for {worker_group.world_size} ranks")
    return join_or_future([output[rank] for rank in mesh.sources])


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> dict[str, Callable[..., Any]]:
    """Return the dispatch mode of a mesh, to be given to ``@register(dispatch_mode=...)``."""
    return {
        "dispatch_fn": partial(dispatch_lazy_compute_data_proto, mesh_name),
        "collect_fn": partial(collect_lazy_compute_data_proto, mesh_name),
    }


def mesh_name_of(functions: dict[str, Callable[..., Any]]) -> str | None:
    """Return the mesh's name if ``functions`` are those of ``make_nd_compute_dataproto_dispatch_fn``, else None."""
    dispatch_fn, collect_fn = functions.get("dispatch_fn"), functions.get("collect_fn")
    if (
        isinstance(dispatch_fn, partial)
        and isinstance(collect_fn, partial)
        and dispatch_fn.func is dispatch_lazy_compute_data_proto
        and collect_fn.func is collect_lazy_compute_data_proto
        and dispatch_fn.args == collect_fn.args
    ):
        return str(dispatch_fn.args[0])
    return None
