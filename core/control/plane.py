"""The control plane: takes commands from any thread and sees them through."""

from __future__ import annotations

import itertools
import threading
import uuid
from dataclasses import replace

from core.control.commands import Command, Operation, OperationState, Pause, Plan, PoolChange, PoolSnapshot
from core.errors import GenerationConflictError, StateError, UnknownNameError
from core.events import OperationChanged
from core.pool import PoolState, RayResourcePool
from core.runtime import Runtime

_KEPT_OPERATIONS = 1000


class RuntimeControl:
    """Commands on the pools of one runtime.

    Pausing and resuming only move a pool's gate, which is safe from any thread; no Ray handle is touched here. A pause
    is done when the calls in flight have left the gate.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Control the pools that ``runtime`` knows."""
        self._runtime = runtime
        self._lock = threading.RLock()
        self._operations: dict[str, Operation] = {}
        self._numbers = itertools.count(1)

    def pools(self) -> tuple[PoolSnapshot, ...]:
        """Return the pools that are not closed, by name."""
        return tuple(_snapshot(pool) for _, pool in sorted(self._runtime.pools().items()))

    def pool(self, name: str) -> PoolSnapshot:
        """Return one pool; errors as in ``ControlPlane``."""
        return _snapshot(self._find(name))

    def submit(self, command: Command) -> Operation:
        """Take a command; errors as in ``ControlPlane``."""
        pool = self._find(command.pool)
        with self._lock:
            if command.expected_generation not in (None, pool.generation):
                raise GenerationConflictError(
                    f"pool {pool.name} is at generation {pool.generation}, not {command.expected_generation}: it was "
                    f"changed since; look again",
                    state=pool.state.value,
                    expected=command.expected_generation or 0,
                    actual=pool.generation,
                )
            before = pool.state.value
            if isinstance(command, Pause):
                done = pool.gate.pause() is PoolState.PAUSED
            else:
                pool.gate.resume()
                self._overtake(pool)
                done = True
            state = OperationState.SUCCEEDED if done else OperationState.WAITING_FOR_SAFE_POINT
            operation = self._made(command, before, pool.state.value if done else "", state)
        if not done:
            self._await_drain(pool, operation, command.deadline_s)
        return operation

    def operation(self, operation_id: str) -> Operation:
        """Return an operation; errors as in ``ControlPlane``."""
        with self._lock:
            found = self._operations.get(operation_id)
        if found is None:
            raise UnknownNameError(f"there is no operation {operation_id!r}", name=operation_id)
        return found

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations of this run, the youngest last."""
        with self._lock:
            return tuple(self._operations.values())

    def plan(self, command: Command) -> Plan:
        """Return what a command would do; errors as in ``ControlPlane``."""
        pool = self._find(command.pool)
        sizes = tuple(pool.store)
        change = PoolChange(pool.name, sizes, sizes, pool.generation)
        return Plan(type(command).__name__.lower(), (change,), (), prepared=False)

    def cancel(self, operation_id: str) -> Operation:
        """Take back a pause that still waits for calls in flight; errors as in ``ControlPlane``."""
        operation = self.operation(operation_id)
        with self._lock:
            if operation.state is not OperationState.WAITING_FOR_SAFE_POINT:
                raise StateError(
                    f"operation {operation_id} is {operation.state.value}, only one that waits can be cancelled",
                    state=operation.state.value,
                )
            return self._take_back(self._find(operation.pool), operation, OperationState.CANCELLED, "")

    def _find(self, name: str) -> RayResourcePool:
        pools = self._runtime.pools()
        pool = pools.get(name)
        if not isinstance(pool, RayResourcePool):
            known = tuple(sorted(pools))
            raise UnknownNameError(
                f"there is no pool {name!r}; pools are: {', '.join(known) or 'none'}",
                name=name,
                known=known,
            )
        return pool

    def _made(self, command: Command, before: str, after: str, state: OperationState) -> Operation:
        now_ns = self._runtime.clock.now_ns()
        operation = Operation(
            id=f"op-{next(self._numbers)}-{uuid.uuid4().hex[:8]}",
            kind=type(command).__name__.lower(),
            pool=command.pool,
            who=command.who,
            state=state,
            created_ns=now_ns,
            updated_ns=now_ns,
            expected_generation=command.expected_generation,
            before=before,
            after=after,
        )
        self._keep(operation)
        return operation

    def _keep(self, operation: Operation) -> None:
        with self._lock:
            self._operations[operation.id] = operation
            while len(self._operations) > _KEPT_OPERATIONS:
                self._operations.pop(next(iter(self._operations)))
        self._runtime.bus.emit(
            OperationChanged(
                at_ns=operation.updated_ns,
                operation_id=operation.id,
                kind=operation.kind,
                pool=operation.pool,
                state=operation.state.value,
                who=operation.who,
                expected_generation=operation.expected_generation,
                before=operation.before,
                after=operation.after,
                error=operation.error,
            )
        )

    def _await_drain(self, pool: RayResourcePool, operation: Operation, deadline_s: float) -> None:
        """Follow a pause on a thread of its own until the pool is paused, resumed, over, or the deadline is past."""
        threading.Thread(
            target=self._drain, args=(pool, operation, deadline_s), name=f"podium-{operation.id}", daemon=True
        ).start()

    def _drain(self, pool: RayResourcePool, operation: Operation, deadline_s: float) -> None:
        state = pool.gate.await_change({PoolState.PAUSING}, deadline_s)
        with self._lock:
            if self.operation(operation.id).state.done:
                return
            if state is PoolState.PAUSING:
                reason = f"{pool.gate.n_in_flight} calls were still in flight after {deadline_s:g} s"
                self._take_back(pool, operation, OperationState.EXPIRED, reason)
                return
            outcome = {PoolState.PAUSED: OperationState.SUCCEEDED, PoolState.ACTIVE: OperationState.CANCELLED}
            self._moved(operation, outcome.get(state, OperationState.FAILED), state.value, "")

    def _take_back(self, pool: RayResourcePool, operation: Operation, state: OperationState, reason: str) -> Operation:
        try:
            pool.gate.resume()
        except StateError as error:
            return self._moved(operation, OperationState.FAILED, pool.state.value, str(error))
        return self._moved(operation, state, pool.state.value, reason)

    def _overtake(self, pool: RayResourcePool) -> None:
        """End the pauses of a pool that was resumed before they were done."""
        for operation in list(self._operations.values()):
            if operation.pool == pool.name and not operation.state.done:
                self._moved(operation, OperationState.CANCELLED, pool.state.value, "resumed before it was paused")

    def _moved(self, operation: Operation, state: OperationState, after: str, error: str) -> Operation:
        moved = replace(operation, state=state, after=after, error=error, updated_ns=self._runtime.clock.now_ns())
        self._keep(moved)
        return moved


def _snapshot(pool: RayResourcePool) -> PoolSnapshot:
    return PoolSnapshot(
        name=pool.name,
        state=pool.state.value,
        generation=pool.generation,
        process_on_nodes=tuple(pool.store),
        world_size=pool.world_size,
        groups=pool.groups,
        n_calls_in_flight=pool.gate.n_in_flight,
        n_calls_waiting=pool.gate.n_waiting,
    )
