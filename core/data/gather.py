"""All ranks of a process group get the rows of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from core.data.columns import Columns
from core.data.memory import raw_bytes
from core.data.proto import DataProto
from core.data.raw_tensors import deserialize_single_tensor

# None is torch.distributed's name for the group of all ranks.
Group: TypeAlias = dist.ProcessGroup | None


@dataclass(frozen=True, slots=True)
class _Header:
    """What a rank says before it sends: its big tensors' dtypes, shapes and kind of device; all else as it is."""

    shapes: dict[str, tuple[str, tuple[int, ...]]]
    device: str
    rest: DataProto


def all_gather_data_proto(data: DataProto, process_group: Group | DeviceMesh) -> None:
    """Replace the rows of ``data``, in place, by those of all ranks in rank order; numbers of rows may differ.

    Meta is merged as ``concat`` does. The tensors are then on the device that the group works on (a mesh's kind of
    device; the tensors' own if the group's backend knows it). Every rank of the group must call this.

    Raises:
        BatchError: The ranks' columns differ.
        MergeConflictError: The ranks' meta disagrees about a setting.
    """
    group = process_group.get_group() if isinstance(process_group, DeviceMesh) else process_group
    large = _large_columns(data)
    header = _Header(
        {key: (str(column.dtype).removeprefix("torch."), tuple(column.shape)) for key, column in large.items()},
        next((column.device.type for column in large.values()), ""),
        _without(data, set(large)),
    )
    headers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(headers, header, group=group)
    device = _device_of(headers, process_group, group)
    parts = [gathered.rest for gathered in headers]
    # Every rank goes through the same keys: one that lacks a key sends filling, and concat then names it.
    for key in sorted({key for gathered in headers for key in gathered.shapes}):
        pieces = _gather_bytes(large.get(key), key, headers, device, group)
        for part, piece in zip(parts, pieces, strict=True):
            if piece is not None:
                part.batch[key] = piece
    joined = DataProto.concat(parts)
    if joined.batch is not None:
        joined.batch = joined.batch.to(device)
    data._become(Columns(joined.batch, joined.non_tensor_batch, joined.row_ids))
    data.meta_info = joined.meta_info


def _device_of(headers: list[_Header], given: Group | DeviceMesh, group: Group) -> torch.device:
    """Choose the device to send from: the same kind on every rank, or they would wait for each other for ever."""
    if isinstance(given, DeviceMesh):
        kind = given.device_type
    else:
        kinds = [part.split(":")[0] for part in str(dist.get_backend_config(group)).split(",")]
        kind = next((header.device for header in headers if header.device in kinds), kinds[0])
    return torch.device(kind) if kind == "cpu" else torch.device(kind, getattr(torch, kind).current_device())


def _large_columns(data: DataProto) -> dict[str, torch.Tensor]:
    """Return the columns that are plain tensors."""
    columns = {} if data.batch is None else dict(data.batch.items())
    return {
        key: column
        for key, column in columns.items()
        if isinstance(column, torch.Tensor)
        and not (column.is_nested or column.is_meta or column.is_quantized)
        and column.layout is torch.strided
    }


def _without(data: DataProto, keys: set[str]) -> DataProto:
    return data.select(batch_keys=[key for key in data._batch_keys() if key not in keys])


def _gather_bytes(
    column: torch.Tensor | None, key: str, headers: list[_Header], device: torch.device, group: Group
) -> list[torch.Tensor | None]:
    """Gather one column's bytes, filled up to the largest rank's; a rank without it sends filling."""
    facts = [header.shapes.get(key) for header in headers]
    sizes = [0 if fact is None else _n_bytes(*fact) for fact in facts]
    sent = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    if column is not None and column.numel():
        plain = raw_bytes(column.detach().resolve_conj().resolve_neg().contiguous())
        sent[: plain.shape[0]] = plain.to(device)
    received = [torch.empty_like(sent) for _ in headers]
    if max(sizes):
        dist.all_gather(received, sent, group=group)
    return [
        None if fact is None else raw[:size].view(_dtype(fact[0])).reshape(fact[1]) if size else _empty(fact, device)
        for fact, size, raw in zip(facts, sizes, received, strict=True)
    ]


def _n_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return _dtype(dtype).itemsize * int(torch.Size(shape).numel())


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype of torch")
    return dtype


def _empty(fact: tuple[str, tuple[int, ...]], device: torch.device) -> torch.Tensor:
    return deserialize_single_tensor((*fact, b"")).to(device)
