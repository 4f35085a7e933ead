"""Pause and resume: moves of a pool's gate, which need no safe point."""

from __future__ import annotations

import threading

from core.control.commands import Command, Operation, OperationState, Plan, PoolChange, Resume
from core.control.operations import OperationBook
from core.errors import StateError
from core.pool import PoolState, RayResourcePool


class Pausing:
    """Moves gates and follows pauses until the calls in flight have left."""

    def __init__(self, book: OperationBook) -> None:
        """Keep operations in ``book``."""
        self._book = book
        self._lock = threading.RLock()

    def plan(self, pool: RayResourcePool, command: Command) -> Plan:
        """Return what a pause or a resume would do: nothing to slots and groups."""
        sizes = tuple(pool.store)
        change = PoolChange(pool.name, sizes, sizes, pool.generation)
        return Plan(command.kind, (change,), (), prepared=False)

    def submit(self, pool: RayResourcePool, command: Command) -> Operation:
        """Move the gate; a pause is done when the calls in flight have left it.

        Raises:
            StateError: The pool is not in a state for it.
        """
        with self._lock:
            before = pool.state.value
            if isinstance(command, Resume):
                pool.gate.resume()
                self._overtake(pool)
                return self._book.open(command, OperationState.SUCCEEDED, before, pool.state.value)
            if pool.gate.pause() is PoolState.PAUSED:
                return self._book.open(command, OperationState.SUCCEEDED, before, PoolState.PAUSED.value)
            operation = self._book.open(command, OperationState.WAITING_FOR_SAFE_POINT, before)
        threading.Thread(
            target=self._drain, args=(pool, operation, command.deadline_s), name=f"podium-{operation.id}", daemon=True
        ).start()
        return operation

    def cancel(self, operation: Operation, pool: RayResourcePool | None) -> Operation:
        """Take back a pause that still waits for calls in flight.

        Raises:
            StateError: It does not wait any more.
        """
        with self._lock:
            if operation.state is not OperationState.WAITING_FOR_SAFE_POINT or pool is None:
                raise StateError(
                    f"operation {operation.id} is {operation.state.value}, only a waiting one can be cancelled",
                    state=operation.state.value,
                )
            return self._take_back(pool, operation, OperationState.CANCELLED, "")

    def _drain(self, pool: RayResourcePool, operation: Operation, deadline_s: float) -> None:
        """Follow a pause until the pool is paused, resumed, over, or the deadline is past."""
        # A live change of a pool that is about to pause leaves it paused.
        state = pool.gate.await_change({PoolState.PAUSING, PoolState.CHANGING}, deadline_s)
        with self._lock:
            if self._book.find(operation.id).state.done:
                return
            if state in {PoolState.PAUSING, PoolState.CHANGING}:
                reason = f"{pool.gate.n_in_flight} calls were still in flight after {deadline_s:g} s"
                self._take_back(pool, operation, OperationState.EXPIRED, reason)
                return
            outcome = {PoolState.PAUSED: OperationState.SUCCEEDED, PoolState.ACTIVE: OperationState.CANCELLED}
            error = pool.gate.reason if state in {PoolState.CLOSED, PoolState.FAILED} else ""
            self._book.move(operation.id, outcome.get(state, OperationState.FAILED), after=state.value, error=error)

    def _take_back(self, pool: RayResourcePool, operation: Operation, state: OperationState, reason: str) -> Operation:
        try:
            pool.gate.resume()
        except StateError as error:
            return self._book.move(operation.id, OperationState.FAILED, after=pool.state.value, error=str(error))
        return self._book.move(operation.id, state, after=pool.state.value, error=reason)

    def _overtake(self, pool: RayResourcePool) -> None:
        """End the pauses of a pool that was resumed before they were done."""
        for operation in self._book.all():
            if operation.kind == "pause" and operation.pool == pool.name and not operation.state.done:
                self._book.move(
                    operation.id,
                    OperationState.CANCELLED,
                    after=pool.state.value,
                    error="resumed before it was paused",
                )
