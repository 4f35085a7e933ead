"""What one driver has: a cluster, a bus for events, a clock, and the pools and groups that live."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from core.cluster import Cluster
from core.cluster.base import shares_a_process
from core.cluster.holdings import Holdings
from core.errors import UsageError
from core.events import EventBus
from core.safe_point import SafePoint
from core.wiring import composer

_MAX_NAME = 100


class DriverClock:
    """Nanoseconds since 1970 that never jump: the wall clock at the start, carried on by the monotonic clock."""

    def __init__(self) -> None:
        """Anchor the monotonic clock to the wall clock."""
        self.anchor_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time."""
        return self.anchor_ns + time.monotonic_ns()


class LivePool(Protocol):
    """What the registry keeps of a pool, weakly."""

    @property
    def name(self) -> str:
        """Return the pool's name, unique among the pools of a driver."""
        ...

    def release(self) -> None:
        """Release everything except detached workers."""
        ...


class Closeable(Protocol):
    """Something of a driver's that ends with it."""

    def close(self) -> None:
        """End; may be called twice."""
        ...


class OnDeath(Enum):
    """What a group does when one of its workers has died.

    ABORT ends the driver by SIGABRT, as verl does; RAISE raises ``WorkerDiedError`` in the call in flight, or in the
    next one; RESTART does that too and rebuilds the group for later calls.
    """

    ABORT = "abort"
    RAISE = "raise"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """The defaults for dead workers and long calls, for groups and methods without their own settings.

    ``call_timeout_s`` is None for no deadline. ``close_timeout_s`` is how long workers may take to clean up when they
    are ended.
    """

    on_death: OnDeath = OnDeath.RAISE
    max_restarts: int = 3
    stall_s: float = 60.0
    call_timeout_s: float | None = None
    close_timeout_s: float = 5.0


class CallFacts(NamedTuple):
    """What is known of a call when it starts."""

    call_id: int
    group: str
    method: str
    ranks: tuple[int, ...]
    blocking: bool
    pool: str = ""
    step: int = 0
    at_ns: int = 0
    timeout_s: float | None = None


class LiveCall(Protocol):
    """What the registry keeps of a call until every rank has answered; ``core.health.in_flight`` reads it."""

    @property
    def runtime(self) -> Runtime:
        """Return the runtime that the call was made on."""
        ...

    @property
    def facts(self) -> CallFacts:
        """Return what was known of the call when it started."""
        ...

    @property
    def asked(self) -> tuple[tuple[int, int, bool], ...]:
        """Return each rank that was asked: the rank, when, in ns on the driver clock, and whether it is pending."""
        ...

    @property
    def has_failed(self) -> bool:
        """Return whether the driver has the call's error already, or stopped waiting."""
        ...


class Steering(Protocol):
    """The part of the control plane that lower packages use."""

    def resize(self, pool: str, process_on_nodes: Sequence[int], deadline_s: float) -> object:
        """Give a pool other slots, on the driver's thread, at once."""
        ...

    def close(self) -> None:
        """Cancel what waits for the driver; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a runtime from higher layers, set by ``core.composition``.

    ``control_plane`` makes the control plane of a runtime; ``on_death`` is called with a worker group (its
    ``GroupState``) when the first of its workers died.
    """

    control_plane: Callable[[Runtime], Steering]
    on_death: Callable[[object], None]


