"""Podium's single controller: the public names, nothing else.

Each is imported when it is first asked for: the command line and a dashboard on a finished run need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from core.version import VERSION as __version__
from core.wiring import set_composer

if TYPE_CHECKING:
    from core.cluster.deadline import deadline
    from core.controller import Controller, Step, checkpoint, get, init, parallel_put, steps
    from core.data import (
        BatchData,
        DataProto,
        DataProtoConfig,
        DataProtoItem,
        all_gather_data_proto,
        collate_fn,
        deserialize_single_tensor,
        deserialize_tensordict,
        fold_batch_dim,
        list_of_dict_to_dict_of_list,
        pad_dataproto_to_divisor,
        serialize_single_tensor,
        serialize_tensordict,
        unfold_batch_dim,
        union_numpy_dict,
        union_tensor_dict,
        unpad_dataproto,
    )
    from core.data.future import DataProtoFuture
    from core.dispatch import (
        DISPATCH_MODE_FN_REGISTRY,
        MAGIC_ATTR,
        Dispatch,
        Execute,
        _check_dispatch_mode,
        broadcast,
        collect_all_to_all,
        collect_dp_compute,
        collect_dp_compute_data_proto,
        collect_lazy_compute_data_proto,
        collect_nd_compute,
        collect_nd_compute_dataproto,
        dispatch_all_to_all,
        dispatch_dp_compute,
        dispatch_dp_compute_data_proto,
        dispatch_dp_compute_data_proto_with_func,
        dispatch_lazy_compute_data_proto,
        dispatch_nd_compute,
        dispatch_nd_compute_dataproto,
        dispatch_one_to_all,
        get_predefined_dispatch_fn,
        get_predefined_execute_fn,
        make_nd_compute_dataproto_dispatch_fn,
        per_rank,
        register,
        register_dispatch_mode,
        update_dispatch_mode,
    )
    from core.group import (
        ClassWithInitArgs,
        RayClassWithInitArgs,
        RayWorkerGroup,
        create_colocated_worker_cls,
        create_colocated_worker_cls_fused,
        create_colocated_worker_raw_cls,
    )
    from core.health import check_workers_alive, set_health
    from core.pool import (
        RayResourcePool,
        ResourcePool,
        ResourcePoolManager,
        SubRayResourcePool,
        extract_pg_from_exist,
        merge_resource_pool,
        sort_placement_group_by_node_ip,
        split_resource_pool,
    )
    from core.worker import FusedWorker, ReplicatedState, Worker

_HOMES = {
    "core.cluster.deadline": ("deadline",),
    "core.controller": (
        "Controller",
        "Step",
        "checkpoint",
        "get",
        "init",
        "parallel_put",
        "steps",
    ),
    "core.data": (
        "BatchData",
        "DataProto",
        "DataProtoConfig",
        "DataProtoItem",
        "all_gather_data_proto",
        "collate_fn",
        "deserialize_single_tensor",
        "deserialize_tensordict",
        "fold_batch_dim",
        "list_of_dict_to_dict_of_list",
        "pad_dataproto_to_divisor",
        "serialize_single_tensor",
        "serialize_tensordict",
        "unfold_batch_dim",
        "union_numpy_dict",
        "union_tensor_dict",
        "unpad_dataproto",
    ),
    "core.data.future": ("DataProtoFuture",),
    "core.dispatch": (
        "DISPATCH_MODE_FN_REGISTRY",
        "Dispatch",
        "Execute",
        "MAGIC_ATTR",
        "_check_dispatch_mode",
        "broadcast",
        "collect_all_to_all",
        "collect_dp_compute",
        "collect_dp_compute_data_proto",
        "collect_lazy_compute_data_proto",
        "collect_nd_compute",
        "collect_nd_compute_dataproto",
        "dispatch_all_to_all",
        "dispatch_dp_compute",
        "dispatch_dp_compute_data_proto",
        "dispatch_dp_compute_data_proto_with_func",
        "dispatch_lazy_compute_data_proto",
        "dispatch_nd_compute",
        "dispatch_nd_compute_dataproto",
        "dispatch_one_to_all",
        "get_predefined_dispatch_fn",
        "get_predefined_execute_fn",
        "make_nd_compute_dataproto_dispatch_fn",
        "per_rank",
        "register",
        "register_dispatch_mode",
        "update_dispatch_mode",
    ),
    "core.group": (
        "ClassWithInitArgs",
        "RayClassWithInitArgs",
        "RayWorkerGroup",
        "create_colocated_worker_cls",
        "create_colocated_worker_cls_fused",
        "create_colocated_worker_raw_cls",
    ),
    "core.health": ("check_workers_alive", "set_health"),
    "core.pool": (
        "RayResourcePool",
        "ResourcePool",
        "ResourcePoolManager",
        "SubRayResourcePool",
        "extract_pg_from_exist",
        "merge_resource_pool",
        "sort_placement_group_by_node_ip",
        "split_resource_pool",
    ),
    "core.worker": (
        "FusedWorker",
        "ReplicatedState",
        "Worker",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


# The only import that goes up: what stands above a runtime is imported when a runtime first needs it.
set_composer(lambda: import_module("core.composition").compose)


def __getattr__(name: str) -> object:
    """Import a public name from its room."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'core' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "DISPATCH_MODE_FN_REGISTRY",
    "MAGIC_ATTR",
    "BatchData",
    "ClassWithInitArgs",
    "Controller",
    "DataProto",
    "DataProtoConfig",
    "DataProtoFuture",
    "DataProtoItem",
    "Dispatch",
    "Execute",
    "FusedWorker",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RayWorkerGroup",
    "ReplicatedState",
    "ResourcePool",
    "ResourcePoolManager",
    "Step",
    "SubRayResourcePool",
    "Worker",
    "__version__",
    "_check_dispatch_mode",
    "all_gather_data_proto",
    "broadcast",
    "check_workers_alive",
    "checkpoint",
    "collate_fn",
    "collect_all_to_all",
    "collect_dp_compute",
    "collect_dp_compute_data_proto",
    "collect_lazy_compute_data_proto",
    "collect_nd_compute",
    "collect_nd_compute_dataproto",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls",
    "deadline",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "dispatch_all_to_all",
    "dispatch_dp_compute",
    "dispatch_dp_compute_data_proto",
    "dispatch_dp_compute_data_proto_with_func",
    "dispatch_lazy_compute_data_proto",
    "dispatch_nd_compute",
    "dispatch_nd_compute_dataproto",
    "dispatch_one_to_all",
    "extract_pg_from_exist",
    "fold_batch_dim",
    "get",
    "get_predefined_dispatch_fn",
    "get_predefined_execute_fn",
    "init",
    "list_of_dict_to_dict_of_list",
    "make_nd_compute_dataproto_dispatch_fn",
    "merge_resource_pool",
    "pad_dataproto_to_divisor",
    "parallel_put",
    "per_rank",
    "register",
    "register_dispatch_mode",
    "serialize_single_tensor",
    "serialize_tensordict",
    "set_health",
    "sort_placement_group_by_node_ip",
    "split_resource_pool",
    "steps",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
    "update_dispatch_mode",
]
