"""References on the driver or inside a worker, without knowing which cluster they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.cluster.base import Ref, shares_a_process
from core.cluster.local import LOCAL_NODE, LocalCluster
from core.cluster.local_refs import LocalRef
from core.cluster.ray_transport import NoDirectTransport, Offer


def fetch(refs: Sequence[Ref]) -> list[Any]:
    """Return the values behind ``refs``, in order; raise the first error."""
    if all(isinstance(ref, LocalRef) for ref in refs):
        return LocalCluster().fetch(refs)
    from core.cluster.on_ray import RayCluster  # here, because a local cluster must not load Ray

    return RayCluster.connect().fetch(refs)


def offer(memory: Any, transport: str) -> Offer:
    """Keep a tensor in this worker, for others to take by the cluster's direct transport of that name.

    Raises:
        NoDirectTransport: The cluster has none, or it cannot transfer this tensor.
    """
    if shares_a_process():
        raise NoDirectTransport("the workers of a local cluster share the driver's process")
    from core.cluster.on_ray import RayCluster

    return RayCluster.connect().offer(memory, transport)


def take(offers: Sequence[Offer]) -> list[Any]:
    """Return the tensors that other workers keep, in order, by direct transport.

    Raises:
        NoDirectTransport: One cannot be transferred that way.
    """
    from core.cluster.on_ray import RayCluster

    return RayCluster.connect().take(offers)


def take_by_store(offers: Sequence[Offer], timeout_s: float) -> list[Any]:
    """Return what other workers keep as read-only arrays of bytes in the cluster's shared memory, in order.

    Raises:
        WorkerDiedError: A worker has ended, and its tensors are lost.
        TimeoutError: One has not responded after ``timeout_s``.
    """
    from core.cluster.on_ray import RayCluster

    return RayCluster.connect().take_by_store(offers, timeout_s)


def assigned_devices() -> tuple[str, ...]:
    """Return the ids of the accelerators that the cluster gave this worker's process, none on a local cluster."""
    if shares_a_process():
        return ()
    from core.cluster.on_ray import assigned_devices as given  # here, because a local cluster must not load Ray

    return given()


def node_address() -> str:
    """Return the cluster's address of the node of this process."""
    if shares_a_process():
        return LOCAL_NODE
    from core.cluster.on_ray import node_address as given  # here, because a local cluster must not load Ray

    return given()


def remote_function(function: Callable[..., Any]) -> Any:
    """Return what runs a function in another process of the cluster, as ``ray.remote`` has it."""
    from core.cluster.on_ray import remote_function as made

    return made(function)


def is_ref(value: object) -> bool:
    """Return whether ``value`` is a reference of either cluster; a local cluster must not load Ray to find out."""
    kind = type(value)
    return kind is LocalRef or (kind.__name__ == "ObjectRef" and kind.__module__.split(".")[0] == "ray")