class Runtime:
    """The surroundings of pools and groups. Ray is not touched before something needs the cluster."""

    def __init__(self, connect: Callable[[], Cluster]) -> None:
        """Remember how to get a cluster; ``connect`` is called at most once, on first use."""
        self._connect = connect
        self._cluster: Cluster | None = None
        self._lock = threading.RLock()
        self._pools: weakref.WeakValueDictionary[str, LivePool] = weakref.WeakValueDictionary()
        self._pool_names: set[str] = set()
        self._joined: weakref.WeakSet[Runtime] = weakref.WeakSet()
        self._group_names: set[str] = set()
        self._generations: dict[str, int] = {}
        self.slot_tenants: dict[tuple[int, int], set[str]] = {}
        self.found_slots: dict[object, LivePool] = {}
        """What stands for the slots of workers that others have started, by class, name and workers."""
        self.holdings = Holdings()
        self._call_ids = itertools.count(1)
        self.live_calls: dict[int, LiveCall] = {}
        self.bus = EventBus()
        self.clock = DriverClock()
        self.step = 0
        self._parts: Parts | None = None
        self.plane: Steering | None = None
        self.controller: object | None = None
        """The driver's ``Controller``, created on first use."""
        self.health: Closeable | None = None
        self.health_settings = HealthSettings()
        self.safe_point = SafePoint()

    def begin_in_child(self) -> None:
        """Replace the lock in a forked process; another thread may have held it at the fork."""
        self._lock = threading.RLock()

    def join(self, other: Runtime) -> None:
        """Share the record of ``other``: the same bus, clock and call ids, with another cluster."""
        self.bus, self.clock = other.bus, other.clock
        self._call_ids, self._group_names = other._call_ids, other._group_names
        self._pool_names, self._generations = other._pool_names, other._generations
        self.live_calls, self.health_settings = other.live_calls, other.health_settings
        other._joined.add(self)

    @property
    def cluster(self) -> Cluster:
        """Return the cluster, connecting on first use."""
        with self._lock:
            if self._cluster is None:
                self._cluster = self._connect()
            return self._cluster

    @property
    def connected(self) -> bool:
        """Whether the cluster has been needed yet."""
        return self._cluster is not None

    @property
    def parts(self) -> Parts:
        """Return the parts from higher layers."""
        with self._lock:
            if self._parts is None:
                self._parts = composer()(self)
            return self._parts

    def steering(self) -> Steering:
        """Return the control plane, which is made when the first command is given."""
        with self._lock:
            if self.plane is None:
                self.plane = self.parts.control_plane(self)
            return self.plane

    def next_call_id(self) -> int:
        """Return the number of the next call, from 1."""
        return next(self._call_ids)

    def claim_pool_name(self, wanted: str | None, pool: LivePool) -> str:
        """Register a pool under ``wanted``, or under "pool", "pool_2", ... if ``wanted`` is None.

        Raises:
            UsageError: It is not a valid name, or another pool has it.
        """
        with self._lock:
            if wanted is not None:
                checked_name(wanted, "a pool")
                if wanted in self._pools:
                    raise UsageError(f"a pool named {wanted!r} exists already; close it or choose another name_prefix")
                name = wanted
            else:
                name = self.free_pool_name("pool")
            self._pools[name] = pool
            self._pool_names.add(name)
            return name

    def free_pool_name(self, wanted: str) -> str:
        """Return ``wanted``, with a number appended if an earlier pool of this run had the name.

        A name that is too long, made of many pools' names, is cut.
        """
        with self._lock:
            stem = wanted[: _MAX_NAME - 10].rstrip()
            return next(name for name in _numbered(stem) if name not in self._pool_names)

    def next_generation(self, pool: str) -> int:
        """Return the number of the next generation of a pool of this name, from 1, never one it had before."""
        with self._lock:
            generation = self._generations[pool] = self._generations.get(pool, 0) + 1
            return generation

    def forget_pool(self, name: str) -> None:
        """Free a pool's name."""
        with self._lock:
            self._pools.pop(name, None)

    def claim_group_name(self, wanted: str) -> str:
        """Return ``wanted``, with a number appended if an earlier group of this run had the name.

        Raises:
            UsageError: It is not a valid name.
        """
        checked_name(wanted, "a group")
        with self._lock:
            name = next(name for name in _numbered(wanted) if name not in self._group_names)
            self._group_names.add(name)
            return name

    def pools(self) -> Mapping[str, Any]:
        """Return the open pools by name, including those of runtimes that joined this one."""
        with self._lock:
            own = dict(self._pools)
        joined = [pool for runtime in list(self._joined) for pool in runtime.pools().items()]
        return dict(joined) | own

    def close(self) -> None:
        """Close every pool, but for what is detached, and disconnect from the cluster; may be called twice."""
        if self.plane is not None:
            self.plane.close()
        for pool in self.pools().values():
            pool.release()
        self.found_slots.clear()
        if self.health is not None:
            self.health.close()
            self.health = None
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()
                self._cluster = None


def refuse_workers(what: str) -> None:
    """Refuse what is the driver's to a worker that shares its process: on Ray it would have no driver's to ask.

    Raises:
        UsageError: This is a worker on the local cluster.
    """
    if shares_a_process():
        raise UsageError(
            f"{what} can only be called by the driver: a worker on the local cluster only shares its process; return a "
            f"value to the driver, and call it there"
        )


def checked_name(name: str, what: str) -> str:
    """Return ``name`` if it can be used in tables, REST URLs and commands, else raise.

    Raises:
        UsageError: It is empty, too long, one or two dots, or has unprintable characters.
    """
    fits = isinstance(name, str) and 1 <= len(name) <= _MAX_NAME and name.isprintable() and name == name.strip()
    # In a URL these two mean other paths, even if they are encoded.
    if not fits or name in {".", ".."}:
        raise UsageError(
            f"{name!r} is not a name for {what}; use 1 to {_MAX_NAME} printable characters, no space at either end, "
            f"and more than dots"
        )
    return name


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    for number in itertools.count(2):
        yield f"{stem}_{number}"


class RayOptions:
    """How to start Ray if it is not running; set once by ``core.init`` or the command line, read on first use."""

    def __init__(self) -> None:
        """Start with Ray's defaults."""
        self.num_cpus: float | None = None
        self.num_gpus: float | None = None
        self.options: dict[str, Any] = {}
        self.pinned = False

    def pin(self, num_cpus: float | None, num_gpus: float | None) -> None:
        """Set the logical resources permanently: a script cannot change them any more."""
        self.num_cpus, self.num_gpus = num_cpus, num_gpus
        self.pinned = True


ray_options = RayOptions()
_current: Runtime | None = None
_current_lock = threading.Lock()


def _in_child() -> None:
    """Begin without a runtime in a process that was forked; another thread may have held a lock meanwhile."""
    global _current, _current_lock
    _current_lock = threading.Lock()
    if _current is not None:
        _current.begin_in_child()
    _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def connect_to_ray() -> Cluster:
    """Connect as ``ray_options`` say. Ray is imported here, on first use: it costs a second and much memory."""
    from core.cluster.on_ray import RayCluster

    return RayCluster.connect(ray_options.num_cpus, ray_options.num_gpus, **ray_options.options)


def current() -> Runtime:
    """Return this process's runtime; without one yet, one that will use Ray."""
    global _current
    with _current_lock:
        if _current is None:
            _current = Runtime(connect_to_ray)
        return _current


def install(runtime: Runtime | None) -> Runtime | None:
    """Make ``runtime`` the current one and return the one before; None goes back to the default on next use."""
    global _current
    with _current_lock:
        before, _current = _current, runtime
        return before
