"""What a resource pool is asked to be: checked values, before any cluster is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.cluster import Placement
from core.errors import PoolSpecError

_DEVICES = {"cuda": "GPU", "gpu": "GPU", "npu": "NPU", "cpu": ""}


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Processes per node and what each gets. ``max_colocate_count`` groups may share the pool."""

    process_on_nodes: tuple[int, ...]
    use_gpu: bool
    max_colocate_count: int
    accelerator_type: str | None = None
    detached: bool = False

    @classmethod
    def checked(
        cls,
        process_on_nodes: Sequence[int] | None,
        use_gpu: bool,
        max_colocate_count: int,
        accelerator_type: str | None = None,
        detached: bool = False,
    ) -> PoolSpec:
        """Copy the caller's list and check it.

        Raises:
            PoolSpecError: A count is not a whole number above zero.
        """
        if isinstance(process_on_nodes, (int, str)):
            raise PoolSpecError(
                f"a pool is described by a list of processes per node, such as [4], got {process_on_nodes!r}"
            )
        counts = list(process_on_nodes or [])
        for count in (*counts, max_colocate_count):
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise PoolSpecError(
                    f"a pool needs whole numbers of processes above zero per node, got process_on_nodes="
                    f"{list(process_on_nodes or [])}, max_colocate_count={max_colocate_count}"
                )
        return cls(tuple(counts), use_gpu, max_colocate_count, accelerator_type, detached)

    @property
    def world_size(self) -> int:
        """Return the number of processes."""
        return sum(self.process_on_nodes)

    def fitted_to(self, placement: Placement) -> PoolSpec:
        """Return this with the processes per node of a placement, whose slots the cluster has put in order."""
        sizes = Counter(slot.node_index for slot in placement.slots)
        return replace(self, process_on_nodes=tuple(sizes[index] for index in sorted(sizes)))

    def bundle(self, device_name: str) -> dict[str, float]:
        """Return the resources of one slot.

        Raises:
            PoolSpecError: The device is not known.
        """
        bundle: dict[str, float] = {"CPU": float(self.max_colocate_count)}
        device = device_resource(device_name)
        if self.use_gpu and device:
            bundle[device] = 1.0
        if self.accelerator_type is not None:
            bundle[self.accelerator_type] = 1e-4
        return bundle


class ResourcePool:
    """A list of processes per node."""

    def __init__(
        self, process_on_nodes: Sequence[int] | None = None, max_colocate_count: int = 10, n_gpus_per_node: int = 8
    ) -> None:
        """Describe a pool.

        Raises:
            PoolSpecError: A count is not a whole number above zero.
        """
        self._spec = PoolSpec.checked(process_on_nodes, True, max_colocate_count)
        self.n_gpus_per_node = n_gpus_per_node

    @property
    def store(self) -> list[int]:
        """Return the processes per node, as a list of the caller's own."""
        return list(self._spec.process_on_nodes)

    @property
    def max_colocate_count(self) -> int:
        """Return how many groups may share the pool."""
        return self._spec.max_colocate_count

    @property
    def world_size(self) -> int:
        """Return the number of processes."""
        return self._spec.world_size

    def add_node(self, process_count: int) -> None:
        """Add a node with this many processes.

        Raises:
            PoolSpecError: The count is not a whole number above zero.
        """
        self._spec = PoolSpec.checked(
            [*self._spec.process_on_nodes, process_count],
            self._spec.use_gpu,
            self._spec.max_colocate_count,
            self._spec.accelerator_type,
            self._spec.detached,
        )

    def local_world_size_list(self) -> list[int]:
        """Return, by rank, how many processes are on the rank's node."""
        return [count for count in self._spec.process_on_nodes for _ in range(count)]

    def local_rank_list(self) -> list[int]:
        """Return, by rank, the rank among the processes of its node."""
        return [local_rank for count in self._spec.process_on_nodes for local_rank in range(count)]


def device_resource(device_name: str) -> str:
    """Return Ray's resource for a torch device: GPU for "cuda", NPU for "npu", nothing for "cpu".

    Raises:
        PoolSpecError: The device is not known.
    """
    try:
        return _DEVICES[device_name.lower()]
    except KeyError:
        raise PoolSpecError(f"device {device_name!r} is not known; choose from {', '.join(_DEVICES)}") from None
