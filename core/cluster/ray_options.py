"""What a worker process is started with, in Ray's words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from core.cluster.base import ONE_RETURN_PREFIXES, SpawnRequest


def actor_options(request: SpawnRequest) -> dict[str, Any]:
    """Return the options of an actor, all but where it goes."""
    options: dict[str, Any] = {"num_cpus": request.num_cpus}
    if request.name:
        options["name"] = request.name
    options |= request.options
    if request.num_gpus and request.device == "GPU":
        # The group says how its slots' devices are shared, not the class.
        options["num_gpus"] = request.num_gpus
    elif request.num_gpus:
        options["resources"] = {**options.get("resources", {}), request.device: request.num_gpus}
    if request.env:
        runtime_env = dict(request.options.get("runtime_env") or {})
        variables = {**runtime_env.get("env_vars", {}), **request.env}
        options["runtime_env"] = {**runtime_env, "env_vars": variables}
    return options


def two_return_entries(actor_class: type) -> Iterator[Callable[..., Any]]:
    """Yield the shell's methods that have two returns: saying so once is quick, at each call slow."""
    for name in dir(actor_class):
        if (
            name.startswith("_podium_")
            and not name.startswith(ONE_RETURN_PREFIXES)
            and callable(method := getattr(actor_class, name))
            and not isinstance(method, type)
        ):
            yield method


def offers_directly(actor_class: type) -> bool:
    """Return whether workers of this class keep results for others: each is then made with a thread for that."""
    return bool(getattr(actor_class, "_podium_offers_directly", False))
