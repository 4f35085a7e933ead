"""Placement groups by themselves: sorted by their nodes, or taken from pools that hold them already."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from core import runtime as runtimes
from core.cluster.addresses import address_key
from core.errors import PoolSpecError
from core.pool.resource_pool import RayResourcePool
from core.pool.spec import ResourcePool


def sort_placement_group_by_node_ip(pgs: Sequence[Any]) -> list[Any]:
    """Return the placement groups in the order of their nodes' addresses: 10.0.0.9 stands before 10.0.0.10.

    Groups on one node keep their order, so that ranks are the same after a restart on the same nodes.
    """
    nodes = [_nodes(group)[0] for group in pgs]
    return [pgs[index] for index in sorted(range(len(pgs)), key=lambda index: address_key(nodes[index]))]


def extract_pg_from_exist(
    resource_pools: Mapping[str, RayResourcePool], src_role_names: Collection[str], resource_pool: ResourcePool
) -> list[Any]:
    """Return placement groups of the roles' pools that have room for the nodes of ``resource_pool``, one for each.

    The node with the most processes gets the largest group. The groups stay those of the pools they came from.

    Raises:
        PoolSpecError: The roles' pools have too few groups, or one too small.
        PlacementError: A role's pool had no slots yet and does not get them.
    """
    groups = [
        group
        for role, pool in resource_pools.items()
        if role in src_role_names
        for group in pool.get_placement_groups()
    ]
    groups.sort(key=lambda group: len(_nodes(group)), reverse=True)
    wanted = resource_pool.store
    by_size = sorted(range(len(wanted)), key=lambda index: wanted[index], reverse=True)
    sizes = [len(_nodes(group)) for group in groups]
    if len(sizes) < len(wanted) or any(
        wanted[index] > size for index, size in zip(by_size, sizes[: len(wanted)], strict=True)
    ):
        raise PoolSpecError(
            f"a pool of {wanted} processes per node cannot be placed on the placement groups of "
            f"{', '.join(sorted(src_role_names)) or 'no role'}, which have {sizes} bundles"
        )
    chosen = dict(zip(by_size, groups, strict=False))
    return [chosen[index] for index in range(len(wanted))]


def _nodes(group: Any) -> list[str]:
    """Return the node's address of each bundle of a placement group."""
    return [slot.node for slot in runtimes.current().cluster.adopt("", [group]).slots]
