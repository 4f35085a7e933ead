"""Every exception that core raises.

The tree::

    PodiumError
    ├── UsageError (ValueError, AssertionError)      a request that can never succeed
    │   ├── RegistrationError                         an invalid @register, mode or name
    │   ├── BatchError                                an inconsistent DataProto, or one unfit for the request
    │   │   ├── UnevenSplitError                      rows do not divide into equal shares
    │   │   ├── MergeConflictError                    two batches disagree about one key
    │   │   └── RowIdentityError                      padding rows cannot be identified
    │   ├── ShareError                                an argument cannot be split over the ranks
    │   └── PoolSpecError                             an invalid description of a resource pool
    ├── MissingKeyError (UsageError, KeyError)        a key that the batch does not have
    ├── ClusterUnreachableError                       the cluster cannot be reached
    ├── PlacementError                                a pool does not fit on the cluster
    ├── StateError                                    an action that the current state forbids
    │   ├── PoolClosedError                           a call on a pool or group that was closed
    │   ├── GenerationConflictError                   it was changed in the meantime
    │   └── LiveStateError                            a live change would lose a group's state
    ├── UnknownNameError (LookupError)                there is no pool, group or operation of that name
    ├── WorkerError                                   something went wrong on a rank
    │   ├── WorkerStartError                          a worker did not start
    │   ├── WorkerMethodError                         a worker's method raised
    │   └── WorkerDiedError                           a worker's process has ended
    ├── CallTimeoutError (TimeoutError)               ranks did not respond in time
    ├── ObjectStoreFullError                          arguments do not fit in the object store
    └── VersionSkewError                              driver and worker run different code

``UsageError`` also derives from ``AssertionError``: verl uses assertions for such checks, and code written for it may
catch them. These errors are raised under ``python -O``, too.

The fields of an error are its data, ``str(error)`` is its message. An error is pickled by its fields, so that it keeps
its type between Ray processes.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, NoReturn


@dataclass(eq=False)
class PodiumError(Exception):
    """Base class of all errors that Podium raises."""

    message: str

    def __post_init__(self) -> None:
        """Set ``args`` to the message, for code that reads it."""
        self.args = (str(self),)

    def __str__(self) -> str:
        """Return what is wrong, with which thing and numbers, and what to do."""
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields; a plain ``Exception`` would keep only ``args``."""
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})

    # A dataclass would otherwise drop both; errors compare and hash by identity, as exceptions do.
    __hash__ = Exception.__hash__


def _rebuild(kind: type[PodiumError], values: dict[str, Any]) -> PodiumError:
    return kind(**values)


@dataclass(eq=False)
class UsageError(PodiumError, ValueError, AssertionError):
    """The request can never succeed, whatever the state of the cluster."""


@dataclass(eq=False)
class RegistrationError(UsageError):
    """A ``@register``, a dispatch mode or a method's name is invalid."""


@dataclass(eq=False)
class BatchError(UsageError):
    """A batch is inconsistent, or the request is invalid for it."""


@dataclass(eq=False)
class UnevenSplitError(BatchError):
    """Rows do not divide into equal shares, and neither padding nor uneven splits are enabled."""

    n_rows: int = 0
    n_parts: int = 0


@dataclass(eq=False)
class MergeConflictError(BatchError):
    """Two batches hold different values under one key."""

    key: str = ""


@dataclass(eq=False)
class RowIdentityError(BatchError):
    """A method returned rows for a padded shard, and the padding rows among them cannot be identified."""

    n_rows_in: int = 0
    n_padding: int = 0
    n_rows_out: int = 0


@dataclass(eq=False)
class ShareError(UsageError):
    """An argument cannot be split over the ranks in this mode."""

    argument: str = ""


@dataclass(eq=False)
class PoolSpecError(UsageError):
    """The description of a resource pool is invalid on any cluster."""


