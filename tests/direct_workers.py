"""Workers whose results stay on them, and a direct transport of files: importable, so that workers find it by name.

Ray's transport that is used in earnest is NIXL. ``FILES`` is one that runs wherever Ray runs, made of what Ray offers
for transports of one's own: the sender writes to a file, the receivers map that, and it is deleted when nobody waits
for it any more. Receivers have the same memory before them, as with CUDA IPC.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

from core import DataProto, Dispatch, Worker, register
from tests.byte_workers import Bytes, Taken

FILES = "podium_test_files"
FOLDER = "PODIUM_TEST_FILES"
"""The environment variable with the folder of the files."""


@dataclass
class InFiles(TensorTransportMetadata):
    """Where the tensors of an object are."""

    paths: list[str] = field(default_factory=list)


class SharedFiles(TensorTransportManager):
    """A one-sided transport: the receiver maps what the sender wrote."""

    def tensor_transport_backend(self) -> str:
        return FILES.upper()

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return False

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> InFiles:
        paths = []
        for number, tensor in enumerate(rdt_object):
            path = Path(os.environ[FOLDER], f"{obj_id}-{number}")
            path.write_bytes(tensor.numpy().tobytes())
            paths.append(str(path))
        return InFiles([(one.shape, one.dtype) for one in rdt_object], "cpu", paths)

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        assert isinstance(tensor_transport_metadata, InFiles)
        if os.environ.get("PODIUM_TEST_NO_FILES"):
            raise OSError("this receiver cannot read the files")
        found = zip(tensor_transport_metadata.paths, tensor_transport_metadata.tensor_meta, strict=True)
        return [torch.from_file(path, shared=True, size=meta[0][0], dtype=torch.uint8) for path, meta in found]

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]) -> None:
        assert isinstance(tensor_transport_meta, InFiles)
        for path in tensor_transport_meta.paths:
            Path(path).unlink()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        raise NotImplementedError


register_tensor_transport(FILES, ["cpu"], SharedFiles, torch.Tensor)


class Maker(Worker):
    """Gives back what it gets, on different ways; changes what it gave as soon as it is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.given: DataProto | None = None

    def _give(self, batch: DataProto) -> DataProto:
        self.given = batch
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def plain(self, batch: DataProto) -> DataProto:
        """Give the rows back through the store."""
        return self._give(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport=FILES)
    def by_files(self, batch: DataProto) -> DataProto:
        """Give the rows back by files."""
        return self._give(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="nixl")
    def by_nixl(self, batch: DataProto) -> DataProto:
        """Give the rows back by NIXL."""
        return self._give(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="by_pigeon")
    def by_pigeon(self, batch: DataProto) -> DataProto:
        """Give the rows back by a transport that there is not."""
        return self._give(batch)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False, tensor_transport=FILES)
    def to_nobody(self) -> int:
        """Be registered in a mode without a future."""
        return 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def spoil(self) -> int:
        """Overwrite what was given last, and tell this process."""
        if self.given is not None:
            self.given.batch["x"].zero_()
        return os.getpid()


class Staying(Bytes):
    """Moves bytes as others do, and has a method whose results stay here."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport=FILES)
    def stay(self, batch: DataProto) -> DataProto:
        """Give the rows back by files."""
        return batch


class AsyncMaker(Worker):
    """Gives back what it gets, from an event loop."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport=FILES)
    async def by_files(self, batch: DataProto) -> DataProto:
        """Give the rows back by files."""
        return batch


class Taker(Worker):
    """Takes what others made."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo(self, batch: DataProto) -> DataProto:
        """Give the rows to the driver."""
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def overwrite(self, batch: DataProto) -> float:
        """Write to the whole batch, and tell what its sum was."""
        total = float(batch.batch["x"].sum())
        batch.batch["x"].zero_()
        return total

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def count_bytes(self) -> int:
        """Begin to count what arrives here through the store; return what has arrived since the last time."""
        Taken.count()
        n_bytes, Taken.n_bytes = Taken.n_bytes, 0
        return n_bytes

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def lose_files(self) -> None:
        """Take files no longer."""
        os.environ["PODIUM_TEST_NO_FILES"] = "1"
