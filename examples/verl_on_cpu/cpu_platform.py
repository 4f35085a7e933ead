"""A platform "cpu" for verl, so that its trainers run on a machine without accelerators.

verl loads it with ``VERL_USE_EXTERNAL_MODULES=cpu_platform VERL_PLATFORM=cpu`` and this folder on ``PYTHONPATH``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import verl.utils.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

# verl names the backend of the CPU and that of the device, "cpu:gloo,cpu:gloo" here, which torch refuses.
verl.utils.distributed.initialize_global_process_group_ray = functools.partial(
    verl.utils.distributed.initialize_global_process_group_ray, backend="gloo"
)


class _Device(ModuleType):
    """``torch.cpu`` with what verl asks of a device's module beyond it: a CPU has no memory figures of its own."""

    def __getattr__(self, name: str) -> Any:
        if name in {"memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"}:
            return lambda *_: 0
        if name == "get_device_name":
            return lambda *_: "cpu"
        if name == "mem_get_info":
            return lambda *_: (1 << 30, 1 << 30)
        if name in {"empty_cache", "ipc_collect", "reset_peak_memory_stats", "synchronize", "set_device"}:
            return lambda *_: None
        if name == "manual_seed_all" or name == "manual_seed":
            return torch.manual_seed
        if name in {"get_rng_state", "set_rng_state"}:
            return lambda *state: getattr(torch, name)(*state)
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """Processes on CPUs, with gloo between them."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("torch.cpu")

    def is_available(self) -> bool:
        """Return that there always is one."""
        return True

    def current_device(self) -> torch.device:
        """Return the device of tensors; on CPUs there is one, without a number."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """Return the number of devices."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Do nothing: there is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: CPUs have no queue."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: there is no allocator of a device."""

    def empty_cache(self) -> None:
        """Do nothing."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return that there is none."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return the backend between CPUs."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that Ray sets for logical GPUs."""
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Mark nothing."""
        yield

    def profiler_start(self) -> None:
        """Do nothing."""

    def profiler_stop(self) -> None:
        """Do nothing."""

    def ray_resource_name(self) -> str:
        """Return the resource that a worker takes: a logical GPU."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return that there are none."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return that tensors are not shared that way."""
        return False

    def cudart(self) -> None:
        """Return that there is none."""
