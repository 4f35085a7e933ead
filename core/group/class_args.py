"""A worker class with the arguments it will be built with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core import runtime as runtimes
from core.cluster import ActorHandle, SpawnRequest
from core.errors import UsageError
from core.pool import device_resource
from core.worker import self_built_class


class ClassWithInitArgs:
    """A class and the arguments of its constructor, to be built later and elsewhere."""

    def __init__(self, cls: type | Any, *args: Any, **kwargs: Any) -> None:
        """Keep the class and the arguments."""
        self.cls = cls
        self.args = args
        self.kwargs = kwargs
        self.fused_worker_used = False

    def __call__(self) -> Any:
        """Build it here."""
        return self.cls(*self.args, **self.kwargs)


class RayClassWithInitArgs(ClassWithInitArgs):
    """A worker class, plain or wrapped by ``ray.remote``, with its constructor's arguments.

    One of these may serve many groups: building a group never changes it.
    """

    def __init__(self, cls: type | Any, *args: Any, **kwargs: Any) -> None:
        """Keep the class and the arguments.

        Raises:
            UsageError: ``cls`` is neither a class nor one wrapped by ``ray.remote``.
        """
        super().__init__(cls, *args, **kwargs)
        self._user_class, self._remote_options = _unwrapped(cls)
        self._options: dict[str, Any] = {}
        self._resources: dict[str, float] = {}

    @property
    def user_class(self) -> type:
        """Return the plain class."""
        return self._user_class

    def set_additional_resource(self, additional_resource: Mapping[str, float]) -> None:
        """Ask for more of the cluster's resources per worker, such as ``{"ssd": 1}``."""
        self._resources = dict(additional_resource)

    def update_options(self, options: Mapping[str, Any]) -> None:
        """Add options of the cluster's own for the workers' processes; later ones win."""
        self._options.update(options)

    def __call__(
        self,
        placement_group: Any = None,
        placement_group_bundle_idx: int = 0,
        use_gpu: bool = True,
        num_gpus: float = 1,
        sharing_with: ActorHandle | None = None,
        device_name: str = "cuda",
    ) -> ActorHandle:
        """Start one worker outside any group and return the cluster's handle of it, without waiting.

        Args:
            placement_group: One of ``RayResourcePool.get_placement_groups()``.
            placement_group_bundle_idx: Which of its bundles.
            use_gpu: Whether the worker takes ``num_gpus`` of the bundle's accelerator.
            num_gpus: See ``use_gpu``; may be a fraction.
            sharing_with: A worker whose node and devices this one shares instead: it takes none of its own, and the
                constructor is handed the devices as ``cuda_visible_devices``.
            device_name: "cuda", "npu" or "cpu".

        Raises:
            UsageError: There is neither a placement group nor a worker to share with, or no such bundle.
            WorkerDiedError: The worker to share with is gone.
        """
        cluster = runtimes.current().cluster
        actor_class = self_built_class(self.user_class)
        options = self.spawn_options()
        if sharing_with is not None:
            try:
                (devices,) = cluster.fetch([cluster.ask(sharing_with, "get_cuda_visible_devices", (), {})])
            except AttributeError:
                raise UsageError("sharing_with must be a worker, one of a class derived from core.Worker") from None
            kwargs = {**self.kwargs, "cuda_visible_devices": devices}
            return cluster.spawn(
                SpawnRequest(actor_class, "", beside=sharing_with, args=self.args, kwargs=kwargs, options=options)
            )
        if placement_group is None:
            raise UsageError("a worker needs a placement group and a bundle of it, or sharing_with another worker")
        placement = cluster.adopt("", [placement_group])
        slot = {slot.bundle_index: slot for slot in placement.slots}.get(placement_group_bundle_idx)
        if slot is None:
            raise UsageError(f"a placement group of {len(placement.slots)} has no bundle {placement_group_bundle_idx}")
        device = device_resource(device_name)
        return cluster.spawn(
            SpawnRequest(
                actor_class,
                "",
                placement=placement,
                slot=slot,
                args=self.args,
                kwargs=self.kwargs,
                num_gpus=num_gpus if use_gpu and device else 0.0,
                device=device or "GPU",
                options=options,
            )
        )

    def spawn_options(self) -> dict[str, Any]:
        """Return a fresh copy of the options of one worker's process."""
        options = {**self._remote_options, **self._options}
        if self._resources:
            options["resources"] = {**options.get("resources", {}), **self._resources}
        return options


def _unwrap_ray_remote(cls: Any) -> Any:
    """Return the plain class of one that ``ray.remote`` wrapped; anything else as it is."""
    return _unwrapped(cls)[0] if hasattr(cls, "__ray_metadata__") else cls


def _unwrapped(cls: Any) -> tuple[type, dict[str, Any]]:
    """Return the plain class and the options that ``ray.remote`` was given."""
    if isinstance(cls, type):
        return cls, {}
    metadata = getattr(cls, "__ray_metadata__", None)
    plain = getattr(metadata, "modified_class", None)
    if not isinstance(plain, type):
        raise UsageError(f"a worker group needs a class, plain or wrapped by ray.remote; got {type(cls).__name__}")
    # Ray puts its own subclass around the user's; what the user wrote is the base of it.
    base = getattr(plain, "__ray_actor_class__", plain)
    options = {
        name: value for name, value in (getattr(cls, "_default_options", None) or {}).items() if value is not None
    }
    return base, options
