"""Every exception that core raises.

The tree::

    PodiumError
    ├── UsageError (ValueError, AssertionError)      what was asked can never work
    │   ├── RegistrationError                         a wrong @register, mode or collision of names
    │   ├── BatchError                                a DataProto that contradicts itself or the request
    │   │   ├── UnevenSplitError                      rows do not divide into equal shares
    │   │   ├── MergeConflictError                    two batches disagree about one key
    │   │   └── RowIdentityError                      it cannot be told which rows are padding
    │   ├── ShareError                                an argument cannot be split over the ranks
    │   └── PoolSpecError                             a resource pool that makes no sense
    ├── MissingKeyError (UsageError, KeyError)        a key that the batch does not have
    ├── ClusterUnreachableError                       the cluster that was named cannot be joined
    ├── PlacementError                                a pool does not fit on the cluster
    ├── StateError                                    a move that the present state forbids
    │   ├── PoolClosedError                           a call on a pool or group that was closed
    │   ├── GenerationConflictError                   somebody else changed it first
    │   └── LiveStateError                            a live change would lose a group's state
    ├── UnknownNameError (LookupError)                no pool, group or operation of that name
    ├── WorkerError                                   something went wrong on a rank
    │   ├── WorkerStartError                          a worker did not come up
    │   ├── WorkerMethodError                         a worker's method raised
    │   └── WorkerDiedError                           a worker's process is gone
    ├── CallTimeoutError (TimeoutError)               ranks did not answer in time
    ├── ObjectStoreFullError                          a call's bytes do not fit the cluster's shared memory
    └── VersionSkewError                              driver and worker run different code

``UsageError`` derives from ``AssertionError`` too: code written for verl catches that where a library raises
``ValueError``, and these stay real errors under ``python -O``.

Fields are data, ``__str__`` is prose, and every error is rebuilt from its fields when it is unpickled, so that it
keeps its type across a Ray process border.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, NoReturn


@dataclass(eq=False)
class PodiumError(Exception):
    """The root of everything that Podium raises on purpose."""

    message: str

    def __post_init__(self) -> None:
        """Give ``Exception`` the prose, for code that reads ``args``."""
        self.args = (str(self),)

    def __str__(self) -> str:
        """Say what happened, to what, with which numbers, and the way out."""
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the fields; a plain ``Exception`` would keep only ``args``."""
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})

    # A dataclass would otherwise drop both; errors compare and hash by identity, as exceptions do.
    __hash__ = Exception.__hash__


def _rebuild(kind: type[PodiumError], values: dict[str, Any]) -> PodiumError:
    return kind(**values)


@dataclass(eq=False)
class UsageError(PodiumError, ValueError, AssertionError):
    """What was asked can never work, whatever the state of the cluster."""


@dataclass(eq=False)
class RegistrationError(UsageError):
    """A ``@register``, a dispatch mode or a method's name is refused."""


@dataclass(eq=False)
class BatchError(UsageError):
    """A batch contradicts itself, or the request contradicts the batch."""


@dataclass(eq=False)
class UnevenSplitError(BatchError):
    """Rows do not divide into equal shares and no setting says what to do then."""

    n_rows: int = 0
    n_parts: int = 0


@dataclass(eq=False)
class MergeConflictError(BatchError):
    """Two batches hold different values under one key."""

    key: str = ""


@dataclass(eq=False)
class RowIdentityError(BatchError):
    """A padded shard came back with rows that cannot be told apart from padding."""

    n_rows_in: int = 0
    n_padding: int = 0
    n_rows_out: int = 0


@dataclass(eq=False)
class ShareError(UsageError):
    """An argument cannot be split over the ranks in this mode."""

    argument: str = ""


@dataclass(eq=False)
class PoolSpecError(UsageError):
    """A resource pool is described in a way that no cluster could serve."""


@dataclass(eq=False)
class MissingKeyError(UsageError, KeyError):
    """A key that the batch does not have; nothing was changed."""

    key: str = ""
    available: tuple[str, ...] = ()

    __str__ = PodiumError.__str__


@dataclass(eq=False)
class ClusterUnreachableError(PodiumError):
    """The cluster that was named cannot be joined; ``address`` is how it was named."""

    address: str = ""


