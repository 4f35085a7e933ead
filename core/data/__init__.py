"""The batch, its parts and how they travel."""

from __future__ import annotations

from core.data.batch import BatchData, is_chunkable, is_concatable, payload_bytes
from core.data.gather import all_gather_data_proto
from core.data.index import balanced_sizes
from core.data.merge import union_numpy_dict, union_tensor_dict
from core.data.meta import PerPart
from core.data.padding import DataProtoConfig
from core.data.proto import DataProto, DataProtoItem
from core.data.raw_tensors import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from core.data.reshape import (
    collate_fn,
    fold_batch_dim,
    list_of_dict_to_dict_of_list,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)
from core.data.wire import pack

__all__ = [
    "BatchData",
    "DataProto",
    "DataProtoConfig",
    "DataProtoItem",
    "PerPart",
    "all_gather_data_proto",
    "balanced_sizes",
    "collate_fn",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "fold_batch_dim",
    "is_chunkable",
    "is_concatable",
    "list_of_dict_to_dict_of_list",
    "pack",
    "pad_dataproto_to_divisor",
    "payload_bytes",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]
