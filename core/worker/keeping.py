"""Which of the ways of ``core.worker.live`` a class has chosen; asked on the driver, before anything is changed."""

from __future__ import annotations

import inspect
from enum import Enum

from core.worker.fused import FusedWorker
from core.worker.live import can_call


class Keeping(Enum):
    """How a class's state survives a change of its group."""

    STATELESS = "stateless"
    STATE = "state"
    RECONFIGURE = "reconfigure"
    NOTHING = "nothing"


def keeping(user_class: type) -> Keeping:
    """Return how a class's state survives; a fused worker's as that of the role that is hardest to keep."""
    if getattr(user_class, "stateless", False):
        return Keeping.STATELESS
    if _own(user_class, "reconfigure", 0):
        return Keeping.RECONFIGURE
    if hands_over(user_class):
        return Keeping.STATE
    if not issubclass(user_class, FusedWorker):
        return Keeping.NOTHING
    roles = [role.user_class for role in user_class.podium_roles.values()]
    if all(keeping(role) is Keeping.STATELESS for role in roles):
        return Keeping.STATELESS
    kept = all(keeping(role) is Keeping.STATELESS or hands_over(role) for role in roles)
    return Keeping.STATE if kept else Keeping.NOTHING


def hands_over(user_class: type) -> bool:
    """Whether the class can hand its state to other processes, whatever else it can."""
    return _own(user_class, "save_state", 0) and _own(user_class, "load_state", 1)


def unkept(user_class: type) -> tuple[str, ...]:
    """Return the names of the classes whose state would be lost: of roles, when they share a process."""
    if not issubclass(user_class, FusedWorker):
        return (user_class.__name__,)
    roles = [role.user_class for role in user_class.podium_roles.values()]
    return tuple(role.__name__ for role in roles if keeping(role) is not Keeping.STATELESS and not hands_over(role))


def _own(user_class: type, name: str, n_arguments: int) -> bool:
    """Whether the class has such a method; what every fused worker has does not count."""
    inherited = inspect.getattr_static(user_class, name, None) is vars(FusedWorker).get(name)
    return not inherited and can_call(user_class, name, n_arguments)
