"""What a worker process is started with, in Ray's words."""

from __future__ import annotations

from typing import Any

from core.cluster.base import SpawnRequest


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