@dataclass(eq=False)
class MissingKeyError(UsageError, KeyError):
    """The batch does not have this key; nothing was changed."""

    key: str = ""
    available: tuple[str, ...] = ()

    __str__ = PodiumError.__str__


@dataclass(eq=False)
class ClusterUnreachableError(PodiumError):
    """The cluster at ``address`` cannot be reached."""

    address: str = ""


@dataclass(eq=False)
class PlacementError(PodiumError):
    """A pool does not fit on the cluster, or did not get its slots before the deadline.

    ``hopeless``: it would not fit even if all resources of the cluster were free.
    """

    pool: str = ""
    bundle: tuple[tuple[str, float], ...] = ()
    n_bundles: int = 0
    needed: tuple[tuple[str, float], ...] = ()
    available: tuple[tuple[str, float], ...] = ()
    hopeless: bool = False


@dataclass(eq=False)
class StateError(PodiumError):
    """An action that the current state forbids."""

    state: str = ""


@dataclass(eq=False)
class PoolClosedError(StateError):
    """A call on a pool or group that was closed."""


@dataclass(eq=False)
class GenerationConflictError(StateError):
    """The pool was changed in the meantime: its generation is ``actual``, not ``expected``."""

    expected: int = 0
    actual: int = 0


@dataclass(eq=False)
class LiveStateError(StateError):
    """A live change would lose the state of a group's workers: their class does not declare how to keep it."""

    group: str = ""
    worker_class: str = ""


@dataclass(eq=False)
class UnknownNameError(PodiumError, LookupError):
    """There is no pool, group, worker or operation of that name."""

    name: str = ""
    known: tuple[str, ...] = ()


@dataclass(eq=False)
class WorkerError(PodiumError):
    """Something failed on one rank of a group.

    ``node`` is the node's address, ``traceback_text`` the worker's traceback, empty if there is none.
    """

    group: str = ""
    rank: int = -1
    node: str = ""
    method: str = ""
    traceback_text: str = ""


@dataclass(eq=False)
class WorkerStartError(WorkerError):
    """A worker did not start: its constructor raised, or its process ended before it responded."""


@dataclass(eq=False)
class WorkerMethodError(WorkerError):
    """A worker's method raised; ``cause`` (also ``__cause__``) is the user's exception when it can be pickled.

    ``started_ns`` and ``finished_ns`` are on the worker's monotonic clock.
    """

    cause_type: str = ""
    cause: BaseException | None = None
    started_ns: int = 0
    finished_ns: int = 0

    def __post_init__(self) -> None:
        """Chain the user's exception, so that tracebacks show it and ``except`` blocks can inspect it."""
        super().__post_init__()
        self.__cause__ = self.cause


class DeathKind(Enum):
    """What ended a worker's process, as far as known; UNREACHABLE: the process may still be alive."""

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
    """A worker's process has ended.

    ``how`` is the cause as text, ``kind`` the cause for code, ``signal`` the signal's number (0: unknown). ``oom`` says
    whether it ran out of memory, None if unknown.
    """

    worker: str = ""
    pid: int = 0
    how: str = ""
    signal: int = 0
    oom: bool | None = None
    kind: DeathKind = DeathKind.UNKNOWN


@dataclass(eq=False)
class CallTimeoutError(PodiumError, TimeoutError):
    """Ranks did not respond before the deadline."""

    group: str = ""
    method: str = ""
    missing_ranks: tuple[int, ...] = ()
    timeout_s: float = 0.0


@dataclass(eq=False)
class ObjectStoreFullError(PodiumError):
    """A call's arguments do not fit in the shared memory of the cluster's object store; nothing was sent."""

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
    """Raise ``error``, from its cause, without a reference to it in any frame of its traceback.

    Such a reference is a cycle: arguments, results and object references would stay alive until the garbage collector
    runs, and a driver that retries would hold them twice. So callers pass the error as an expression, never in a local
    variable (the name in ``except ... as error`` is deleted at the end of its block).
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
