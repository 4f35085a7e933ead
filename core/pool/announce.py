"""Recording a pool's slots, states and generations."""

from __future__ import annotations

from core.cluster import Placement
from core.events import PoolChanged, PoolCreated, PoolStateChanged, SlotFacts
from core.pool.gate import PoolState
from core.pool.spec import PoolSpec
from core.runtime import Runtime


class PoolAnnouncer:
    """Emits the events of a pool without holding it; keeps the number of its generation."""

    def __init__(self, runtime: Runtime, pool: str) -> None:
        """Begin the next generation of that name."""
        self._runtime = runtime
        self._pool = pool
        self.generation = runtime.next_generation(pool)

    def __call__(self, state: PoolState, reason: str) -> None:
        """Record a new state."""
        self._runtime.bus.emit(
            PoolStateChanged(self._runtime.clock.now_ns(), self._pool, state.value, self.generation, reason)
        )

    def created(self, spec: PoolSpec, placement: Placement, state: PoolState) -> None:
        """Record a pool that has its slots."""
        self._runtime.bus.emit(
            PoolCreated(
                at_ns=self._runtime.clock.now_ns(),
                pool=self._pool,
                process_on_nodes=spec.process_on_nodes,
                slots=_slot_facts(placement),
                generation=self.generation,
                state=state.value,
                use_gpu=spec.use_gpu,
                max_colocate_count=spec.max_colocate_count,
            )
        )

    def changed(self, spec: PoolSpec, placement: Placement, operation_id: str) -> None:
        """Begin the next generation and record the slots that the pool has in it."""
        self.generation = self._runtime.next_generation(self._pool)
        self._runtime.bus.emit(
            PoolChanged(
                at_ns=self._runtime.clock.now_ns(),
                pool=self._pool,
                process_on_nodes=spec.process_on_nodes,
                slots=_slot_facts(placement),
                generation=self.generation,
                operation_id=operation_id,
            )
        )


def _slot_facts(placement: Placement) -> tuple[SlotFacts, ...]:
    return tuple(SlotFacts(s.index, s.node, s.node_index, s.local_index) for s in placement.slots)
