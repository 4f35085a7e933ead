"""Bringing a group's workers up: all processes at once, a rendezvous held by rank 0, then the constructors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.cluster import ActorHandle, Cluster, Placement, Ref, SpawnRequest
from core.cluster.ray_errors import Unread
from core.data.shares import Receipt
from core.errors import CallTimeoutError, UsageError, VersionSkewError, WorkerDiedError, WorkerStartError
from core.group.class_args import RayClassWithInitArgs
from core.group.clock import ClockAlignment
from core.group.worker_set import WorkerSet
from core.pool import RayResourcePool, device_resource
from core.runtime import DriverClock
from core.version import PACKAGE_PATH, VERSION
from core.worker import PROTECTED_VARIABLES, WorkerIdentity, entries, shell_class


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A group wanted on slots.

    ``prefix`` starts the workers' names; ``gpu_share`` is what one worker takes of its slot's accelerator;
    ``rendezvous`` is the user's own address and port; ``port_candidates`` are tried by rank 0 otherwise, 0 meaning any.
    """

    group: str
    prefix: str
    user_class: type
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    placement: Placement
    device: str
    gpu_share: float
    options: Mapping[str, Any]
    worker_env: Mapping[str, str]
    rendezvous: tuple[str, int] | None
    port_candidates: Sequence[int]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class StartSettings:
    """How a group's workers are started, from its constructor's arguments."""

    strategy: str
    device_name: str
    use_gpu: bool | None
    detached: bool
    rendezvous: tuple[str, int] | None
    port_candidates: Sequence[int]
    worker_env: Mapping[str, str]
    nsight: Mapping[str, Any] | None
    timeout_s: float

    @classmethod
    def checked(
        cls,
        *,
        bin_pack: bool,
        device_name: str,
        use_gpu: bool | None,
        detached: bool,
        rendezvous: tuple[str | None, int | str | None],
        master_port_range: Sequence[int] | None,
        worker_env: Mapping[str, str],
        nsight: tuple[Sequence[int] | None, Mapping[str, Any] | None],
        timeout_s: float,
    ) -> StartSettings:
        """Check a constructor's arguments.

        Raises:
            UsageError: One makes no sense.
        """
        profile_steps, options = nsight
        if profile_steps and options is None:
            raise UsageError(f"profile_steps={list(profile_steps)} needs worker_nsight_options")
        return cls(
            strategy="STRICT_PACK" if bin_pack else "PACK",
            device_name=device_name,
            use_gpu=use_gpu,
            detached=detached,
            rendezvous=_checked_rendezvous(*rendezvous),
            port_candidates=range(*master_port_range) if master_port_range is not None else (0,),
            worker_env=_checked_environment(worker_env),
            nsight=options if profile_steps and device_resource(device_name) == "GPU" else None,
            timeout_s=timeout_s,
        )

    def pool_of(self, process_on_nodes: Sequence[int]) -> RayResourcePool:
        """Return a pool for this group alone."""
        use_gpu = self.use_gpu is not False and bool(device_resource(self.device_name))
        return RayResourcePool(list(process_on_nodes), use_gpu=use_gpu, detached=self.detached)

    def place(self, pool: RayResourcePool) -> Placement:
        """Return the pool's slots, reserving them on first use.

        Raises:
            UsageError: The workers are to outlive the driver and the slots do not.
            PlacementError: The pool does not fit.
        """
        if self.detached and not pool.detached:
            raise UsageError(
                f"detached workers need a detached pool, the slots of {pool.name} end with the driver and they with "
                f"them; make it with detached=True"
            )
        return pool.placement_or_reserved(self.strategy, self.device_name)

    def request(
        self, group: str, prefix: str, made_of: RayClassWithInitArgs, pool: RayResourcePool, placement: Placement
    ) -> StartRequest:
        """Return what is asked of the cluster."""
        device = device_resource(self.device_name)
        takes_gpu = bool(device) and (pool.use_gpu if self.use_gpu is None else self.use_gpu)
        options = made_of.spawn_options()
        if self.detached:
            options["lifetime"] = "detached"
        if self.nsight is not None:
            options["runtime_env"] = {**options.get("runtime_env", {}), "nsight": dict(self.nsight)}
        return StartRequest(
            group=group,
            prefix=prefix,
            user_class=made_of.user_class,
            args=made_of.args,
            kwargs=made_of.kwargs,
            placement=placement,
            device=device or "GPU",
            gpu_share=1.0 / pool.max_colocate_count if takes_gpu else 0.0,
            options=options,
            worker_env=self.worker_env,
            rendezvous=self.rendezvous,
            port_candidates=self.port_candidates,
            timeout_s=self.timeout_s,
        )


