"""``RayWorkerGroup``: workers on the slots of a pool, led as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from core.cluster import ActorHandle
from core.data.shares import Uneven
from core.dispatch import Execute
from core.dispatch.register import as_uneven
from core.errors import RegistrationError, UnknownNameError, UsageError
from core.group.base import WorkerGroup
from core.group.bind import Method, bind
from core.group.call import called_by_name, perform
from core.group.class_args import RayClassWithInitArgs
from core.group.group_state import GroupState
from core.group.make import WantedGroup, find_group, start_group, take_names, taken_names, view_of_role
from core.group.start import StartSettings
from core.group.travel import arrive, sent_group
from core.health.policy import DeathPolicy, HealthOptions
from core.pool import RayResourcePool
from core.runtime import OnDeath
from core.worker.fused import FusedWorker, Role

P = ParamSpec("P")
W = TypeVar("W")


class RayWorkerGroup(WorkerGroup):
    """One worker per slot of a pool. Its registered methods are the group's own: calling one runs it on the ranks.

    ``close``, leaving a ``with`` block, or dropping the last reference ends the workers; detached ones only ``close``.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool | Sequence[int] | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        bin_pack: bool = True,
        name_prefix: str | None = None,
        detached: bool = False,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[ActorHandle] | None = None,
        *,
        device_name: str = "cuda",
        use_gpu: bool | None = None,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        master_port_range: Sequence[int] | None = None,
        worker_env: Mapping[str, str] | None = None,
        profile_steps: Sequence[int] | None = None,
        worker_nsight_options: Mapping[str, Any] | None = None,
        ray_wait_register_center_timeout: float = 300.0,
        uneven: str | Uneven | None = None,
        call_timeout_s: float | None = None,
        on_death: str | OnDeath | None = None,
        max_restarts: int | None = None,
    ) -> None:
        """Start the workers and wait until all are up.

        Args:
            resource_pool: The pool, or a plain list of processes per node such as ``[4]``.
            ray_cls_with_init: The worker class with its constructor's arguments.
            bin_pack: Whether the processes of a node's list entry must be on one node.
            name_prefix: The group's name in the record; it also starts the workers' names on the cluster.
            detached: Whether the workers outlive this driver; the pool must be detached too. Only ``close`` ends them.
            worker_names: Instead of a pool: workers that exist, by name; see ``from_detached``.
            worker_handles: Instead of a pool: workers that exist.
            device_name: "cuda", "npu" or "cpu".
            use_gpu: Whether a worker takes a share of its slot's accelerator; as the pool has it when not given.
            master_addr: With ``master_port``: a rendezvous of your own instead of one found on rank 0's node.
            master_port: See ``master_addr``.
            master_port_range: ``(first, end)`` of the ports that rank 0 tries.
            worker_env: Variables for the workers' processes, there before anything is imported.
            profile_steps: When not empty, workers on GPUs run under Nsight Systems with ``worker_nsight_options``.
            worker_nsight_options: See ``profile_steps``; passed on to the cluster as they are.
            ray_wait_register_center_timeout: Seconds to wait for the workers.
            uneven: What to do with rows that do not divide, for methods that do not say: "error", "pad" or "split".
            call_timeout_s: How long a call waits for its ranks, for methods that do not say; 0 for as long as it takes.
            on_death: What follows a worker's death: "abort", "raise" or "restart"; as ``set_health`` has it if not
                given.
            max_restarts: How often the group may be restarted.

        Raises:
            UsageError: An argument makes no sense; nothing was started.
            PlacementError: The pool does not fit on the cluster, or has no room for one more group.
            WorkerStartError: A worker did not come up; those that did are gone again.
        """
        exist = worker_names is not None or worker_handles is not None
        if ray_cls_with_init is None or (resource_pool is None) is not exist:
            raise UsageError(
                "RayWorkerGroup needs a resource pool or workers that exist, one of the two, and a RayClassWithInitArgs"
            )
        if not isinstance(ray_cls_with_init, RayClassWithInitArgs):
            raise UsageError(
                f"RayWorkerGroup needs RayClassWithInitArgs(your_class, ...) as its worker class, got "
                f"{getattr(ray_cls_with_init, '__name__', None) or type(ray_cls_with_init).__name__}"
            )
        self._wanted = WantedGroup(
            class_args=ray_cls_with_init,
            name_prefix=name_prefix,
            health=HealthOptions.checked(on_death, max_restarts, call_timeout_s),
            uneven=None if uneven is None else as_uneven(uneven),
            start=partial(
                StartSettings.checked,
                bin_pack=bin_pack,
                device_name=device_name,
                use_gpu=use_gpu,
                detached=detached or exist,
                rendezvous=(master_addr, master_port),
                master_port_range=master_port_range,
                worker_env=worker_env or {},
                nsight=(profile_steps, worker_nsight_options),
                timeout_s=ray_wait_register_center_timeout,
            ),
        )
        self._wanted.start()
        if resource_pool is None:
            self._init_with_detached_workers(worker_names=worker_names, worker_handles=worker_handles)
        else:
            self._init_with_resource_pool(
                resource_pool=resource_pool,
                ray_cls_with_init=ray_cls_with_init,
                bin_pack=bin_pack,
                detached=detached,
                worker_env=worker_env,
            )
        if "_state" not in self.__dict__:
            raise UsageError(
                f"{type(self).__qualname__} overrides how its workers are made and did not call "
                f"super()._init_with_resource_pool(...): RayWorkerGroup starts the workers there"
            )

    def _init_with_resource_pool(
        self,
        resource_pool: RayResourcePool | Sequence[int],
        ray_cls_with_init: RayClassWithInitArgs,
        bin_pack: bool = True,
        detached: bool = False,
        worker_env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers; a subclass may override it to change the arguments, and must call it."""
        start = self._wanted.start(bin_pack=bin_pack, detached=detached, worker_env=worker_env or {})
        self._state, methods = start_group(resource_pool, replace(self._wanted, class_args=ray_cls_with_init), start)
        self._offer(methods)

    def _init_with_detached_workers(
        self, worker_names: Sequence[str] | None = None, worker_handles: Sequence[ActorHandle] | None = None
    ) -> None:
        """Take workers that exist; as ``_init_with_resource_pool`` for a subclass."""
        self._state, methods = find_group(worker_names, worker_handles, self._wanted, self._wanted.start())
        self._offer(methods)

    @classmethod
    def from_detached(
        cls,
        name_prefix: str | None = None,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[ActorHandle] | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        **kwargs: Any,
    ) -> RayWorkerGroup:
        """Return a group over workers that exist, started detached by this driver or another in the same namespace.

        Item ``i`` of the names or handles becomes rank ``i``. Nothing is reserved; only ``close`` ends the workers.
        ``kwargs`` are those of the constructor.

        Raises:
            UsageError: Names or handles make no sense, or one is not a worker of Podium's.
            UnknownNameError: No worker of that name lives.
            WorkerDiedError: One is gone.
        """
        return cls(
            None,
            ray_cls_with_init,
            name_prefix=name_prefix,
            worker_names=worker_names if worker_names is not None or worker_handles is not None else (),
            worker_handles=worker_handles,
            **kwargs,
        )

    @classmethod
    def of(
        cls,
        resource_pool: RayResourcePool | Sequence[int],
        worker_class: Callable[P, W],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> W:
        """Start a group of ``worker_class(*args, **kwargs)``, typed as the class itself.

        An editor and a type checker then know the methods and the types of their arguments, and the constructor's too.
        It is a ``RayWorkerGroup`` all the same: methods that return a list by rank (ONE_TO_ALL and the like) are typed
        as what one rank returns. For other settings of the group use its constructor.

        Raises:
            UsageError: ``worker_class`` is not a class; otherwise as the constructor does.
        """
        group = cls(resource_pool, RayClassWithInitArgs(worker_class, *args, **kwargs))
        return cast("W", group)

    def _offer(self, methods: Sequence[Method]) -> None:
        """Offer the methods of workers that are up."""
        for method in methods:
            setattr(self, method.name, bind(method, self._perform))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process, where it arrives as a group on the same workers; see ``core.group.travel``."""
        return arrive, (type(self), sent_group(self._state, self.__dict__))

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, RayWorkerGroup]:
        """Return one group per role of a colocated group, each with that role's methods under their own names.

        They share this group's processes, which live as long as any of them.

        Raises:
            UnknownNameError: This group has no role of that name.
        """
        return {role: self._of_role(role) for role in prefix_set}

    def fuse(self, prefix_set: Iterable[str]) -> None:
        """Make the roles of a colocated group attributes of this group: ``group.actor.update(batch)``.

        Raises:
            UnknownNameError: This group has no role of that name.
            RegistrationError: A role's name would hide something of every group's.
        """
        for role in prefix_set:
            if role in taken_names():
                raise RegistrationError(f"role {role!r} would hide the {role!r} of every worker group; rename it")
            setattr(self, role, self._of_role(role))

    def _of_role(self, role: str) -> RayWorkerGroup:
        """Return the group of one of the roles that share this group's processes."""
        state = self._state
        user_class = state.settings.class_args.user_class
        roles: Mapping[str, Role] = user_class.podium_roles if issubclass(user_class, FusedWorker) else {}
        if role not in roles:
            known = ", ".join(roles) or "none"
            raise UnknownNameError(
                f"group {self.name} has no role {role!r}; it has {known}", name=role, known=tuple(roles)
            )
        view = object.__new__(type(self))
        view._state, methods = view_of_role(state, role, roles[role])
        view._offer(methods)
        return view

    def _perform(self, method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return perform(self._state, self, method, args, kwargs)

    @property
    def _dispatch_info(self) -> dict[str, list[int]]:
        """Return the data-parallel rank of each rank by mesh, under the name that verl's own functions read."""
        return self._state.dispatch_info

    @property
    def _collect_info(self) -> dict[str, list[bool]]:
        """Return whether each rank's result counts, by mesh, under the name that verl's own functions read."""
        return self._state.collect_info

    @property
    def ray_cls_with_init(self) -> RayClassWithInitArgs:
        """Return the worker class with its constructor's arguments."""
        return self._state.settings.class_args

    @property
    def name(self) -> str:
        """Return the group's name, unique in a run."""
        return self._state.name

    @property
    def name_prefix(self) -> str:
        """Return how the workers' names on the cluster start."""
        return self._state.settings.name_prefix

    @property
    def master_address(self) -> str:
        """Return the address of the workers' rendezvous."""
        return self._state.started.master_addr

    @property
    def master_port(self) -> str:
        """Return the port of the workers' rendezvous."""
        return str(self._state.started.master_port)

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self._state.started.world_size

    @property
    def resource_pool(self) -> RayResourcePool:
        """Return the pool the workers are on."""
        return self._state.pool

    @property
    def workers(self) -> list[ActorHandle]:
        """Return the cluster's handles of the workers, in rank order.

        A worker lives as long as one of its handles, or the pool, also when the group is dropped meanwhile; ``close``
        ends it all the same.
        """
        return self._state.give_handles()

    @property
    def worker_names(self) -> list[str]:
        """Return the workers' names on the cluster, in rank order."""
        live = self._state.live
        return [] if live is None else list(live.names)

    def execute_all(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method on every rank and return one reference per rank; see ``execute_all_async``."""
        return self.execute_all_async(method_name, *args, **kwargs)

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method on every rank and return one reference per rank.

        When every argument is a list of ``world_size`` items, item ``i`` goes to rank ``i``, else all go to all.
        """
        return self._perform(called_by_name(method_name, Execute.ALL, False, self._state.settings.role), args, kwargs)

    def execute_all_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method on every rank and return the values by rank; lists as in ``execute_all_async``."""
        return self._perform(called_by_name(method_name, Execute.ALL, True, self._state.settings.role), args, kwargs)

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method on rank 0 and return a reference."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs)

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method on rank 0 and return a reference."""
        return self._perform(
            called_by_name(method_name, Execute.RANK_ZERO, False, self._state.settings.role), args, kwargs
        )

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method on rank 0 and return its value."""
        return self._perform(
            called_by_name(method_name, Execute.RANK_ZERO, True, self._state.settings.role), args, kwargs
        )

    def _execute_remote_single_worker(self, worker: ActorHandle, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method of one worker and return a reference; it is not recorded."""
        return self._state.runtime.cluster.ask(worker, method_name, args, kwargs)

    def start_worker_aliveness_check(self, every_n_seconds: float = 1) -> None:
        """End this process by SIGABRT when a worker dies, busy or idle, whatever the group's policy was.

        The death is written to the record before that. The kernel reports the deaths of workers on the driver's machine
        at once; others are polled.

        Args:
            every_n_seconds: The interval for polling workers, in seconds.

        Raises:
            UsageError: The interval is not positive.
        """
        if every_n_seconds <= 0:
            raise UsageError(f"an aliveness check needs a positive interval, got {every_n_seconds} s")
        policy = DeathPolicy(OnDeath.ABORT)
        self._state.watch(replace(self._state.health, policy=policy, ping_every_s=every_n_seconds))

    def close(self) -> None:
        """End the workers, detached ones too; may be called twice. A pool made for this group alone is closed too."""
        self._state.close()

    def __enter__(self) -> RayWorkerGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.release()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Declare the class's registered methods for type checkers."""


take_names(name for name in dir(RayWorkerGroup) if not name.startswith("__"))


def state_of(group: RayWorkerGroup) -> GroupState:
    """Return what live changes and restarts work on; not for drivers."""
    return group._state  # noqa: SLF001 (a public name would hide a method of that name of the user's)
