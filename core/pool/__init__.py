"""Resource pools: what they are asked to be, their slots, their states and the gate."""

from core.pool.derive import SubRayResourcePool, merge_resource_pool, split_resource_pool
from core.pool.gate import LEGAL_MOVES, Gate, PoolState
from core.pool.manager import ResourcePoolManager
from core.pool.placements import extract_pg_from_exist, sort_placement_group_by_node_ip
from core.pool.resource_pool import RayResourcePool
from core.pool.spec import PoolSpec, ResourcePool, device_resource

__all__ = [
    "LEGAL_MOVES",
    "Gate",
    "PoolSpec",
    "PoolState",
    "RayResourcePool",
    "ResourcePool",
    "ResourcePoolManager",
    "SubRayResourcePool",
    "device_resource",
    "extract_pg_from_exist",
    "merge_resource_pool",
    "sort_placement_group_by_node_ip",
    "split_resource_pool",
]