def _never() -> bool:
    return False


def start_workers(
    cluster: Cluster, clock: DriverClock, request: StartRequest, is_cancelled: Callable[[], bool] = _never
) -> WorkerSet:
    """Start the workers of a group; when one fails, or ``is_cancelled`` says yes, all are gone again.

    Raises:
        WorkerStartError: A constructor raised or a process ended; the message has the rank, the error its traceback.
        CallTimeoutError: They were not up after ``timeout_s``, or the start was cancelled.
        VersionSkewError: A worker runs another Podium than the driver.
    """
    began = time.monotonic()
    deadline = began + request.timeout_s
    names = worker_names(request)
    actors: list[ActorHandle] = []
    try:
        for rank, name in enumerate(names):
            actors.append(spawn_worker(cluster, request, rank, name))
        address, port = request.rendezvous or rendezvous_at(cluster, actors[0], request, deadline, is_cancelled)
        built = [construct_on(cluster, actor, request, rank, (address, port)) for rank, actor in enumerate(actors)]
        identities = tuple(fetch_patiently(cluster, built, deadline, is_cancelled))
        check_versions(identities, names)
        clocks = align_clocks(cluster, clock, actors, deadline)
    except BaseException as error:
        for actor in actors:
            cluster.kill(actor)
        raise _explained(error, request, names) from None
    return WorkerSet(
        tuple(actors), names, identities, clocks, request.placement, address, port, time.monotonic() - began
    )


def worker_names(request: StartRequest) -> tuple[str, ...]:
    """Return the names that the workers get on the cluster, by rank."""
    return tuple(
        f"{request.prefix}{request.user_class.__name__}_{slot.node_index}:{slot.local_index}"
        for slot in request.placement.slots
    )


def spawn_worker(cluster: Cluster, request: StartRequest, rank: int, name: str) -> ActorHandle:
    """Start the process of one rank, on its slot."""
    return cluster.spawn(
        SpawnRequest(
            actor_class=shell_class(request.user_class),
            name=name,
            placement=request.placement,
            slot=request.placement.slots[rank],
            num_cpus=1.0,
            num_gpus=request.gpu_share,
            device=request.device,
            env=request.worker_env,
            options=request.options,
        )
    )


def fetch_patiently(
    cluster: Cluster, refs: Sequence[Ref], deadline: float, is_cancelled: Callable[[], bool] = _never
) -> list[Any]:
    """Return the values of ``refs``, asking four times a second whether they are still wanted.

    Raises:
        TimeoutError: They were not all there at ``deadline``, or the start was cancelled.
    """
    while True:
        left_s = _left_s(deadline)
        try:
            return cluster.fetch(refs, min(left_s, 0.25))
        except TimeoutError:
            if left_s <= 0.25 or is_cancelled():
                raise


def rendezvous_at(
    cluster: Cluster,
    first: ActorHandle,
    request: StartRequest,
    deadline: float,
    is_cancelled: Callable[[], bool] = _never,
) -> tuple[str, int]:
    """Let rank 0 hold a port on its node."""
    held = cluster.submit(first, entries.HOLD_PORT, (list(request.port_candidates),), {})
    (port,) = fetch_patiently(cluster, [held.result], deadline, is_cancelled)
    return request.placement.slots[0].node, port


def construct_on(
    cluster: Cluster, actor: ActorHandle, request: StartRequest, rank: int, rendezvous: tuple[str, int]
) -> Ref:
    """Have a rank's worker built in its process; return the reference of its identity."""
    variables = {
        **rank_variables(request.placement, rank, rendezvous),
        "WG_PREFIX": request.prefix,
        "WG_BACKEND": "ray",
    }
    args = (request.group, rank, variables, request.args, request.kwargs)
    return cluster.submit(actor, entries.CONSTRUCT, args, {}).result


