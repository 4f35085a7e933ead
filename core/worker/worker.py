"""``Worker``: the base of classes whose methods run on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypedDict

from core.cluster import adopt_environ, environ
from core.cluster.fetching import node_address
from core.dispatch import Dispatch, Execute, register
from core.errors import MissingKeyError, RegistrationError
from core.worker.facts import PROTECTED_VARIABLES, RankFacts, device_index, normalized_visible_devices, visible_devices
from core.worker.ports import keep_port


class DispatchCollect(TypedDict):
    """A worker's registrations in meshes: its dp rank and whether its result counts, by mesh."""

    dispatch_dp_rank: dict[str, int]
    collect_dp_rank: dict[str, bool]


class Worker:
    """One rank of a worker group.

    Before the constructor runs, the environment has WORLD_SIZE, RANK, LOCAL_WORLD_SIZE, LOCAL_RANK, RAY_LOCAL_RANK,
    RAY_LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, WG_PREFIX, WG_BACKEND and the visible devices, so that
    ``torch.distributed.init_process_group()`` just works there. LOCAL_RANK is the index of this worker's device among
    those that its process sees, so that ``torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`` is right; the rank on
    the node is RAY_LOCAL_RANK. A worker can also be built outside a group, in a process that has these variables.
    """

    def __init__(self, cuda_visible_devices: str | None = None) -> None:
        """Read the rank facts from the environment; ``cuda_visible_devices`` replaces what it says of devices.

        Raises:
            UsageError: RANK or WORLD_SIZE is not set, or the variables for devices contradict each other.
        """
        if cuda_visible_devices is not None and cuda_visible_devices != "not set":
            adopt_environ({"CUDA_VISIBLE_DEVICES": cuda_visible_devices})
        adopt_environ(normalized_visible_devices(environ()))
        if cuda_visible_devices is not None and "LOCAL_RANK" in environ():
            adopt_environ(device_index(environ()))
        self._rank_facts = RankFacts.read(environ())

    @classmethod
    def env_keys(cls) -> list[str]:
        """Return the names of the environment variables with a worker's rank and devices."""
        return [*PROTECTED_VARIABLES, "CUDA_VISIBLE_DEVICES"]

    @property
    def _facts(self) -> RankFacts:
        """The rank facts, also of a subclass that never called ``super().__init__()``."""
        facts: RankFacts | None = self.__dict__.get("_rank_facts")
        if facts is None:
            facts = self._rank_facts = RankFacts.read(environ())
        return facts

    @property
    def rank(self) -> int:
        """Return this worker's rank, from 0."""
        return self._facts.rank

    @property
    def world_size(self) -> int:
        """Return the number of ranks of the group."""
        return self._facts.world_size

    @property
    def local_rank_on_node(self) -> int:
        """Return this worker's rank among the group's workers on its node, from 0; LOCAL_RANK is of its device."""
        return self._facts.local_rank_on_node

    @property
    def _rank(self) -> int:
        return self._facts.rank

    @property
    def _world_size(self) -> int:
        return self._facts.world_size

    def get_master_addr_port(self) -> tuple[str, str]:
        """Return the address and the port on which rank 0 gathers the group."""
        return self._facts.master_addr, self._facts.master_port

    def get_cuda_visible_devices(self) -> str:
        """Return the visible devices such as "0", or "not set"."""
        return visible_devices(environ())

    def get_available_master_addr_port(self) -> tuple[str, str]:
        """Return this node's address and a free port, which this process holds until another socket listens on it."""
        return self._get_node_ip().strip("[]"), str(self._get_free_port())

    def get_availale_master_addr_port(self) -> tuple[str, str]:
        """Return the same as ``get_available_master_addr_port``, under the name as verl spells it."""
        return self.get_available_master_addr_port()

    @staticmethod
    def _get_node_ip() -> str:
        """Return the address of this process's node, under the name that drivers for verl call."""
        return node_address()

    @staticmethod
    def _get_free_port() -> int:
        """Return a free port, which this process holds until another socket listens on it."""
        return keep_port()

    fused_worker_attr_name: ClassVar[str] = "fused_worker_dict"

    @property
    def fused_worker_dict(self) -> dict[str, Any]:
        """Return the workers that share this process, by role; empty in a process of its own."""
        workers: dict[str, Any] = self.__dict__.setdefault("_fused_workers", {})
        return workers

    @fused_worker_dict.setter
    def fused_worker_dict(self, workers: dict[str, Any]) -> None:
        self.__dict__["_fused_workers"] = workers

    def get_fused_worker_by_name(self, worker_name: str) -> Any:
        """Return the worker of another role in this process, None if there is none."""
        return self.fused_worker_dict.get(worker_name)

    @property
    def _meshes(self) -> dict[str, tuple[int, bool]]:
        """Each mesh's dp rank of this worker, and whether its result counts."""
        meshes: dict[str, tuple[int, bool]] = self.__dict__.setdefault("_registered_meshes", {})
        return meshes

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        """Register this worker's dp rank in a mesh, once per mesh.

        Args:
            mesh_name: The name of the mesh.
            dp_rank: This worker's data parallel rank in it.
            is_collect: Whether this worker's result is collected.

        Raises:
            RegistrationError: It was registered before.
        """
        if mesh_name in self._meshes:
            raise RegistrationError(f"mesh {mesh_name!r} was registered before, as {self._meshes[mesh_name]}")
        self._meshes[mesh_name] = (int(dp_rank), bool(is_collect))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_dispatch_info(self, mesh_name: str) -> int:
        """Return this worker's dp rank in a mesh.

        Raises:
            MissingKeyError: The worker has not registered itself for it.
        """
        return self._mesh(mesh_name)[0]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_collect_info(self, mesh_name: str) -> bool:
        """Return whether this worker's result counts in a mesh; errors as in ``_query_dispatch_info``."""
        return self._mesh(mesh_name)[1]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def query_collect_info(self, mesh_name: str) -> bool:
        """Return whether this worker's result counts in a mesh; errors as in ``_query_dispatch_info``."""
        return self._mesh(mesh_name)[1]

    def _mesh(self, mesh_name: str) -> tuple[int, bool]:
        if mesh_name not in self._meshes:
            known = tuple(self._meshes)
            raise MissingKeyError(
                f"{type(self).__name__} is in no mesh {mesh_name!r}, it registered {', '.join(known) or 'none'}; call "
                f"_register_dispatch_collect_info in its constructor",
                key=mesh_name,
                available=known,
            )
        return self._meshes[mesh_name]

    def get_dispatch_collect(self) -> DispatchCollect:
        """Return the dp rank and the collect flag by mesh, for another worker's ``set_dispatch_collect``."""
        return {
            "dispatch_dp_rank": {mesh: dp_rank for mesh, (dp_rank, _) in self._meshes.items()},
            "collect_dp_rank": {mesh: flag for mesh, (_, flag) in self._meshes.items()},
        }

    def set_dispatch_collect(
        self, mesh_name: str, dispatch_dp_rank: Mapping[str, int], collect_dp_rank: Mapping[str, bool]
    ) -> None:
        """Take over another worker's place under ``mesh_name``: its entry of that name, or its only one.

        Raises:
            RegistrationError: The mesh was registered before, or it is unclear which entry is meant.
        """
        if mesh_name in dispatch_dp_rank:
            source = mesh_name
        elif len(dispatch_dp_rank) == 1:
            source = next(iter(dispatch_dp_rank))
        else:
            known = ", ".join(dispatch_dp_rank) or "none"
            raise RegistrationError(f"which place mesh {mesh_name!r} takes over is unclear: there are {known}")
        self._register_dispatch_collect_info(mesh_name, dispatch_dp_rank[source], collect_dp_rank[source])

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def execute_with_func_generator(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return ``func(self, *args, **kwargs)`` on each rank's share of the rows."""
        return func(self, *args, **kwargs)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def execute_func_rank_zero(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return ``func(*args, **kwargs)`` of rank 0."""
        return func(*args, **kwargs)