@dataclass(eq=False)
class PlacementError(PodiumError):
    """A pool does not fit on the cluster, or did not get its slots by the deadline.

    ``hopeless`` says that it would not fit either if all that the cluster has were free.
    """

    pool: str = ""
    bundle: tuple[tuple[str, float], ...] = ()
    n_bundles: int = 0
    needed: tuple[tuple[str, float], ...] = ()
    available: tuple[tuple[str, float], ...] = ()
    hopeless: bool = False


@dataclass(eq=False)
class StateError(PodiumError):
    """A move that the present state forbids."""

    state: str = ""


@dataclass(eq=False)
class PoolClosedError(StateError):
    """A call on a pool or group that was closed."""


@dataclass(eq=False)
class GenerationConflictError(StateError):
    """The thing was changed by somebody else since the caller looked."""

    expected: int = 0
    actual: int = 0


@dataclass(eq=False)
class LiveStateError(StateError):
    """A live change would lose what a group's workers hold: their class says not how to carry it over."""

    group: str = ""
    worker_class: str = ""


@dataclass(eq=False)
class UnknownNameError(PodiumError, LookupError):
    """No pool, group, worker or operation of that name."""

    name: str = ""
    known: tuple[str, ...] = ()


@dataclass(eq=False)
class WorkerError(PodiumError):
    """Something went wrong on one rank of a group.

    ``node`` is the node's address, ``traceback_text`` the worker's own traceback, empty when there is none.
    """

    group: str = ""
    rank: int = -1
    node: str = ""
    method: str = ""
    traceback_text: str = ""


@dataclass(eq=False)
class WorkerStartError(WorkerError):
    """A worker did not come up: its constructor raised, or its process ended before it answered."""


@dataclass(eq=False)
class WorkerMethodError(WorkerError):
    """A worker's method raised; ``cause`` (also ``__cause__``) is the user's exception when it can be pickled.

    ``started_ns`` and ``finished_ns`` say when, on the worker's monotonic clock.
    """

    cause_type: str = ""
    cause: BaseException | None = None
    started_ns: int = 0
    finished_ns: int = 0

    def __post_init__(self) -> None:
        """Chain the user's exception, so that ``raise`` shows it and ``except`` blocks can look at it."""
        super().__post_init__()
        self.__cause__ = self.cause


class DeathKind(Enum):
    """What ended a worker's process, as far as it is known; UNREACHABLE: the process may be alive."""

    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"
    NODE_DIED = "node died"
    OUT_OF_MEMORY = "out of memory"
    KILLED = "killed"
    CRASHED = "crashed"
    EXITED = "exited"
    ENDED_BY_RAY = "ended by ray"
    OWNER_DIED = "owner died"


@dataclass(eq=False)
class WorkerDiedError(WorkerError):
    """A worker's process is gone; how, by which signal (0 unknown), and ``oom`` as far as it could be found out.

    ``how`` is the cause in words, for people; ``kind`` is the cause for code.
    """

    worker: str = ""
    pid: int = 0
    how: str = ""
    signal: int = 0
    oom: bool | None = None
    kind: DeathKind = DeathKind.UNKNOWN


@dataclass(eq=False)
class CallTimeoutError(PodiumError, TimeoutError):
    """Ranks did not answer before the deadline."""

    group: str = ""
    method: str = ""
    missing_ranks: tuple[int, ...] = ()
    timeout_s: float = 0.0


@dataclass(eq=False)
class ObjectStoreFullError(PodiumError):
    """What a call sends does not fit the shared memory of the cluster's object store; nothing was sent."""

    group: str = ""
    method: str = ""
    asked_bytes: int = 0
    capacity_bytes: int = 0
    free_bytes: int = 0


@dataclass(eq=False)
class VersionSkewError(PodiumError):
    """Driver and worker run different versions, or different copies, of Podium."""

    driver: str = ""
    worker: str = ""


def raise_detached(error: BaseException) -> NoReturn:
    """Raise ``error``, from its cause, in such a way that no frame of its traceback names it.

    An error that a frame of its own traceback names is a cycle: arguments, results and references would stay until the
    collector comes, and a driver that tries again has them all once more. So callers pass the error as an expression,
    never by a local variable of theirs (the name in ``except ... as error`` ends with its block).
    """
    try:
        if error is sys.exc_info()[1]:
            raise error
        raise error from error.__cause__
    finally:
        del error


def traceback_text(error: BaseException) -> str:
    """Return the traceback of ``error`` as the interpreter would print it."""
    return "".join(traceback.format_exception(error)).rstrip()
