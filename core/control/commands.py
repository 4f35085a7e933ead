"""What can be asked of a running driver, and what became of it, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What every command can say besides what it is.

    ``expected_generation`` refuses the command when its pool has been changed since the asker looked; None skips the
    check. Past ``deadline_s``, which must be above zero, the operation expires and everything is as before.
    """

    expected_generation: int | None = None
    deadline_s: float = 120.0

    def __post_init__(self) -> None:
        """Refuse a deadline that is over before it begins.

        Raises:
            UsageError: ``deadline_s`` is not above zero.
        """
        if not self.deadline_s > 0:
            raise UsageError(
                f"a {type(self).__name__.lower()} needs a deadline above zero, got deadline_s={self.deadline_s:g}; "
                f"float('inf') is for none"
            )


@dataclass(frozen=True, slots=True)
class Pause(_Asked):
    """Let no new call on the pool's groups start; other pools go on."""

    pool: str
    who: str
    deadline_s: float = field(default=60.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Resume(_Asked):
    """Let the pool's groups go on."""

    pool: str
    who: str
    deadline_s: float = field(default=60.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Resize(_Asked):
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
class Split(_Asked):
    """Make several pools of the pool's slots, in rank order, and give each group a home in one of them."""

    pool: str
    who: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Merge(_Asked):
    """Make one pool of several: all groups go on all slots.

    ``expected_generations`` names pools with the generation the asker saw; a pool not in it is not checked.
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
class Move(_Asked):
    """Rebuild ``group``, and what shares its processes, on the slots of another pool."""

    group: str
    pool: str
    who: str


Command: TypeAlias = Pause | Resume | Resize | Split | Merge | Move


@dataclass(frozen=True, slots=True)
class GroupMove:
    """What a plan does to a group. ``how`` is "untouched", "stateless", "state" or "reconfigure"."""

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

    ``prepared`` says that new workers come up while the driver goes on; otherwise ``why_not_prepared`` says why the
    driver is blocked for all of it. ``drains`` are the calls in flight that are waited for, such as
    "call 42 actor.update, 3.1 s"; ``lost`` is what will not survive, in words. ``stand_still_s`` is estimated from what
    earlier starts and changes of this run took; ``estimate_from`` says from what.
    """

    kind: str
    pools: tuple[PoolChange, ...]
    groups: tuple[GroupMove, ...]
    prepared: bool
    why_not_prepared: str = ""
    drains: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    stand_still_s: float = 0.0
    estimate_from: str = ""


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
    """A command on its way. Times are on the driver clock.

    ``before`` and ``after`` say in words what the pools were and became: states for a pause, sizes for a change, such
    as "4" and "2", or "all [4]" and "train [2], rollout [2]". ``pool`` is the first pool of the command.
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
    stand_still_s: float = 0.0


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
            UsageError: It can never work, such as sizes that do not add up.
            PlacementError: No node has room for it.
            LiveStateError: A group's state would be lost.
            StateError: The pool's state forbids it, such as resuming an active pool, or an operation is under way.
            GenerationConflictError: The pool was changed since the asker looked, or the operation under way will end
                the generation that was expected; the message says by whom.
        """
        ...

    def plan(self, command: Command) -> Plan:
        """Return what ``command`` would do; errors as ``submit`` would raise them, nothing is changed."""
        ...

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations of this run, the youngest last; at most the last 1000."""
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
