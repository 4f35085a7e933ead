"""``ResourcePoolManager``: named pools of a job, and which role is on which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core import runtime as runtimes
from core.cluster import ReserveRequest
from core.errors import PoolSpecError, UnknownNameError
from core.pool.resource_pool import RayResourcePool
from core.pool.spec import PoolSpec


@dataclass
class ResourcePoolManager:
    """Pools by name, and the pool's name of each role.

    ``resource_pool_spec`` has the processes per node of each pool; ``mapping`` the pool of each role.
    """

    resource_pool_spec: Mapping[str, Sequence[int]]
    mapping: Mapping[str, str]
    max_colocate_count: int = 3
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict)

    def create_resource_pool(self) -> None:
        """Make the pools, after a look whether all of them fit on the nodes at once.

        Raises:
            PoolSpecError: They need more than the cluster has, node by node; nothing was made.
        """
        self._check_room()
        for name, process_on_nodes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = RayResourcePool(
                process_on_nodes, use_gpu=True, name_prefix=name, max_colocate_count=self.max_colocate_count
            )

    def get_resource_pool(self, role: str) -> RayResourcePool:
        """Return the pool of a role.

        Raises:
            UnknownNameError: The role has no pool, or the pools were not made yet.
        """
        name = self.mapping.get(role)
        if name is None or name not in self.resource_pool_dict:
            known = tuple(self.mapping)
            raise UnknownNameError(
                f"role {role!r} has no pool; roles are {', '.join(map(str, known)) or 'none'}, pools made are "
                f"{', '.join(self.resource_pool_dict) or 'none'}",
                name=str(role),
                known=tuple(map(str, known)),
            )
        return self.resource_pool_dict[name]

    def get_n_gpus(self) -> int:
        """Return how many GPUs all pools have together."""
        return sum(sum(process_on_nodes) for process_on_nodes in self.resource_pool_spec.values())

    def _check_room(self) -> None:
        counts = [count for process_on_nodes in self.resource_pool_spec.values() for count in process_on_nodes]
        if not counts:
            return
        spec = PoolSpec.checked(counts, True, self.max_colocate_count)
        request = ReserveRequest("+".join(self.resource_pool_spec), spec.process_on_nodes, spec.bundle("cuda"))
        shortage = runtimes.current().cluster.shortage(request)
        if shortage is not None:
            raise PoolSpecError(str(shortage))
