"""References, wherever one is: on the driver or inside a worker, without knowing the cluster they came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.cluster.base import Ref
from core.cluster.local import LocalCluster, LocalRef


def fetch(refs: Sequence[Ref]) -> list[Any]:
    """Return the values behind ``refs``, in order; raise the first error."""
    if all(isinstance(ref, LocalRef) for ref in refs):
        return LocalCluster().fetch(refs)
    from core.cluster.on_ray import RayCluster  # here, because a local cluster must not load Ray

    return RayCluster.connect().fetch(refs)


def is_ref(value: object) -> bool:
    """Tell whether ``value`` is a reference of either cluster; a local cluster must not load Ray to find out."""
    kind = type(value)
    return kind is LocalRef or (kind.__name__ == "ObjectRef" and kind.__module__.split(".")[0] == "ray")
