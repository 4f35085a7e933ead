"""What can be asked of a running driver, and what became of it, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Pause:
    """Let no new call on the pool's groups start; other pools go on.

    ``expected_generation`` refuses the command when the pool has been changed since the asker looked; None skips the
    check. Past ``deadline_s`` the operation expires and the pool goes on as before.
    """

    pool: str
    who: str
    expected_generation: int | None = None
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Resume:
    """Let the pool's groups go on."""

    pool: str
    who: str
    expected_generation: int | None = None
    deadline_s: float = 60.0


Command: TypeAlias = Pause | Resume


class OperationState(Enum):
    """Where an operation is on its way."""

    PENDING = "pending"
    PREPARING = "preparing"
    WAITING_FOR_SAFE_POINT = "waiting_for_safe_point"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def done(self) -> bool:
        """Whether nothing more will happen."""
        return self in {
            OperationState.SUCCEEDED,
            OperationState.FAILED,
            OperationState.CANCELLED,
            OperationState.EXPIRED,
        }


@dataclass(frozen=True, slots=True)
class Operation:
    """A command on its way. Times are on the driver clock; ``before`` and ``after`` are the pool's states in words."""

    id: str
    kind: str
    pool: str
    who: str
    state: OperationState
    created_ns: int
    updated_ns: int
    expected_generation: int | None
    before: str = ""
    after: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool as it is now. ``state`` is active, pausing, paused, changing, closed or failed.

    ``n_calls_waiting`` calls stand at the pool's gate, ``n_calls_in_flight`` have passed it and are not done.
    """

    name: str
    state: str
    generation: int
    process_on_nodes: tuple[int, ...]
    world_size: int
    groups: tuple[str, ...]
    n_calls_in_flight: int
    n_calls_waiting: int = 0


class ControlPlane(Protocol):
    """The one door for commands; every method may be called from any thread and returns at once."""

    def pools(self) -> tuple[PoolSnapshot, ...]:
        """Return the pools that are not closed, by name."""
        ...

    def pool(self, name: str) -> PoolSnapshot:
        """Return one pool.

        Raises:
            UnknownNameError: No pool has that name.
        """
        ...

    def submit(self, command: Command) -> Operation:
        """Take ``command`` and return its operation, which may be done already.

        Raises:
            UnknownNameError: No pool has that name.
            StateError: The pool's state forbids it, such as resuming an active pool.
            GenerationConflictError: The pool was changed since the asker looked.
        """
        ...

    def operation(self, operation_id: str) -> Operation:
        """Return an operation as it stands.

        Raises:
            UnknownNameError: No operation has that id.
        """
        ...

    def cancel(self, operation_id: str) -> Operation:
        """Take back an operation that is not running yet.

        Raises:
            UnknownNameError: No operation has that id.
            StateError: It is running or done.
        """
        ...
