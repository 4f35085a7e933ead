"""The controller: what a driver script holds when it wants to hold something.

A driver need not know of it: pools and groups find the current runtime by themselves. It picks the cluster, marks the
steps of a run, and is the door for commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, TypeAlias

from core import control
from core import runtime as runtimes
from core.cluster import Ref
from core.cluster.deadline import fetch_in_time
from core.cluster.local import LocalCluster
from core.control import (
    Merge,
    Move,
    Operation,
    Part,
    Pause,
    Resize,
    Resume,
    Split,
)
from core.errors import UsageError
from core.events import StepFinished, StepStarted
from core.pool import RayResourcePool
from core.runtime import Runtime

if TYPE_CHECKING:
    from core.control import RuntimeControl

_DRIVER = "driver"


class Named(Protocol):
    """A worker group, or anything else with a name."""

    @property
    def name(self) -> str:
        """Return the name."""
        ...


Pool: TypeAlias = RayResourcePool | str
"""A pool or its name."""
Group: TypeAlias = Named | str
"""A group or its name."""


class Step:
    """One step of a driver: its number, and what it chose to show."""

    def __init__(self, index: int, total: int) -> None:
        """Begin without metrics."""
        self.index = index
        self.total = total
        self.metrics: dict[str, float] = {}

    def log(self, **metrics: SupportsFloat) -> None:
        """Show numbers of this step in the record and on the dashboard, such as ``reward=0.4``.

        Raises:
            UsageError: A value is not a number.
        """
        for name, value in metrics.items():
            try:
                self.metrics[name] = float(value)
            except (TypeError, ValueError):
                raise UsageError(f"metric {name} of step {self.index} is not a number: {value!r}") from None


class Controller:
    """A runtime with its steps and its door for commands; a context manager that closes what it made."""

    def __init__(self, runtime: Runtime) -> None:
        """Take hold of a runtime."""
        self.runtime = runtime
        self.plane = control_plane(runtime)
        self._before: Runtime | None = None
        self._installed = False

    @classmethod
    def current(cls) -> Controller:
        """Return the controller of this process's runtime, the same one each time."""
        runtime = runtimes.current()
        if not isinstance(runtime.controller, cls):
            runtime.controller = cls(runtime)
        return runtime.controller

    @classmethod
    def local(cls, resources: Mapping[str, float] | None = None) -> Controller:
        """Return a controller whose workers are threads of this process, without Ray; use it in a ``with`` block.

        ``resources`` is what the pretended machine has, such as ``{"CPU": 16, "GPU": 8}``; None means no limit.
        """
        return cls(Runtime(lambda: LocalCluster(resources)))

    def steps(self, total: int) -> Iterator[Step]:
        """Yield ``total`` steps and mark their borders in the record.

        Raises:
            UsageError: ``total`` is negative, or a worker on the local cluster asks.
        """
        if total < 0:
            raise UsageError(f"a run cannot have {total} steps")
        runtimes.refuse_workers("steps")
        runtime = self.runtime
        for index in range(1, total + 1):
            step = Step(index, total)
            self.checkpoint()
            before, runtime.step = runtime.step, index
            runtime.bus.emit(StepStarted(runtime.clock.now_ns(), index, total))
            try:
                yield step
            finally:
                runtime.bus.emit(StepFinished(runtime.clock.now_ns(), index, tuple(step.metrics.items())))
                # A loop that was left in the middle may be ended late, when another step runs already.
                if runtime.step == index:
                    runtime.step = before

    def checkpoint(self) -> None:
        """Say that now is a good moment: a live change that waits is made here. Steps and calls are such moments too.

        A worker says so in vain: the change is the driver's.

        Raises:
            KeyboardInterrupt: The driver was interrupted while it waited for calls in flight.
        """
        self.runtime.safe_point.run()

    def pool(self, name: str) -> RayResourcePool:
        """Return a pool that lives, such as one that a split made.

        Raises:
            UnknownNameError: None has that name.
        """
        return self.plane.find(name)

    def pause(self, pool: Pool, deadline_s: float = 60.0) -> Operation:
        """Let no new call on the pool's groups start; the next one waits until somebody resumes it."""
        return self.plane.submit(Pause(_name(pool), _DRIVER, deadline_s=deadline_s))

    def resume(self, pool: Pool) -> Operation:
        """Let the pool's groups go on."""
        return self.plane.submit(Resume(_name(pool), _DRIVER))

    def resize(self, pool: Pool, process_on_nodes: Sequence[int], deadline_s: float = 120.0) -> RayResourcePool:
        """Give a pool other slots, now; errors as in ``RayResourcePool.resize``."""
        name = _name(pool)
        self.plane.execute(Resize(name, _DRIVER, tuple(process_on_nodes), deadline_s=deadline_s))
        return self.pool(name)

    def split(
        self, pool: Pool, parts: Mapping[str, tuple[int, Sequence[Group]]], deadline_s: float = 120.0
    ) -> dict[str, RayResourcePool]:
        """Make several pools of one, now: ``{"train": (2, [actor]), "rollout": (2, [rollout])}``; return them by name.

        Each has so many slots, in rank order, and the groups named, which get new workers there with their state.

        Raises:
            UsageError: The sizes do not add up, a group has no home, or a name is taken.
            PodiumError: As in ``RayResourcePool.resize``.
        """
        wanted = tuple(Part(name, size, tuple(map(_name, groups))) for name, (size, groups) in parts.items())
        self.plane.execute(Split(_name(pool), _DRIVER, wanted, deadline_s=deadline_s))
        return {part.name: self.pool(part.name) for part in wanted}

    def merge(self, pools: Sequence[Pool], name: str, deadline_s: float = 120.0) -> RayResourcePool:
        """Make one pool of several, now, with all groups on all slots; return it.

        Raises:
            UsageError: There are not two pools, they differ, or more groups than ``max_colocate_count`` would meet.
            PodiumError: As in ``RayResourcePool.resize``.
        """
        self.plane.execute(Merge(tuple(map(_name, pools)), name, _DRIVER, deadline_s=deadline_s))
        return self.pool(name)

    def move(self, group: Group, pool: Pool, deadline_s: float = 120.0) -> None:
        """Give a group, and what shares its processes, new workers on another pool's slots, with its state.

        Raises:
            UsageError: It is there already, or there is no room.
            PodiumError: As in ``RayResourcePool.resize``.
        """
        self.plane.execute(Move(_name(group), _name(pool), _DRIVER, deadline_s=deadline_s))

    def __enter__(self) -> Controller:
        self._before = runtimes.install(self.runtime)
        self._installed = True
        if self._before is not None and self._before is not self.runtime and self._before.bus.observed:
            self.runtime.join(self._before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the pools and let go of the cluster; may be called twice."""
        self.runtime.close()
        if self._installed:
            runtimes.install(self._before)
            self._installed = False


def control_plane(runtime: Runtime) -> RuntimeControl:
    """Return the one control plane of a runtime."""
    plane = runtime.steering()
    if not isinstance(plane, control.RuntimeControl):
        raise TypeError(f"the control plane of a runtime must be a RuntimeControl, got {type(plane).__name__}")
    return plane


def checkpoint() -> None:
    """Let a live change that waits for the driver be made here; see ``Controller.checkpoint``."""
    runtimes.current().safe_point.run()


def _name(named: Named | str) -> str:
    return named if isinstance(named, str) else named.name


def steps(total: int) -> Iterator[Step]:
    """Yield ``total`` steps of the current driver and mark their borders in the record; see ``Controller.steps``."""
    return Controller.current().steps(total)


def init(num_cpus: float | None = None, num_gpus: float | None = None, **options: Any) -> Controller:
    """Say how to start Ray if nobody has by the time a pool needs it; return this driver's controller.

    ``num_cpus`` and ``num_gpus`` are logical resources: with ``num_gpus=8`` a machine without GPUs takes pools of
    eight. What was set before stays where an argument is not given, and what the command line set stays. ``options`` go
    to ``ray.init``. Nothing happens to a Ray that runs already, or to a cluster that RAY_ADDRESS names.

    It may be called again with equal settings, as a notebook's cell or a ``main()`` that runs twice does.

    Raises:
        UsageError: The cluster is in use already, with other settings.
    """
    runtime, settings = runtimes.current(), runtimes.ray_options
    if runtime.connected and not runtime.cluster.is_up():
        runtime.close()  # Ray was shut down; what is asked for is another one.
    resources = {} if settings.pinned else {"num_cpus": num_cpus, "num_gpus": num_gpus}
    asked = {name: value for name, value in resources.items() if value is not None} | options
    if runtime.connected:
        has = {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus, **settings.options}
        differs = [name for name, value in asked.items() if has.get(name) != value]
        if differs:
            raise UsageError(
                f"core.init({_listed(asked, differs)}) comes too late: the cluster is in use with "
                f"{_listed(has, differs)}; give equal settings, call it before the first pool, or close what there is "
                f"with core.Controller.current().close()"
            )
        return Controller.current()
    settings.num_cpus = asked.pop("num_cpus", settings.num_cpus)
    settings.num_gpus = asked.pop("num_gpus", settings.num_gpus)
    settings.options |= asked
    return Controller.current()


def _listed(values: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={values[name]!r}" if name in values else f"no {name}" for name in names)


def parallel_put(data_list: Sequence[Any], max_workers: int | None = None) -> list[Ref]:
    """Store values on the cluster, several at a time, and return their references in order.

    ``max_workers`` is the number of threads, one per value and at most 16 when not given.

    Raises:
        UsageError: There are no values, or ``max_workers`` is not above zero.
    """
    if not data_list:
        raise UsageError("parallel_put needs at least one value")
    n_threads = min(len(data_list), 16) if max_workers is None else max_workers
    if n_threads < 1:
        raise UsageError(f"parallel_put needs at least one thread, got max_workers={max_workers}")
    cluster = runtimes.current().cluster
    with ThreadPoolExecutor(n_threads, thread_name_prefix="podium-put") as pool:
        return list(pool.map(cluster.put, data_list))


def get(refs: Ref | Sequence[Ref]) -> Any:
    """Return the value of a reference, or the values of several, as non-blocking calls return them.

    Raises:
        WorkerError: A rank failed.
        CallTimeoutError: In a ``deadline`` block: they were not there in time.
    """
    cluster = runtimes.current().cluster
    if isinstance(refs, (list, tuple)):
        return fetch_in_time(cluster, list(refs))
    return fetch_in_time(cluster, [refs])[0]
