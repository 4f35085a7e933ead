"""How a class's state survives a live change (``core.worker.live``); read on the driver, before anything is changed."""

from __future__ import annotations

import inspect
from enum import Enum

from core.worker.fused import FusedWorker
from core.worker.live import can_call


class StatePolicy(Enum):
    """How a class's state survives a change of its group."""

    STATELESS = "stateless"
    STATE = "state"
    RECONFIGURE = "reconfigure"
    NOTHING = "nothing"


def state_policy(user_class: type) -> StatePolicy:
    """Return how a class's state survives; a fused worker's as that of the role that is hardest to save."""
    if getattr(user_class, "stateless", False):
        return StatePolicy.STATELESS
    if _own(user_class, "reconfigure", 0):
        return StatePolicy.RECONFIGURE
    if can_save_state(user_class):
        return StatePolicy.STATE
    if not issubclass(user_class, FusedWorker):
        return StatePolicy.NOTHING
    roles = _parts(user_class)
    if all(state_policy(role) is StatePolicy.STATELESS for role in roles):
        return StatePolicy.STATELESS
    kept = all(state_policy(role) is StatePolicy.STATELESS or can_save_state(role) for role in roles)
    return StatePolicy.STATE if kept else StatePolicy.NOTHING


def can_save_state(user_class: type) -> bool:
    """Return whether the class can save its state for other processes, whatever else it can."""
    return _own(user_class, "save_state", 0) and _own(user_class, "load_state", 1)


def savers(user_class: type) -> tuple[type, ...]:
    """Return the classes that can save their state: of roles, when they share a process."""
    classes = (user_class,) if can_save_state(user_class) else _parts(user_class)
    return tuple(one for one in classes if state_policy(one) is not StatePolicy.STATELESS and can_save_state(one))


def unsaved(user_class: type) -> tuple[str, ...]:
    """Return the names of the classes whose state would be lost: of roles, when they share a process."""
    kept = savers(user_class)
    classes = kept if user_class in kept else _parts(user_class)
    return tuple(one.__name__ for one in classes if state_policy(one) is not StatePolicy.STATELESS and one not in kept)


def _parts(user_class: type) -> tuple[type, ...]:
    """Return the classes of the roles in a process, or the class itself where there are none."""
    if not issubclass(user_class, FusedWorker):
        return (user_class,)
    return tuple(role.user_class for role in user_class.podium_roles.values())


def _own(user_class: type, name: str, n_arguments: int) -> bool:
    """Whether the class has such a method; what every fused worker has does not count."""
    inherited = inspect.getattr_static(user_class, name, None) is vars(FusedWorker).get(name)
    return not inherited and can_call(user_class, name, n_arguments)
