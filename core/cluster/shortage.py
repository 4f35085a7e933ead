"""Why a pool cannot be placed: a pure comparison of the request with the resources of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.cluster.base import ReserveRequest
from core.errors import PlacementError


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """The total resources of a node."""

    node_id: str
    address: str
    total: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved bundle on a node."""

    node_id: str
    holder: str
    bundle: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a request does not fit; ``hopeless`` when it would not fit on these nodes even if all were free."""

    error: PlacementError
    hopeless: bool


def pinned(request: ReserveRequest) -> ReserveRequest:
    """Pin a request to its node: Ray gives each node a resource named by its address, of which a bundle takes a bit."""
    if not request.node:
        return request
    return replace(request, bundle={**request.bundle, f"node:{request.node}": 0.001})


def explain_shortage(
    request: ReserveRequest, rooms: Sequence[NodeRoom], reservations: Sequence[Reservation]
) -> Shortage | None:
    """Compare ``request`` with what the nodes have; None when it fits.

    Groups are placed greedily, the largest first, each on the node where it fits most tightly: with equal bundles per
    group that finds a placement whenever there is one for a single group, and is close to it for several.
    """
    free = {room.node_id: _free(room, reservations) for room in rooms}
    if _fits(request, free):
        return None
    hopeless = not _fits(request, {room.node_id: dict(room.total) for room in rooms})
    n_bundles = sum(request.process_on_nodes)
    needed = {name: amount * n_bundles for name, amount in request.bundle.items()}
    total = {name: sum(room.total.get(name, 0.0) for room in rooms) for name in needed}
    available = {name: sum(left.get(name, 0.0) for left in free.values()) for name in needed}
    lines = [
        f"pool {request.pool} {list(request.process_on_nodes)} cannot be placed: {n_bundles} bundles of "
        f"{_words(request.bundle)} need {_words(needed)}, {_words(available)} available"
        + ("" if available == total else f" of {_words(total)}")
    ]
    for room in rooms:
        capacity = _capacity(free[room.node_id], request.bundle)
        holders = _holders(room, reservations)
        lines.append(
            f"  node {room.address}: {_words({name: free[room.node_id].get(name, 0.0) for name in needed})} free, "
            f"room for {capacity} of these bundles" + (f"; held by {holders}" if holders else "")
        )
    lines.append(_way_out(request, free, hopeless))
    error = PlacementError(
        "\n".join(lines),
        pool=request.pool,
        bundle=tuple(request.bundle.items()),
        n_bundles=n_bundles,
        needed=tuple(needed.items()),
        available=tuple(available.items()),
        hopeless=hopeless,
    )
    return Shortage(error, hopeless)


def _free(room: NodeRoom, reservations: Sequence[Reservation]) -> dict[str, float]:
    left = dict(room.total)
    for held in reservations:
        if held.node_id == room.node_id:
            for name, amount in held.bundle.items():
                left[name] = left.get(name, 0.0) - amount
    return left


def _capacity(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    """Count how many bundles fit into what is free."""
    return max(
        0, min((int((free.get(name, 0.0) + 1e-9) // amount) for name, amount in bundle.items() if amount), default=0)
    )


def _fits(request: ReserveRequest, free: Mapping[str, Mapping[str, float]]) -> bool:
    capacity = {node: _capacity(left, request.bundle) for node, left in free.items()}
    for n_processes in sorted(request.process_on_nodes, reverse=True):
        homes = [node for node, room in capacity.items() if room >= n_processes]
        if not homes:
            return False
        capacity[min(homes, key=lambda node: capacity[node])] -= n_processes
    return True


def _holders(room: NodeRoom, reservations: Sequence[Reservation]) -> str:
    counts: dict[str, int] = {}
    for held in reservations:
        if held.node_id == room.node_id:
            counts[held.holder] = counts.get(held.holder, 0) + 1
    return ", ".join(f"{holder} ({n} bundles)" for holder, n in sorted(counts.items()))


def _way_out(request: ReserveRequest, free: Mapping[str, Mapping[str, float]], hopeless: bool) -> str:
    best = max((_capacity(left, request.bundle) for left in free.values()), default=0)
    if not hopeless:
        return "close another pool, wait for it, or ask for fewer processes"
    hint = f"; the node with the most room takes {best}" if best else ""
    return (
        f"ask for fewer processes per node{hint}, a smaller max_colocate_count (CPUs per bundle), or start Ray with "
        f"more logical resources: core.init(num_cpus=..., num_gpus=...) or podium run --num-cpus --num-gpus"
    )


def _words(amounts: Mapping[str, float]) -> str:
    return ", ".join(
        f"{max(amount, 0.0):g} {name}{'s' if name in {'CPU', 'GPU'} and amount != 1 else ''}"
        for name, amount in amounts.items()
    )


def no_room(
    request: ReserveRequest, needed: Mapping[str, float], free: Mapping[str, float], total: Mapping[str, float]
) -> PlacementError:
    """Return the error for a request that does not fit on a single machine."""

    def words(amounts: Mapping[str, float]) -> str:
        return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"

    n_bundles = sum(request.process_on_nodes)
    available = {name: free.get(name, 0.0) for name in needed}
    return PlacementError(
        f"pool {request.pool} {list(request.process_on_nodes)} cannot be placed: {n_bundles} bundles of "
        f"{words(request.bundle)} need {words(needed)}, free are {words(available)}",
        pool=request.pool,
        bundle=tuple(request.bundle.items()),
        n_bundles=n_bundles,
        needed=tuple(needed.items()),
        available=tuple(available.items()),
        hopeless=any(amount > total.get(name, 0.0) for name, amount in needed.items()),
    )


def not_in_time(request: ReserveRequest, timeout_s: float) -> PlacementError:
    """Return the error for slots that were not reserved in time although enough resources seem to be free."""
    return PlacementError(
        f"pool {request.pool} {list(request.process_on_nodes)} did not get its slots within {timeout_s:g} s although "
        f"enough resources seem to be free; check the cluster with `ray status`",
        pool=request.pool,
        bundle=tuple(request.bundle.items()),
        n_bundles=sum(request.process_on_nodes),
    )
