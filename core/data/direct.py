"""A result that stays on the worker that made it: its tensors are offered to others by the cluster's direct transport.

``kept_here`` copies the tensors of a value, all those of one device, into one piece of memory there and offers that;
what travels is an ``Offered``, which has everything else. ``landed`` takes the memory of all parts at once and puts the
values together. Where the direct way cannot be gone the memory comes through the cluster's store, and ``noting`` has
why.
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
"""Less than this goes with everything else: to offer and to take it would take longer."""
_BY_STORE_S = 60.0
"""How long workers have to put into the store what they keep. Ray gives a direct transfer as long."""


@dataclass(frozen=True, slots=True)
class Column:
    """Where a tensor lies in the memory that is offered, and what it is; ``device`` is the one it came from."""

    start: int
    n_bytes: int
    dtype: str
    shape: tuple[int, ...]
    device: str

    def of(self, memory: Any) -> torch.Tensor:
        """Return the tensor as a copy of its own: other receivers may have the same memory before them."""
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
    """Offer the tensors of a result of the method ``what``; return what travels.

    That is the value itself when there is little of them, and when they cannot go that way, which is noted.
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


def landed(parts: Sequence[Any]) -> Sequence[Any]:
    """Return fetched results with the tensors of those that stayed on their workers.

    Raises:
        WorkerDiedError: A worker that kept some is gone.
        CallTimeoutError: One does not hand it out.
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
    kept = f"what {stayed[0].what} kept on its workers (tensor_transport={stayed[0].transport!r})"
    try:
        return take_by_store(offers, _BY_STORE_S)
    except WorkerDiedError as error:
        raise replace(error, message=f"{kept} is gone with one of them: {error.message}") from None
    except TimeoutError:
        raise CallTimeoutError(
            f"{kept} was not handed out within {_BY_STORE_S:g} s; one of them may be stopped, or its node out of reach",
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
        # The parcels are held: a later one could else have an earlier one's id.
        self._places: dict[int, tuple[Parcel, int]] = {}

    def pickled(self, value: Any) -> bytes:
        """Return the pickle; its large arrays are in ``buffers``."""
        with sending(views=False, apart=True):
            self.dump(pack(value))
        return self._file.getvalue()

    def persistent_id(self, item: Any) -> int | None:
        """Return the place of a tensor that is laid out, None for what is pickled."""
        kind = type(item)
        if kind is not Parcel:
            if kind.__name__ == "ObjectRef":
                raise NoDirectTransport("the result holds references of the cluster")
            return None
        if id(item) in self._places:
            return self._places[id(item)][1]
        if not self._can_go(item.content):
            return None
        self._places[id(item)] = item, len(self.columns)
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
        """Return the tensors' bytes in one piece on their device: what the worker does to its own changes no offer."""
        memory = torch.empty(self.n_bytes, dtype=torch.uint8, device=self._tensors[0].device)
        for column, raw in zip(self.columns, self._tensors, strict=True):
            memory[column.start : column.start + column.n_bytes].copy_(raw)
        return memory


class _PuttingTogether(pickle.Unpickler):
    """Unpickles what ``_TakingApart`` pickled; a tensor that stood in two places is one again."""

    def __init__(self, stayed: Offered, memory: Any) -> None:
        super().__init__(io.BytesIO(stayed.pickled), buffers=stayed.buffers)
        self._columns, self._memory = stayed.columns, memory
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, place: int) -> torch.Tensor:
        """Return the tensor of a place."""
        if place not in self._tensors:
            self._tensors[place] = self._columns[place].of(self._memory)
        return self._tensors[place]


_local = threading.local()
_told: set[tuple[str, str]] = set()


@contextlib.contextmanager
def noting(notes: list[str]) -> Iterator[None]:
    """Collect why what this thread takes or offers meanwhile went through the store; each reason once in a process."""
    before = getattr(_local, "notes", None)
    _local.notes = notes
    try:
        yield
    finally:
        _local.notes = before


def note(what: str, transport: str, why: str) -> None:
    """Say that a result of the method ``what`` goes, or went, through the store, unless this process has said so."""
    notes: list[str] | None = getattr(_local, "notes", None)
    # An error's text has addresses in it, its first word is its type.
    reason = what, why.split(":", 1)[0]
    if notes is None or reason in _told:
        return
    _told.add(reason)
    notes.append(f"{what} goes through shared memory and not by tensor_transport={transport!r}: {why}")
