"""The operations of a run: kept, numbered, and recorded at each step."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from dataclasses import asdict, replace

from core.control.commands import Command, Operation, OperationState, Plan
from core.errors import StateError, UnknownNameError
from core.events import OperationChanged
from core.runtime import Runtime

_KEPT = 1000
_LEGAL = {
    OperationState.PENDING: {OperationState.PREPARING, OperationState.WAITING_FOR_SAFE_POINT, OperationState.RUNNING},
    OperationState.PREPARING: {OperationState.WAITING_FOR_SAFE_POINT, OperationState.RUNNING},
    OperationState.WAITING_FOR_SAFE_POINT: {OperationState.RUNNING},
    OperationState.RUNNING: set[OperationState](),
}
"""Where an operation that is not done may go, besides to the end and to where it is."""


class OperationBook:
    """Remembers the last thousand operations of a driver. Every method may be called from any thread."""

    def __init__(self, runtime: Runtime) -> None:
        """Start empty."""
        self._runtime = runtime
        self._lock = threading.RLock()
        self._operations: dict[str, Operation] = {}
        self._numbers = itertools.count(1)

    def open(
        self, command: Command, state: OperationState, before: str, after: str = "", plan: Plan | None = None
    ) -> Operation:
        """Make the operation of a command and record it."""
        now_ns = self._runtime.clock.now_ns()
        operation = Operation(
            id=f"op-{next(self._numbers)}-{uuid.uuid4().hex[:8]}",
            kind=command.kind,
            pool=command.pool,
            who=command.who,
            state=state,
            created_ns=now_ns,
            updated_ns=now_ns,
            expected_generation=command.expected_generation,
            before=before,
            after=after,
            plan=plan,
        )
        with self._lock:
            self._operations[operation.id] = operation
            for old in list(self._operations.values())[: max(0, len(self._operations) - _KEPT)]:
                if old.state.done:
                    del self._operations[old.id]
        self._emit(operation, "" if plan is None else json.dumps(asdict(plan)))
        return operation

    def move(
        self,
        operation_id: str,
        state: OperationState,
        *,
        after: str | None = None,
        error: str = "",
        progress: str = "",
        downtime_s: float = 0.0,
    ) -> Operation:
        """Take an operation to another state, or set its progress in this one.

        Raises:
            StateError: It is done, or cannot go there from where it is.
        """
        with self._lock:
            operation = self.find(operation_id)
            legal = state.done or state is operation.state or state in _LEGAL.get(operation.state, ())
            if operation.state.done or not legal:
                raise StateError(
                    f"operation {operation_id} is {operation.state.value}, it cannot become {state.value}",
                    state=operation.state.value,
                )
            moved = replace(
                operation,
                state=state,
                after=operation.after if after is None else after,
                error=error,
                progress=progress,
                downtime_s=downtime_s,
                updated_ns=self._runtime.clock.now_ns(),
            )
            self._operations[operation_id] = moved
        self._emit(moved)
        return moved

    def find(self, operation_id: str) -> Operation:
        """Return the current state of an operation.

        Raises:
            UnknownNameError: No operation has that id.
        """
        with self._lock:
            operation = self._operations.get(operation_id)
        if operation is None:
            raise UnknownNameError(f"there is no operation {operation_id!r}", name=operation_id)
        return operation

    def all(self) -> tuple[Operation, ...]:
        """Return the operations, the newest last."""
        with self._lock:
            return tuple(self._operations.values())

    def _emit(self, operation: Operation, plan: str = "") -> None:
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
                progress=operation.progress,
                plan=plan,
                downtime_ns=int(operation.downtime_s * 1e9),
            )
        )
