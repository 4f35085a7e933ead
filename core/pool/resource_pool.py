"""Resource pools: slots for worker processes, reserved on first use and given back by ``close``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from core import runtime as runtimes
from core.cluster import Placement, ReserveRequest
from core.cluster.holdings import Holding, give_back, occupy, slot_keys, vacate
from core.errors import PlacementError, PoolClosedError, PoolSpecError
from core.finalizers import Finalizer
from core.pool.announce import PoolAnnouncer
from core.pool.gate import Gate, PoolState
from core.pool.spec import PoolSpec, ResourcePool
from core.pool.tenant import Tenant


class RayResourcePool(ResourcePool):
    """Slots on the cluster: a bundle ``{CPU: max_colocate_count, GPU: 1}`` per process.

    The slots are reserved by the first worker group, or by ``get_placement_groups``; ``close``, or leaving a ``with``
    block, ends the groups and gives them back. A detached pool outlives a ``with`` block and the driver: only ``close``
    ends it.
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
        detached: bool = False,
        accelerator_type: str | None = None,
        *,
        timeout_s: float = 60.0,
        runtime: runtimes.Runtime | None = None,
    ) -> None:
        """Describe a pool; nothing is reserved yet.

        Args:
            process_on_nodes: Processes per node, such as ``[4]`` or ``[1, 3]``.
            use_gpu: Whether each process gets its own GPU (a logical one where Ray was started with some).
            name_prefix: The pool's name, in the record and for commands; "pool" with a number when not given.
            max_colocate_count: How many groups may share the slots, and the CPUs of a bundle.
            detached: Whether the slots outlive the driver.
            accelerator_type: A resource that the node must have, such as "A100".
            timeout_s: How long to wait for the slots.
            runtime: The driver's surroundings; the current ones when not given.

        Raises:
            PoolSpecError: A count is not a whole number above zero, or the time is not positive.
            UsageError: A pool that lives has this name.
        """
        super().__init__(process_on_nodes, max_colocate_count)
        if timeout_s <= 0:
            raise PoolSpecError(f"a pool's timeout_s must be above zero, got {timeout_s}")
        self._spec = PoolSpec.checked(process_on_nodes, use_gpu, max_colocate_count, accelerator_type, detached)
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._placement: Placement | None = None
        self._reserved_as: tuple[str, str] | None = None
        self._request: ReserveRequest | None = None
        self._holding: Holding | None = None
        self._successors: tuple[RayResourcePool, ...] = ()
        self._owners: tuple[RayResourcePool, ...] = ()
        self._parents: tuple[RayResourcePool, ...] = ()
        self._tenants: weakref.WeakValueDictionary[str, Tenant] = weakref.WeakValueDictionary()
        self.runtime = runtime or runtimes.current()
        self.name = self.runtime.claim_pool_name(name_prefix, self)
        self._announcer = PoolAnnouncer(self.runtime, self.name)
        self.gate = Gate(self.name, self._announcer)
        self.gate.generation = self.generation
        self._finalizer: Finalizer | None = None

    @property
    def name_prefix(self) -> str:
        """Return the pool's name."""
        return self.name

    @property
    def use_gpu(self) -> bool:
        """Whether each process gets a GPU."""
        return self._spec.use_gpu

    @property
    def detached(self) -> bool:
        """Whether the slots outlive the driver."""
        return self._spec.detached

    @property
    def accelerator_type(self) -> str | None:
        """Return the resource that the node must have, if any."""
        return self._spec.accelerator_type

    @property
    def generation(self) -> int:
        """Return how often this pool, and earlier ones of its name, have had other slots or groups; from 1."""
        return self._announcer.generation

    @property
    def present(self) -> RayResourcePool:
        """Return the pool that has this one's slots now: itself, or the one it was merged into.

        Raises:
            PoolClosedError: It was split; the message names the pools there are.
        """
        if not self._successors:
            return self
        if len(self._successors) == 1:
            return self._successors[0].present
        raise PoolClosedError(
            f"pool {self.name} was {self.gate.reason}; take one of those: controller.pool(name) gives it",
            state=self.gate.state.value,
        )

    @property
    def state(self) -> PoolState:
        """Return what the pool is doing."""
        return self.gate.state

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups on the pool."""
        return tuple(sorted(self._tenants.keys()))

    def add_node(self, process_count: int) -> None:
        """Add a node, before the slots are reserved.

        Raises:
            PoolSpecError: The slots are reserved already, or the count makes no sense.
        """
        if self._placement is not None:
            raise PoolSpecError(f"pool {self.name} has its slots already, a node cannot be added")
        super().add_node(process_count)

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str = "cuda"
    ) -> list[Any]:
        """Return the cluster's own handles of the slots, one per node in rank order, reserving them on first use.

        ``name`` names them on the cluster.

        Raises:
            PlacementError: They do not fit, or were not free in time.
            PoolSpecError: They were reserved with another strategy or device before.
        """
        return list(self.placement(strategy, device_name, name).native)

    @property
    def pgs(self) -> list[Any] | None:
        """Return what ``get_placement_groups`` does once the slots are reserved, None before."""
        return None if self._placement is None else list(self._placement.native)

    def placement(
        self, strategy: str = "STRICT_PACK", device_name: str = "cuda", cluster_name: str | None = None
    ) -> Placement:
        """Return the slots, reserving them on first use; errors as in ``get_placement_groups``."""
        with self._lock:
            if self.gate.state is PoolState.CLOSED:
                how = f": it was {self.gate.reason}" if self.gate.reason else ""
                raise PoolClosedError(f"pool {self.name} is closed{how}", state="closed")
            bundle = self._spec.bundle(device_name)
            asked = (strategy, "+".join(sorted(bundle)))
            if self._placement is not None:
                if self._reserved_as not in (None, asked):
                    raise PoolSpecError(
                        f"pool {self.name} was reserved as {self._reserved_as}, it cannot become {asked}; make another"
                    )
                return self._placement
            if not self._spec.process_on_nodes:
                raise PoolSpecError(f"pool {self.name} has no nodes; pass process_on_nodes or call add_node")
            request = ReserveRequest(
                pool=cluster_name or self.name,
                process_on_nodes=self._spec.process_on_nodes,
                bundle=bundle,
                strategy=strategy,
                lifetime="detached" if self._spec.detached else None,
            )
            cluster = self.runtime.cluster
            self._placement = cluster.reserve(request, self._timeout_s)
            self._request = request
            self._reserved_as = asked
            self._holding = Holding(self.name)
            self.runtime.holdings.exchange((), {self._holding: self._placement})
            self._end_with_holding()
            self._announce(self._placement)
            return self._placement

    def _end_with_holding(self) -> None:
        """Give the slots back when this pool is collected, unless they are to outlive the driver."""
        if self._holding is not None and not self._spec.detached:
            self._finalizer = Finalizer(self, give_back, self.runtime.holdings, self.runtime.cluster, self._holding)

    @property
    def placement_now(self) -> Placement:
        """Return the slots that are reserved.

        Raises:
            PoolClosedError: There are none: the pool was closed, or never used.
        """
        placement = self._placement
        if placement is None:
            raise PoolClosedError(f"pool {self.name} has no slots", state=self.gate.state.value)
        return placement

    def _announce(self, placement: Placement) -> None:
        self._spec = self._spec.fitted_to(placement)
        self._announcer.created(self._spec, placement, self.gate.state)

    def next_generation(self, operation_id: str) -> None:
        """Count a change of the slots or of the groups on them, and say so."""
        self._announcer.changed(self._spec, self.placement_now, operation_id)
        self.gate.generation = self.generation

    def placement_or_reserved(self, strategy: str = "STRICT_PACK", device_name: str = "cuda") -> Placement:
        """Return the slots as they were reserved, or reserve them as asked; errors as in ``get_placement_groups``."""
        return self._placement or self.placement(strategy, device_name)

    def adopt_slots(self, placement: Placement, parents: Sequence[RayResourcePool]) -> None:
        """Take slots that ``parents`` have reserved; they stay theirs, and the parents live as long as this pool."""
        self._placement = placement
        self._parents = tuple(parents)
        self._announce(placement)

    def slots_moved(self, placement: Placement) -> None:
        """Have the slots where the cluster has put them since their node died; it is a new generation of the pool."""
        self._placement = placement
        if self._holding is not None:
            self.runtime.holdings.exchange((self._holding,), {self._holding: placement})
        self.next_generation("")

    def hold_slots(self, placement: Placement, holding: Holding) -> None:
        """Have ``placement`` as the slots from now on; ``holding`` is this pool's hold on them, taken already."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer.detach()
            self._placement, self._holding = placement, holding
            self._spec = self._spec.fitted_to(placement)
            self._end_with_holding()

    def begin(self, placement: Placement, holding: Holding, made_of: RayResourcePool) -> None:
        """Have slots of ``made_of``, asked of the cluster as that pool's were, and say so."""
        self._request, self._reserved_as = made_of._request, made_of._reserved_as
        self.hold_slots(placement, holding)
        self._announce(placement)

    def give_way(self, successors: Sequence[RayResourcePool], reason: str) -> None:
        """End in favor of pools that have the slots now; closing this one closes them."""
        self._successors = tuple(successors)
        for pool in successors:
            pool.add_owner(self)
        with self._lock:
            if self._finalizer is not None:
                self._finalizer.detach()
            self._finalizer = self._holding = self._placement = None
        self.gate.end(PoolState.CLOSED, reason)
        self.runtime.forget_pool(self.name)

    @property
    def placement_if_any(self) -> Placement | None:
        """Return the slots, None when none are reserved."""
        return self._placement

    @property
    def request(self) -> ReserveRequest:
        """Return how this pool's slots are asked of the cluster; sizes are those of now."""
        if self._request is None:
            return ReserveRequest(self.name, self._spec.process_on_nodes, self._spec.bundle("cuda"))
        return replace(self._request, pool=self.name, process_on_nodes=self._spec.process_on_nodes)

    @property
    def likeness(self) -> tuple[tuple[str, Any], ...]:
        """Return the settings that pools must share to become one."""
        request = self.request
        return (
            ("use_gpu", self.use_gpu),
            ("max_colocate_count", self.max_colocate_count),
            ("accelerator_type", self.accelerator_type),
            ("detached", self.detached),
            ("bundle", tuple(sorted(request.bundle.items()))),
            ("strategy", request.strategy),
        )

    @property
    def holding(self) -> Holding | None:
        """Return this pool's own hold on its slots; None when it has none, or they are another pool's."""
        return self._holding

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """Return the groups on the pool, by name."""
        return tuple(tenant for _, tenant in sorted(self._tenants.items()))

    def admit(self, group: Tenant) -> None:
        """Take a worker group onto the slots.

        Raises:
            PlacementError: As many groups as the slots have room for are on one of them.
        """
        with self._lock:
            tenants = self.runtime.slot_tenants
            fullest = max((tenants.get(key, set()) for key in self._slot_keys()), key=len, default=set())
            if len(fullest) >= self.max_colocate_count:
                raise PlacementError(
                    f"pool {self.name} has {len(fullest)} groups ({', '.join(sorted(fullest))}) on a slot and "
                    f"max_colocate_count={self.max_colocate_count}: there is no room for {group.name}; close a group "
                    f"or make the pool with a larger max_colocate_count",
                    pool=self.name,
                )
            self.place(group)

    def place(self, group: Tenant) -> None:
        """Put a group on the slots without checking whether there is room."""
        with self._lock:
            keys = self._slot_keys()
            self._tenants[group.name] = group
            occupy(self.runtime.slot_tenants, keys, group.name)
            # Takes no lock, so the collector may do it.
            weakref.finalize(group, vacate, self.runtime.slot_tenants, keys, group.name)

    def _slot_keys(self) -> Sequence[tuple[int, int]]:
        """Return what names each slot, also in pools made of this one's slots."""
        return slot_keys(self.placement_now)

    def dismiss(self, name: str) -> None:
        """Forget a group that was closed."""
        with self._lock:
            self._tenants.pop(name, None)
            if self._placement is not None:
                vacate(self.runtime.slot_tenants, self._slot_keys(), name)

    def resize(self, process_on_nodes: Sequence[int], *, deadline_s: float = 120.0) -> None:
        """Give the pool other slots, now; its groups get new workers on them, with their state, and stay valid.

        Raises:
            UsageError: The sizes make no sense, or are those of now.
            LiveStateError: A group's class does not say how to keep its state.
            PlacementError: The slots do not fit on the cluster.
            StateError: The pool cannot be changed now, or another change is under way.
            PodiumError: It was tried and failed; everything is as it was.
        """
        self.runtime.steering().resize(self.name, process_on_nodes, deadline_s)

    def close(self) -> None:
        """End the groups on the pool and give its slots back; may be called twice.

        A pool that was split or merged releases the pools that came of it; those without another owner are closed.
        """
        if not self.gate.end(PoolState.CLOSED):
            successors, self._successors = self._successors, ()
            for pool in successors:
                pool.release_by(self)
            return
        for tenant in list(self._tenants.values()):
            tenant.close()
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            elif self._holding is not None:
                give_back(self.runtime.holdings, self.runtime.cluster, self._holding)
            self._placement = self._holding = None
            self._parents = ()
        self.runtime.forget_pool(self.name)

    def add_owner(self, pool: RayResourcePool) -> None:
        """Live as long as ``pool``, which this one's slots came from, is not closed either."""
        self._owners = (*self._owners, pool)

    def release_by(self, owner: RayResourcePool) -> None:
        """Close when ``owner`` was the last pool that this one came of and that its owner has not closed."""
        self._owners = tuple(pool for pool in self._owners if pool is not owner)
        if not self._owners:
            self.close()

    def release(self) -> None:
        """Do what is due when the driver is done: ``close``, or leave a detached pool with its detached groups."""
        if not self.detached:
            self.close()
            return
        for tenant in list(self._tenants.values()):
            tenant.release()

    def __enter__(self) -> RayResourcePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
