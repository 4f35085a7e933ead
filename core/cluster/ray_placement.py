"""Slots and nodes as read from Ray's tables: pure, so that only one file needs Ray."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from core.cluster import ray_names
from core.cluster.addresses import address_key
from core.cluster.base import Placement, Slot
from core.cluster.shortage import NodeRoom, Reservation


def placement_of(
    pool: str,
    groups: Sequence[Any],
    node_ids: Callable[[Any], Mapping[int, str]],
    addresses: Mapping[str, str],
    in_rank_order: bool = False,
) -> Placement:
    """Number the bundles of placement groups; one that is on no live node has no address.

    ``in_rank_order`` sorts the groups by the address of their node, equal ones as they were asked for.
    """
    nodes = [(group, node_ids(group)) for group in groups]
    if in_rank_order:
        nodes.sort(key=lambda both: address_key(addresses.get(both[1][0], "")))
    slots: list[Slot] = []
    for group_index, (_, by_bundle) in enumerate(nodes):
        for bundle_index in sorted(by_bundle):
            address = addresses.get(by_bundle[bundle_index], "")
            slots.append(Slot(len(slots), address, group_index, bundle_index, group_index, bundle_index))
    return Placement(pool, tuple(slots), tuple(group for group, _ in nodes))


def rooms_of(nodes: Iterable[Mapping[str, Any]]) -> list[NodeRoom]:
    """Return what the live nodes have."""
    return [
        NodeRoom(node["NodeID"], node["NodeManagerAddress"], dict(node["Resources"])) for node in nodes if node["Alive"]
    ]


def reservations_of(table: Mapping[str, Mapping[str, Any]], own: Collection[str]) -> list[Reservation]:
    """Return the bundles that others hold; the groups of the ids ``own`` stand for the request itself."""
    return [
        Reservation(entry["bundles_to_node_id"][index], ray_names.shown_name(entry["name"]), dict(bundle))
        for entry in table.values()
        if entry["state"] in {"CREATED", "RESCHEDULING"} and entry["placement_group_id"] not in own
        for index, bundle in entry["bundles"].items()
        if entry["bundles_to_node_id"].get(index)
    ]
