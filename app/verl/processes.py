"""How every process that Ray starts for the program gets verl's modules replaced.

Ray asks a function named by ``RAY_RUNTIME_ENV_HOOK`` for the runtime environment of the job. There the job's process
setup hook is set: it is an environment variable of the job, which Ray merges into what tasks and actors have of their
own, nested and detached ones too. A hook of the program's own runs after it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

from app.verl.replace import check_verl, replace_modules
from core.errors import UsageError

_RAYS_VARIABLE = "RAY_RUNTIME_ENV_HOOK"
_EARLIER = "PODIUM_EARLIER_RUNTIME_ENV_HOOK"
_SETUP = "worker_process_setup_hook"


def use_core_for_verl() -> str:
    """Replace verl's controller and batch in this process, and in those that Ray will start for it.

    Returns:
        verl's version.

    Raises:
        UsageError: verl cannot be replaced; nothing was.
    """
    version = check_verl(sys.modules)
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        raise UsageError(
            "--verl comes too late: Ray is initialized already, and its workers would import verl's own controller"
        )
    own = f"{__name__}.{runtime_env_with_replacement.__name__}"
    earlier = os.environ.get(_RAYS_VARIABLE, "")
    if earlier and earlier != own:
        os.environ[_EARLIER] = earlier
    os.environ[_RAYS_VARIABLE] = own
    replace_modules()
    return version


def runtime_env_with_replacement(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the runtime environment of a job with the setup hook; Ray calls this in ``ray.init``."""
    if earlier := os.environ.get(_EARLIER):
        runtime_env = resolve_name(earlier)(runtime_env)
    wanted = dict(runtime_env or {})
    theirs = wanted.get(_SETUP)
    wanted[_SETUP] = f"{__name__}.{start_worker_process.__name__}" if theirs is None else _before(theirs)
    return wanted


def start_worker_process() -> None:
    """Replace verl's modules in a process that Ray has started."""
    check_verl(sys.modules)
    replace_modules()


def _before(hook: str | Callable[[], object]) -> Callable[[], None]:
    """Return a setup hook that runs ours and then the program's."""

    def start_worker_process_and_theirs() -> None:
        start_worker_process()
        (resolve_name(hook) if isinstance(hook, str) else hook)()

    return start_worker_process_and_theirs
