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
from core.config_values import config_values
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
from core.events import ConfigLogged, StepFinished, StepStarted
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
    """A driver's pools, steps and control commands. As a context manager it closes the pools on exit."""

    def __init__(self, runtime: Runtime) -> None:
        """Wrap a runtime."""
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

        Args:
            resources: The resources of the local cluster, such as ``{"CPU": 16, "GPU": 8}``; None means no limit.
        """
        return cls(Runtime(lambda: LocalCluster(resources)))

    def steps(self, total: int) -> Iterator[Step]:
        """Iterate over ``total`` steps and record the start and the end of each. The start of a step is a safe point.

        Args:
            total: The number of steps.

        Yields:
            The steps, with ``index`` from 1 to ``total``.

        Raises:
            UsageError: ``total`` is negative, or a worker on the local cluster calls this.
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

    def log_config(self, config: object) -> None:
        """Show values of this driver's configuration in the record, on the dashboard and when runs are compared.

        Args:
            config: A mapping (nested, a Hydra ``DictConfig`` too) or a dataclass. A later call adds values and replaces
                those of the same name. Do not pass secrets: the values are recorded as they are.

        Raises:
            UsageError: It is something else, or has more than 1,000 values.
        """
        self.runtime.bus.emit(ConfigLogged(self.runtime.clock.now_ns(), config_values(config)))

    def checkpoint(self) -> None:
        """Declare a safe point: a live change that waits for the driver is executed here, as at each step and call.

        In a worker it does nothing.

        Raises:
            KeyboardInterrupt: The driver was interrupted while it waited for calls in flight.
        """
        self.runtime.safe_point.run()

    def pool(self, name: str) -> RayResourcePool:
        """Return an open pool by name, such as one that a split made.

        Raises:
            UnknownNameError: There is no pool of that name.
        """
        return self.plane.find(name)

    def pause(self, pool: Pool, deadline_s: float = 60.0) -> Operation:
        """Start no new calls on the pool's groups until it is resumed; the next call waits.

        Args:
            pool: The pool or its name.
            deadline_s: How long to wait for the calls in flight, in seconds; after that the pool is active again.

        Returns:
            The operation, which succeeds when the calls in flight have ended.

        Raises:
            StateError: The pool is not active.
        """
        return self.plane.submit(Pause(_name(pool), _DRIVER, deadline_s=deadline_s))

    def resume(self, pool: Pool) -> Operation:
        """Start calls on the pool's groups again."""
        return self.plane.submit(Resume(_name(pool), _DRIVER))

    def resize(self, pool: Pool, process_on_nodes: Sequence[int], deadline_s: float = 120.0) -> RayResourcePool:
        """Give a pool other slots, now.

        Args:
            pool: The pool or its name.
            process_on_nodes: The new number of processes per node.
            deadline_s: How long the change may take, in seconds.

        Returns:
            The pool.

        Raises:
            PodiumError: As in ``RayResourcePool.resize``.
        """
        name = _name(pool)
        self.plane.execute(Resize(name, _DRIVER, tuple(process_on_nodes), deadline_s=deadline_s))
        return self.pool(name)

    def split(
        self, pool: Pool, parts: Mapping[str, tuple[int, Sequence[Group]]], deadline_s: float = 120.0
    ) -> dict[str, RayResourcePool]:
        """Split a pool into several, now. Groups get new workers on their part, with their state.

        Args:
            pool: The pool or its name.
            parts: The number of slots, in rank order, and the groups of each new pool by its name, such as
                ``{"train": (2, [actor]), "rollout": (2, [rollout])}``.
            deadline_s: How long the change may take, in seconds.

        Returns:
            The new pools by name.

        Raises:
            UsageError: The sizes do not add up, a group is not assigned to a part, or a name is taken.
            PodiumError: As in ``RayResourcePool.resize``.
        """
        wanted = tuple(Part(name, size, tuple(map(_name, groups))) for name, (size, groups) in parts.items())
        self.plane.execute(Split(_name(pool), _DRIVER, wanted, deadline_s=deadline_s))
        return {part.name: self.pool(part.name) for part in wanted}

    def merge(self, pools: Sequence[Pool], name: str, deadline_s: float = 120.0) -> RayResourcePool:
        """Merge pools into one, now, with all groups on all slots.

        Args:
            pools: The pools or their names, at least two.
            name: The name of the new pool.
            deadline_s: How long the change may take, in seconds.

        Returns:
            The new pool.

        Raises:
            UsageError: There are fewer than two pools, they differ, or there are more groups than
                ``max_colocate_count``.
            PodiumError: As in ``RayResourcePool.resize``.
        """
        self.plane.execute(Merge(tuple(map(_name, pools)), name, _DRIVER, deadline_s=deadline_s))
        return self.pool(name)

    def move(self, group: Group, pool: Pool, deadline_s: float = 120.0) -> None:
        """Move a group, and the groups in its processes, to another pool's slots, with its state.

        Args:
            group: The group or its name.
            pool: The target pool or its name.
            deadline_s: How long the change may take, in seconds.

        Raises:
            UsageError: It is on that pool already, or there is no room.
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
        """Close the pools and disconnect from the cluster; may be called twice."""
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
    """Execute a live change that waits for the driver, if any; see ``Controller.checkpoint``."""
    runtimes.current().safe_point.run()


def log_config(config: object) -> None:
    """Show values of the current driver's configuration; see ``Controller.log_config``."""
    Controller.current().log_config(config)