def rank_variables(placement: Placement, rank: int, rendezvous: tuple[str, int]) -> dict[str, str]:
    """Return the variables that give a worker its place among the ranks; it finds LOCAL_RANK by itself."""
    slot = placement.slots[rank]
    n_on_node = str(sum(other.node_index == slot.node_index for other in placement.slots))
    return {
        "WORLD_SIZE": str(len(placement.slots)),
        "RANK": str(rank),
        "LOCAL_WORLD_SIZE": n_on_node,
        "RAY_LOCAL_RANK": str(slot.local_index),
        "RAY_LOCAL_WORLD_SIZE": n_on_node,
        "MASTER_ADDR": rendezvous[0],
        "MASTER_PORT": str(rendezvous[1]),
    }


def align_clocks(
    cluster: Cluster, clock: DriverClock, actors: Sequence[ActorHandle], deadline: float
) -> tuple[ClockAlignment, ...]:
    """Learn each worker's clock from two quick round trips, one worker at a time, so that none waits for another."""
    clocks = tuple(ClockAlignment() for _ in actors)
    for _ in range(2):
        for actor, alignment in zip(actors, clocks, strict=True):
            submitted_ns = clock.now_ns()
            pinged = cluster.submit(actor, entries.PING, (), {})
            receipt = Receipt.unpack(cluster.fetch([pinged.receipt], _left_s(deadline))[0])
            alignment.learn(submitted_ns, receipt.started_ns, receipt.finished_ns, clock.now_ns())
    return clocks


def check_versions(identities: Sequence[WorkerIdentity], names: Sequence[str]) -> None:
    """Compare each worker's Podium with the driver's.

    Raises:
        VersionSkewError: One differs.
    """
    for identity, name in zip(identities, names, strict=True):
        if (identity.version, identity.path) != (VERSION, PACKAGE_PATH):
            driver, worker = f"{VERSION} in {PACKAGE_PATH}", f"{identity.version} in {identity.path}"
            raise VersionSkewError(
                f"worker {name} runs Podium {worker}, the driver {driver}; install the same one on every node, and "
                f"keep no other folder named core on its path",
                driver=driver,
                worker=worker,
            )


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _explained(error: BaseException, request: StartRequest, names: Sequence[str]) -> BaseException:
    if isinstance(error, WorkerDiedError):
        rank = names.index(error.worker) if error.worker in names else -1
        return WorkerStartError(
            f"worker {error.worker or '?'} (rank {rank}) of group {request.group} ended before it was built: {error}",
            group=request.group,
            rank=rank,
            node=error.node,
            method="__init__",
        )
    if isinstance(error, Unread):
        return WorkerStartError(
            f"the arguments of {request.user_class.__name__}(...) could not be unpickled on a worker of group "
            f"{request.group}: {error.reason}; what they are made of must be importable there too, and must not raise "
            f"when it is unpickled",
            group=request.group,
            method="__init__",
            traceback_text=error.trace,
        )
    if isinstance(error, WorkerStartError) and not error.node and 0 <= error.rank < len(names):
        error.node = request.placement.slots[error.rank].node
    if isinstance(error, TimeoutError) and not isinstance(error, CallTimeoutError):
        return CallTimeoutError(
            f"the {len(names)} workers of group {request.group} were not up after {request.timeout_s:g} s; a "
            f"constructor may be waiting for a rank that does not come",
            group=request.group,
            method="__init__",
            timeout_s=request.timeout_s,
        )
    return error


def _checked_rendezvous(master_addr: str | None, master_port: int | str | None) -> tuple[str, int] | None:
    if master_addr is None and master_port is None:
        return None
    if master_addr is None or master_port is None:
        raise UsageError(
            f"master_addr={master_addr!r} and master_port={master_port!r} belong together: give both or none"
        )
    try:
        return master_addr, int(master_port)
    except ValueError:
        raise UsageError(f"master_port={master_port!r} is not a number") from None


def _checked_environment(worker_env: Mapping[str, str]) -> dict[str, str]:
    for name, value in worker_env.items():
        if name in PROTECTED_VARIABLES:
            raise UsageError(f"worker_env must not set {name}: every worker is given its own; take it out")
        if not isinstance(value, str):
            raise UsageError(f"worker_env[{name!r}] must be a string, got {type(value).__name__}")
    return dict(worker_env)
