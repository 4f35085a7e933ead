"""A worker class with the arguments it will be built with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import UsageError


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

    def spawn_options(self) -> dict[str, Any]:
        """Return a fresh copy of the options of one worker's process."""
        options = {**self._remote_options, **self._options}
        if self._resources:
            options["resources"] = {**options.get("resources", {}), **self._resources}
        return options


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
