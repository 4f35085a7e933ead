"""Commands for the pools of a running driver, their plans and their operations, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias, get_args

from core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommandOptions:
    """The options that every command has.

    With ``expected_generation`` the command is refused if its pool has another generation, because it was changed in
    the meantime; None skips the check. After ``deadline_s`` seconds (above zero) the operation expires and nothing has
    changed.
    """

    changes_slots: ClassVar[bool] = True
    """Whether the command gives pools other slots: it is planned, prepared, and applied at a safe point."""

    expected_generation: int | None = None
    deadline_s: float = 120.0

    @property
    def kind(self) -> str:
        """Return the command's name, such as "resize"."""
        return type(self).__name__.lower()

    def __post_init__(self) -> None:
        """Check the deadline.

        Raises:
            UsageError: ``deadline_s`` is not above zero.
        """
        if not self.deadline_s > 0:
            raise UsageError(
                f"a {self.kind} needs a deadline above zero, got deadline_s={self.deadline_s:g}; "
                f"float('inf') is for none"
            )


@dataclass(frozen=True, slots=True)
class Pause(_CommandOptions):
    """Start no new calls on the pool's groups; other pools are not affected."""

    changes_slots: ClassVar[bool] = False

    pool: str
    who: str
    deadline_s: float = field(default=60.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Resume(_CommandOptions):
    """Start calls on the pool's groups again."""

    changes_slots: ClassVar[bool] = False

    pool: str
    who: str
    deadline_s: float = field(default=60.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Resize(_CommandOptions):
    """Give the pool other slots: ``process_on_nodes`` processes per node. Its groups are rebuilt on them."""

    pool: str
    who: str
    process_on_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the pools that a split makes: ``size`` consecutive slots and the ``groups`` that go there."""

    name: str
    size: int
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Split(_CommandOptions):
    """Split the pool's slots, in rank order, into several pools, and assign each group to one of them."""

    pool: str
    who: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Merge(_CommandOptions):
    """Make one pool of several: all groups go on all slots.

    ``expected_generations`` are (pool, generation) pairs to check; a pool not in it is not checked.
    """

    pools: tuple[str, ...]
    name: str
    who: str
    expected_generations: tuple[tuple[str, int], ...] = ()

    @property
    def pool(self) -> str:
        """Return the first pool, which ``expected_generation`` is of."""
        return self.pools[0] if self.pools else ""


@dataclass(frozen=True, slots=True)
class Move(_CommandOptions):
    """Rebuild ``group``, and what shares its processes, on the slots of another pool."""

    group: str
    pool: str
    who: str


Command: TypeAlias = Pause | Resume | Resize | Split | Merge | Move
COMMAND_CLASSES: dict[str, Any] = {command.__name__.lower(): command for command in get_args(Command)}
"""The class of each command by its name."""


def expected_generations(command: Command) -> dict[str, int]:
    """Return the expected generation of each pool for which a command has one."""
    expected = dict(command.expected_generations) if isinstance(command, Merge) else {}
    if command.expected_generation is not None and command.pool:
        expected[command.pool] = command.expected_generation
    return expected


@dataclass(frozen=True, slots=True)
class GroupMove:
    """What a plan does to a group. ``how`` is "unchanged", "stateless", "state" or "reconfigure"."""

    group: str
    from_pool: str
    to_pool: str
    world_size_before: int
    world_size_after: int
    how: str


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What a plan does to a pool: processes per node before (empty for a new pool) and after (empty when it ends).

    ``generation`` is the pool's present one, 0 for a pool that is not there yet.
    """

    pool: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command would do, as of now; nothing was changed.

    ``prepared``: the new workers start while the driver continues. Otherwise ``not_prepared_reason`` is why the driver
    is blocked during the whole change. ``in_flight`` are the calls that the change waits for, such as
    "call 42 actor.update, 3.1 s"; ``lost_state`` is the state that will be lost, in words. ``downtime_s`` is how long
    the driver will be blocked, estimated from earlier starts and changes of this run as ``estimate_from`` describes.
    """

    kind: str
    pools: tuple[PoolChange, ...]
    groups: tuple[GroupMove, ...]
    prepared: bool
    not_prepared_reason: str = ""
    in_flight: tuple[str, ...] = ()
    lost_state: tuple[str, ...] = ()
    downtime_s: float = 0.0
    estimate_from: str = ""


class OperationState(Enum):
    """The state of an operation."""

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
    """A submitted command and its progress. Times are on the driver clock.

    ``before`` and ``after`` are the pools in words: states for a pause, sizes for a change, such as "4" and "2", or
    "all [4]" and "train [2], rollout [2]". ``pool`` is the first pool of the command. ``downtime_s`` is how long the
    driver was blocked.
    """

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
    progress: str = ""
    plan: Plan | None = None
    downtime_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool as it is now. ``state`` is pending, active, pausing, paused, changing, closed or failed.

    A pending pool is open for calls, but its slots are not reserved yet.

    ``n_calls_waiting`` calls wait at the pool's gate, ``n_calls_in_flight`` have passed it and are not done.
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
    """The interface for commands; every method may be called from any thread and returns at once."""

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
        """Submit ``command`` and return its operation, which may be done already.

        Raises:
            UnknownNameError: No pool has that name.
            UsageError: It can never work, such as sizes that do not add up.
            PlacementError: No node has room for it.
            LiveStateError: A group's state would be lost.
            StateError: The pool's state forbids it, such as resuming an active pool, or an operation is in progress.
            GenerationConflictError: The pool has another generation than expected, or the operation in progress will
                change it; the message names who changed it.
        """
        ...

    def plan(self, command: Command) -> Plan:
        """Return what ``command`` would do; errors as ``submit`` would raise them, nothing is changed."""
        ...

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations of this run, the newest last; at most the last 1000."""
        ...

    def operation(self, operation_id: str) -> Operation:
        """Return the current state of an operation.

        Raises:
            UnknownNameError: No operation has that id.
        """
        ...

    def cancel(self, operation_id: str) -> Operation:
        """Cancel an operation that is not running yet.

        Raises:
            UnknownNameError: No operation has that id.
            StateError: It is running or done.
        """
        ...
