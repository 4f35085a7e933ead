"""Results that stay on their worker, whose tensors other workers read by the cluster's direct transport.

``kept_here`` copies the tensors of a value, all those of one device, into one piece of memory there and offers that;
what travels is an ``Offered``, which has everything else. ``with_tensors`` takes the memory of all parts at once and
rebuilds the values. Where direct transport is not possible the memory comes through the cluster's store, and
``noting`` collects the reason.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import numpy as np
import torch

from core.cluster.fetching import offer, take, take_by_store
from core.cluster.ray_transport import NoDirectTransport, Offer
from core.data.memory import raw_bytes
from core.data.raw_tensors import local_device
from core.data.wire import Parcel, pack, sending
from core.errors import CallTimeoutError, WorkerDiedError

_ALIGNED_BYTES = 64
_WORTH_IT_BYTES = 64 * 1024
"""Fewer bytes travel in the pickle: offering and taking them would take longer."""
_BY_STORE_S = 60.0
"""The timeout for workers to put their tensors into the store, the same as Ray's for a direct transfer."""


@dataclass(frozen=True, slots=True)
class Column:
    """Where a tensor lies in the memory that is offered, and what it is; ``device`` is the one it came from."""

    start: int
    n_bytes: int
    dtype: str
    shape: tuple[int, ...]
    device: str

    def of(self, memory: Any) -> torch.Tensor:
        """Return a copy of the tensor: other receivers may use the same memory."""
        part = memory[self.start : self.start + self.n_bytes]
        raw = part.clone() if isinstance(part, torch.Tensor) else torch.from_numpy(np.array(part))
        return raw.view(getattr(torch, self.dtype)).reshape(self.shape).to(local_device(self.device))


@dataclass(frozen=True, slots=True)
class Offered:
    """What travels in place of a result of the method ``what``: where its tensors are, and all else as pickled."""

    what: str
    transport: str
    offer: Offer
    columns: tuple[Column, ...]
    pickled: bytes
    buffers: tuple[Any, ...]

    def put_together(self, memory: Any) -> Any:
        """Return the result, given the memory of its tensors."""
        return _PuttingTogether(self, memory).load()


def kept_here(value: Any, what: str, transport: str) -> Any:
    """Offer the tensors of a result of the method ``what``; return the value to send.

    That is the value itself if its tensors are small, or if direct transport is not possible, which is noted.
    """
    taken = _TakingApart()
    try:
        pickled = taken.pickled(value)
        if taken.n_bytes < _WORTH_IT_BYTES:
            return value
        made = offer(taken.memory(), transport)
    except NoDirectTransport as error:
        note(what, transport, str(error))
        return value
    return Offered(what, transport, made, tuple(taken.columns), pickled, tuple(taken.buffers))


def with_tensors(parts: Sequence[Any]) -> Sequence[Any]:
    """Return fetched results, with the tensors that stayed on their workers.

    Raises:
        WorkerDiedError: A worker that kept tensors has ended.
        CallTimeoutError: A worker did not send its tensors in time.
    """
    stayed = [part for part in parts if isinstance(part, Offered)]
    if not stayed:
        return parts
    memories = iter(_taken(stayed))
    return [part.put_together(next(memories)) if isinstance(part, Offered) else part for part in parts]


def _taken(stayed: Sequence[Offered]) -> list[Any]:
    offers = [part.offer for part in stayed]
    try:
        return take(offers)
    except NoDirectTransport as error:
        note(stayed[0].what, stayed[0].transport, str(error))
    kept = f"tensors that {stayed[0].what} kept on its workers (tensor_transport={stayed[0].transport!r})"
    try:
        return take_by_store(offers, _BY_STORE_S)
    except WorkerDiedError as error:
        raise replace(error, message=f"{kept} were lost when one of them died: {error.message}") from None
    except TimeoutError:
        raise CallTimeoutError(
            f"{kept} were not sent within {_BY_STORE_S:g} s; a worker may be stopped, or its node unreachable",
            timeout_s=_BY_STORE_S,
        ) from None


class _TakingApart(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a value without the tensors of one device, and lays those out one behind the other."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(self._file, protocol=5, buffer_callback=self.buffers.append)
        self.columns: list[Column] = []
        self.n_bytes = 0
        self._tensors: list[torch.Tensor] = []
        # The parcels are referenced: a later one could otherwise have the id of an earlier one.
        self._indices: dict[int, tuple[Parcel, int]] = {}

    def pickled(self, value: Any) -> bytes:
        """Return the pickle; its large arrays are in ``buffers``."""
        with sending(views=False, apart=True):
            self.dump(pack(value))
        return self._file.getvalue()

    def persistent_id(self, item: Any) -> int | None:
        """Return the index of a tensor that is laid out, None for what is pickled."""
        kind = type(item)
        if kind is not Parcel:
            if kind.__name__ == "ObjectRef":
                raise NoDirectTransport("the result holds references of the cluster")
            return None
        if id(item) in self._indices:
            return self._indices[id(item)][1]
        if not self._can_go(item.content):
            return None
        self._indices[id(item)] = item, len(self.columns)
        self._lay_out(item.content)
        return len(self.columns) - 1

    def _can_go(self, content: Any) -> bool:
        if not isinstance(content, torch.Tensor) or content.is_nested or content.layout is not torch.strided:
            return False
        if content.is_quantized or content.is_meta or content.numel() == 0:
            return False
        return not self._tensors or content.device == self._tensors[0].device

    def _lay_out(self, tensor: torch.Tensor) -> None:
        plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
        raw = raw_bytes(plain)
        start = -(-self.n_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.columns.append(Column(start, raw.numel(), dtype, tuple(tensor.shape), str(tensor.device)))
        self.n_bytes = start + raw.numel()
        self._tensors.append(raw)

    def memory(self) -> torch.Tensor:
        """Return a copy of the tensors' bytes in one piece on their device: later changes do not affect the offer."""
        memory = torch.empty(self.n_bytes, dtype=torch.uint8, device=self._tensors[0].device)
        for column, raw in zip(self.columns, self._tensors, strict=True):
            memory[column.start : column.start + column.n_bytes].copy_(raw)
        return memory


class _PuttingTogether(pickle.Unpickler):
    """Unpickles what ``_TakingApart`` pickled; a tensor that occurred twice is one object again."""

    def __init__(self, stayed: Offered, memory: Any) -> None:
        super().__init__(io.BytesIO(stayed.pickled), buffers=stayed.buffers)
        self._columns, self._memory = stayed.columns, memory
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, index: int) -> torch.Tensor:
        """Return the tensor of an index."""
        if index not in self._tensors:
            self._tensors[index] = self._columns[index].of(self._memory)
        return self._tensors[index]


_local = threading.local()
_noted: set[tuple[str, str]] = set()


@contextlib.contextmanager
def noting(notes: list[str]) -> Iterator[None]:
    """Collect why tensors of this thread go through the store meanwhile; each reason once per process."""
    before = getattr(_local, "notes", None)
    _local.notes = notes
    try:
        yield
    finally:
        _local.notes = before


def note(what: str, transport: str, why: str) -> None:
    """Note that a result of the method ``what`` goes through the store, unless this process has noted it already."""
    notes: list[str] | None = getattr(_local, "notes", None)
    # The text of an error contains addresses; its first word is its type.
    reason = what, why.split(":", 1)[0]
    if notes is None or reason in _noted:
        return
    _noted.add(reason)
    notes.append(f"{what} goes through shared memory and not by tensor_transport={transport!r}: {why}")
