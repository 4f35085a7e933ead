"""Which names of which of verl's modules stand for what of Podium's.

A module that is listed here is replaced whole. The rest of verl stays verl's own.
"""

from __future__ import annotations

from collections.abc import Mapping

_WORKER = ("Worker", "DistRankInfo", "DistGlobalInfo")
_BASE_GROUP = ("WorkerGroup", "ClassWithInitArgs", "ResourcePool", "check_workers_alive")
_DECORATOR = (
    "DISPATCH_MODE_FN_REGISTRY",
    "Dispatch",
    "Execute",
    "MAGIC_ATTR",
    "_check_dispatch_mode",
    "_padding_size_key",
    "_split_args_kwargs_data_proto",
    "_split_args_kwargs_data_proto_with_auto_padding",
    "DataProtoFuture",
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
    "register",
    "register_dispatch_mode",
    "update_dispatch_mode",
)
_RAY = (
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RayWorkerGroup",
    "ResourcePoolManager",
    "SubRayResourcePool",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
)
_RAY_BASE = (
    *_RAY,
    "ClassWithInitArgs",
    "DataProto",
    "Dispatch",
    "FusedWorker",
    "MAGIC_ATTR",
    "ResourcePool",
    "Worker",
    "WorkerGroup",
    "_padding_size_key",
    "_unwrap_ray_remote",
    "create_colocated_worker_raw_cls",
    "extract_pg_from_exist",
    "func_generator",
    "get_master_addr_port",
    "get_random_string",
    "merge_resource_pool",
    "sort_placement_group_by_node_ip",
    "split_resource_pool",
)
_PROTOCOL = (
    "BatchData",
    "DataProto",
    "DataProtoConfig",
    "DataProtoFuture",
    "DataProtoItem",
    "_padding_size_key",
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
)

CONTROLLER = "verl.single_controller"
PROTOCOL = "verl.protocol"
DECORATOR = "verl.single_controller.base.decorator"

NAMES: Mapping[str, tuple[str, ...]] = {
    CONTROLLER: (*_WORKER[:1], *_BASE_GROUP[:3]),
    "verl.single_controller.base": (*_WORKER[:1], *_BASE_GROUP[:3]),
    "verl.single_controller.base.worker": (*_WORKER, "Dispatch", "Execute", "register"),
    "verl.single_controller.base.worker_group": (*_BASE_GROUP, "MAGIC_ATTR", "Dispatch"),
    DECORATOR: _DECORATOR,
    "verl.single_controller.ray": _RAY,
    "verl.single_controller.ray.base": _RAY_BASE,
    PROTOCOL: _PROTOCOL,
}
"""The names of ``core`` that each module of verl's offers, by module."""

PACKAGES = frozenset({CONTROLLER, "verl.single_controller.base", "verl.single_controller.ray"})
"""Those of the modules that have submodules."""

RELEASES = ((0, 9),)
"""The releases of verl whose names these are; the tests run 0.9.1."""

IGNORED_SWITCHES = {
    "VERL_DATAPROTO_SERIALIZATION_METHOD": "batches travel in Podium's own format, which has no other method",
}
"""Environment variables of verl's that have no effect on Podium's batch, and why."""
