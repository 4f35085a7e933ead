"""What a resource pool is asked to be: checked values, before any cluster is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
            PoolSpecError: A count is no whole number above zero.
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


def device_resource(device_name: str) -> str:
    """Return Ray's resource for a torch device: GPU for "cuda", NPU for "npu", nothing for "cpu".

    Raises:
        PoolSpecError: The device is not known.
    """
    try:
        return _DEVICES[device_name.lower()]
    except KeyError:
        raise PoolSpecError(f"device {device_name!r} is not known; choose from {', '.join(_DEVICES)}") from None
