"""Resource pools: slots for worker processes, reserved on first use and given back by ``close``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from core import runtime as runtimes
from core.cluster import Placement, ReserveRequest
from core.endings import Ending
from core.errors import PlacementError, PoolClosedError, PoolSpecError
from core.events import PoolCreated, PoolStateChanged, SlotFacts
from core.pool.gate import Gate, PoolState
from core.pool.spec import PoolSpec


class Tenant(Protocol):
    """A worker group, as far as its pool looks at it."""

    @property
    def name(self) -> str:
        """Return the group's name."""
        ...

    def close(self) -> None:
        """End its workers."""
        ...

    def let_go(self) -> None:
        """End its workers unless they are to outlive the driver."""
        ...


class ResourcePool:
    """A list of processes per node."""

    def __init__(
        self, process_on_nodes: Sequence[int] | None = None, max_colocate_count: int = 10, n_gpus_per_node: int = 8
    ) -> None:
        """Describe a pool.

        Raises:
            PoolSpecError: A count is no whole number above zero.
        """
        self._spec = PoolSpec.checked(process_on_nodes, True, max_colocate_count)
        self.n_gpus_per_node = n_gpus_per_node

    @property
    def store(self) -> list[int]:
        """Return the processes per node, as a list of the caller's own."""
        return list(self._spec.process_on_nodes)

    @property
    def max_colocate_count(self) -> int:
        """Return how many groups may share the pool."""
        return self._spec.max_colocate_count

    @property
    def world_size(self) -> int:
        """Return the number of processes."""
        return self._spec.world_size

    def add_node(self, process_count: int) -> None:
        """Add a node with this many processes.

        Raises:
            PoolSpecError: The count is no whole number above zero.
        """
        self._spec = PoolSpec.checked(
            [*self._spec.process_on_nodes, process_count],
            self._spec.use_gpu,
            self._spec.max_colocate_count,
            self._spec.accelerator_type,
            self._spec.detached,
        )

    def local_world_size_list(self) -> list[int]:
        """Return, by rank, how many processes are on the rank's node."""
        return [count for count in self._spec.process_on_nodes for _ in range(count)]

    def local_rank_list(self) -> list[int]:
        """Return, by rank, the rank among the processes of its node."""
        return [local_rank for count in self._spec.process_on_nodes for local_rank in range(count)]


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
    ) -> None:
        """Describe a pool; nothing is reserved yet.

        Args:
            process_on_nodes: Processes per node, such as ``[4]`` or ``[1, 3]``.
            use_gpu: Whether each process gets a GPU of its own (a logical one where Ray was told of some).
            name_prefix: The pool's name, in the record and for commands; "pool" with a number when not given.
            max_colocate_count: How many groups may share the slots, and the CPUs of a bundle.
            detached: Whether the slots outlive the driver.
            accelerator_type: A resource that the node must have, such as "A100".
            timeout_s: How long to wait for the slots.

        Raises:
            PoolSpecError: A count is no whole number above zero, or the time is not positive.
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
        self._parents: tuple[RayResourcePool, ...] = ()
        self._tenants: weakref.WeakValueDictionary[str, Tenant] = weakref.WeakValueDictionary()
        self.runtime = runtimes.current()
        self.generation = 1
        self.name = self.runtime.claim_pool_name(name_prefix, self)
        self.gate = Gate(self.name, _Announcer(self.runtime, self.name))
        self._ending: Ending | None = None

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

    def placement(
        self, strategy: str = "STRICT_PACK", device_name: str = "cuda", cluster_name: str | None = None
    ) -> Placement:
        """Return the slots, reserving them on first use; errors as in ``get_placement_groups``."""
        with self._lock:
            if self.gate.state is PoolState.CLOSED:
                raise PoolClosedError(f"pool {self.name} is closed", state="closed")
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
            self._reserved_as = asked
            if not self._spec.detached:
                self._ending = Ending(self, cluster.release, self._placement)
            self._announce(self._placement)
            return self._placement

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
        sizes: dict[int, int] = {}
        for slot in placement.slots:
            sizes[slot.node_index] = sizes.get(slot.node_index, 0) + 1
        # The slots' order is the cluster's: the list of processes per node follows it.
        self._spec = PoolSpec.checked(
            [sizes[index] for index in sorted(sizes)],
            self._spec.use_gpu,
            self._spec.max_colocate_count,
            self._spec.accelerator_type,
            self._spec.detached,
        )
        self.runtime.bus.emit(
            PoolCreated(
                at_ns=self.runtime.clock.now_ns(),
                pool=self.name,
                process_on_nodes=self._spec.process_on_nodes,
                slots=tuple(SlotFacts(s.index, s.node, s.node_index, s.local_index) for s in placement.slots),
                generation=self.generation,
                state=self.gate.state.value,
                use_gpu=self._spec.use_gpu,
                max_colocate_count=self._spec.max_colocate_count,
            )
        )

    def placement_or_reserved(self, strategy: str = "STRICT_PACK", device_name: str = "cuda") -> Placement:
        """Return the slots as they were reserved, or reserve them as asked; errors as in ``get_placement_groups``."""
        return self._placement or self.placement(strategy, device_name)

    def adopt_slots(self, placement: Placement, parents: Sequence[RayResourcePool]) -> None:
        """Take slots that ``parents`` have reserved; they stay theirs, and the parents live as long as this pool."""
        self._placement = placement
        self._parents = tuple(parents)
        self._announce(placement)

    def admit(self, group: Tenant) -> None:
        """Take a worker group onto the slots.

        Raises:
            PlacementError: As many groups as the slots have room for are on one of them.
        """
        with self._lock:
            keys = self._slot_keys()
            tenants = self.runtime.slot_tenants
            fullest = max((tenants.get(key, set()) for key in keys), key=len, default=set())
            if len(fullest) >= self.max_colocate_count:
                raise PlacementError(
                    f"pool {self.name} has {len(fullest)} groups ({', '.join(sorted(fullest))}) on a slot and "
                    f"max_colocate_count={self.max_colocate_count}: there is no room for {group.name}; close a group "
                    f"or make the pool with a larger max_colocate_count",
                    pool=self.name,
                )
            self._tenants[group.name] = group
            for key in keys:
                tenants.setdefault(key, set()).add(group.name)
            # Takes no lock, so the collector may do it.
            weakref.finalize(group, _leave_slots, tenants, keys, group.name)

    def _slot_keys(self) -> list[tuple[int, int]]:
        """Return what names each slot, also in pools made of this one's slots."""
        placement = self.placement_now
        return [(id(placement.native[slot.group_index]), slot.bundle_index) for slot in placement.slots]

    def dismiss(self, name: str) -> None:
        """Forget a group that was closed."""
        with self._lock:
            self._tenants.pop(name, None)
            if self._placement is not None:
                _leave_slots(self.runtime.slot_tenants, self._slot_keys(), name)

    def close(self) -> None:
        """End the groups on the pool and give its slots back; may be called twice."""
        if not self.gate.end(PoolState.CLOSED):
            return
        for tenant in list(self._tenants.values()):
            tenant.close()
        with self._lock:
            if self._ending is not None:
                self._ending()
            elif self._placement is not None and not self._parents:
                self.runtime.cluster.release(self._placement)
            self._placement = None
            self._parents = ()
        self.runtime.forget_pool(self.name)

    def let_go(self) -> None:
        """Do what is due when the driver is done: ``close``, or leave a detached pool with its detached groups."""
        if not self.detached:
            self.close()
            return
        for tenant in list(self._tenants.values()):
            tenant.let_go()

    def __enter__(self) -> RayResourcePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()


def _leave_slots(tenants: dict[tuple[int, int], set[str]], keys: Sequence[tuple[int, int]], name: str) -> None:
    for key in keys:
        on_slot = tenants.get(key)
        if on_slot is not None:
            on_slot.discard(name)
            if not on_slot:
                tenants.pop(key, None)


class _Announcer:
    """Tells the bus of a pool's new state, without holding the pool."""

    def __init__(self, runtime: runtimes.Runtime, pool: str) -> None:
        self._runtime = runtime
        self._pool = pool

    def __call__(self, state: PoolState, reason: str) -> None:
        self._runtime.bus.emit(
            PoolStateChanged(self._runtime.clock.now_ns(), self._pool, state.value, generation=1, reason=reason)
        )
