"""What core needs of a cluster, and the two clusters it knows."""

from core.cluster.base import (
    ActorHandle,
    Cluster,
    Outcome,
    Placement,
    Ref,
    ReserveRequest,
    Slot,
    SpawnRequest,
    StoreRoom,
    Submitted,
    adopt_environ,
    environ,
)

__all__ = [
    "ActorHandle",
    "Cluster",
    "Outcome",
    "Placement",
    "Ref",
    "ReserveRequest",
    "Slot",
    "SpawnRequest",
    "StoreRoom",
    "Submitted",
    "adopt_environ",
    "environ",
]
