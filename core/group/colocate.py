"""Several roles in one process per rank: the classes that a colocated worker group is made of."""

from __future__ import annotations

from collections.abc import Mapping

from core.group.class_args import RayClassWithInitArgs
from core.worker.fused import FusedWorker, Role, fused_class


def create_colocated_worker_raw_cls(class_dict: Mapping[str, RayClassWithInitArgs]) -> type[FusedWorker]:
    """Return the plain class of workers that hold one worker per role; it may be subclassed.

    Methods of a subclass use the roles as ``self.actor``, ``self.critic`` and so on.

    Raises:
        RegistrationError: A role's name or one of its methods' names cannot be used.
    """
    roles = {role: Role(part.user_class, part.args, dict(part.kwargs)) for role, part in class_dict.items()}
    return fused_class("FusedWorker_" + "_".join(class_dict), roles)


def create_colocated_worker_cls(class_dict: Mapping[str, RayClassWithInitArgs]) -> RayClassWithInitArgs:
    """Return what a worker group is made of whose processes hold all roles; ``spawn`` or ``fuse`` give the roles.

    Raises:
        RegistrationError: A role's name or one of its methods' names cannot be used.
    """
    made = RayClassWithInitArgs(create_colocated_worker_raw_cls(class_dict))
    for part in class_dict.values():
        made.update_options(part.spawn_options())
    made.fused_worker_used = True
    return made


create_colocated_worker_cls_fused = create_colocated_worker_cls
"""The same: roles share a process and find each other in both."""
