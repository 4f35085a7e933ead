"""Worker groups: a class with its arguments, started on a pool's slots, its methods bound, its calls made."""

from core.group.base import WorkerGroup, func_generator, get_random_string
from core.group.bind import BoundMethod
from core.group.class_args import ClassWithInitArgs, RayClassWithInitArgs, _unwrap_ray_remote
from core.group.colocate import (
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
)
from core.group.worker_group import RayWorkerGroup

__all__ = [
    "BoundMethod",
    "ClassWithInitArgs",
    "RayClassWithInitArgs",
    "RayWorkerGroup",
    "WorkerGroup",
    "_unwrap_ray_remote",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls",
    "func_generator",
    "get_random_string",
]