def _name(named: Named | str) -> str:
    return named if isinstance(named, str) else named.name


def steps(total: int) -> Iterator[Step]:
    """Iterate over ``total`` steps of the current driver and record them; see ``Controller.steps``."""
    return Controller.current().steps(total)


def init(num_cpus: float | None = None, num_gpus: float | None = None, **options: Any) -> Controller:
    """Set how Ray is started when a pool first needs it and it is not running.

    A Ray that is running already, and a cluster at RAY_ADDRESS, are used unchanged. Arguments that are not given keep
    their earlier value, and settings of the command line take precedence. It may be called again with equal settings,
    as in a notebook's cell.

    Args:
        num_cpus: Logical CPUs of the Ray that is started.
        num_gpus: Logical GPUs; with ``num_gpus=8`` a machine without GPUs takes pools of eight.
        **options: Further arguments of ``ray.init``.

    Returns:
        This driver's controller.

    Raises:
        UsageError: The cluster is in use already, with other settings.
    """
    runtime, settings = runtimes.current(), runtimes.ray_options
    if runtime.connected and not runtime.cluster.is_up():
        runtime.close()  # Ray was shut down; a new one is requested.
    resources = {} if settings.pinned else {"num_cpus": num_cpus, "num_gpus": num_gpus}
    requested = {name: value for name, value in resources.items() if value is not None} | options
    if runtime.connected:
        present = {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus, **settings.options}
        differs = [name for name, value in requested.items() if present.get(name) != value]
        if differs:
            raise UsageError(
                f"core.init({_listed(requested, differs)}) was called too late: the cluster is in use with "
                f"{_listed(present, differs)}; pass equal settings, call it before the first pool, or close it "
                f"with core.Controller.current().close()"
            )
        return Controller.current()
    settings.num_cpus = requested.pop("num_cpus", settings.num_cpus)
    settings.num_gpus = requested.pop("num_gpus", settings.num_gpus)
    settings.options |= requested
    return Controller.current()


def _listed(values: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={values[name]!r}" if name in values else f"no {name}" for name in names)


def parallel_put(data_list: Sequence[Any], max_workers: int | None = None) -> list[Ref]:
    """Put values into the cluster's store, several at a time.

    Args:
        data_list: The values.
        max_workers: The number of threads; by default one per value, at most 16.

    Returns:
        The references of the values, in order.

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
    """Return the value of a reference of a non-blocking call, or the values of several.

    Args:
        refs: A reference, or a list or tuple of references.

    Returns:
        The value, or the list of values.

    Raises:
        WorkerError: A rank failed.
        CallTimeoutError: They were not ready before the timeout of a ``deadline`` block.
    """
    cluster = runtimes.current().cluster
    if isinstance(refs, (list, tuple)):
        return fetch_in_time(cluster, list(refs))
    return fetch_in_time(cluster, [refs])[0]
