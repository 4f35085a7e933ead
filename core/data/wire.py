"""How a batch travels: raw memory as out-of-band buffers (pickle protocol 5), never ``torch.save``.

``pack`` replaces tensors, arrays and TensorDicts, wherever they are in dicts, lists, tuples, dataclasses and object
arrays, by a ``Parcel`` that pickles to their raw bytes and unpickles to the thing itself. With a ``buffer_callback``
nothing is copied on the way out; a slice takes only its own rows along. On arrival memory that is read-only, such as
Ray's shared memory, becomes the receiver's own (``core.data.zero_copy``), so that everything can be written to and no
other process sees the change.

What comes back: the same dtype, shape, layout and bytes, contiguous. Tensors come back *detached* (``requires_grad``
False: a graph cannot cross a process, and a leaf that requires grad could not be changed in place); a ``Parameter``
and a tensor or array in a file come back as plain ones, a user's subclass with its type and attributes. A tensor of a
device that the receiver lacks comes back on the CPU. The format is in the payload, no setting of the receiver matters.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import is_dataclass
from pickle import PickleBuffer
from typing import Any, Literal, TypeAlias

import numpy as np
import tensordict
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from core.data.kinds import check_tensor, is_plain_tensor
from core.data.objects import ListRows, is_list_rows, one_axis
from core.data.ragged import from_parts, is_jagged, ragged_dim, ragged_parts, stack_strided, tight
from core.data.raw_tensors import deserialize_single_tensor, local_device, serialize_single_tensor
from core.data.zero_copy import received_array
from core.errors import BatchError

Reduced: TypeAlias = tuple[Any, tuple[Any, ...]]

_PLAIN_KINDS = "biufcSUMm"
"""Kinds of dtypes that their name says all of: not structured ones, not those of other packages."""
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})


class Parcel:
    """Replaces a value in a pickle; it unpickles to the value itself."""

    __slots__ = ("content", "offsets")

    def __init__(self, content: Any, offsets: dict[int, Parcel] | None = None) -> None:
        """Wrap ``content``; ``offsets`` are the parcels of offsets that columns of one batch share."""
        self.content = content
        self.offsets = {} if offsets is None else offsets

    def __reduce_ex__(self, protocol: Any) -> Reduced:
        """Take the content apart into numbers, names and raw memory."""
        if isinstance(self.content, torch.Tensor):
            return _reduce_tensor(self.content, self.offsets, protocol)
        if tensordict.is_tensor_collection(self.content):
            return _reduce_tensordict(self.content, self.offsets, protocol)
        return _reduce_array(self.content, protocol)


def pack(value: Any) -> Any:
    """Return a replacement for ``value`` that pickles fast and unpickles to a value equal to ``value``.

    Containers are copied only where they hold something to pack; shared ones stay shared, cycles stay cycles.
    """
    return _pack(value, {})


def _pack(value: Any, memo: dict[int, Any]) -> Any:
    if _is_plain(value):
        return value
    kind = type(value)
    if id(value) in memo:
        return memo[id(value)]
    if is_list_rows(value):
        rows = one_axis(value)
        _keep(rows, memo)
        packed = memo[id(value)] = _pack_objects(rows, memo)
        return packed
    is_array = kind is np.ndarray or kind is np.memmap or kind is ListRows
    if is_array and value.dtype == object:
        return _pack_objects(value, memo)
    if kind is dict:
        mapping = memo[id(value)] = {}
        mapping.update((key, _pack(item, memo)) for key, item in value.items())
        return mapping
    if kind is OrderedDict:
        ordered = memo[id(value)] = OrderedDict((key, _pack(item, memo)) for key, item in value.items())
        ordered.__dict__.update(value.__dict__)  # a state_dict keeps its _metadata there
        return ordered
    if kind is list:
        items: list[Any] = []
        memo[id(value)] = items
        items.extend(_pack(item, memo) for item in value)
        return items
    if kind is tuple:
        return tuple(_pack(item, memo) for item in value)
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return kind._make(_pack(item, memo) for item in value)
    if is_dataclass(kind) and kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        return _pack_instance(value, memo)
    if (
        (is_array and not value.dtype.hasobject)
        or isinstance(value, torch.Tensor)
        or tensordict.is_tensor_collection(value)
    ):
        parcel = memo[id(value)] = Parcel(value)
        return parcel
    return value


class _Instance:
    """Stands for an instance of a dataclass in a pickle: its state packed, else as Python pickles it."""

    __slots__ = ("_content", "_state")

    def fill(self, content: tuple[Any, ...], state: Any) -> None:
        self._content, self._state = content, state

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, self._content, self._state


def _pack_instance(value: Any, memo: dict[int, Any]) -> Any:
    """Pack what an instance holds: torch's own pickle copies all of a storage, and fails for some dtypes."""
    make, content, state, *items = value.__reduce_ex__(4)
    if make.__name__ != "__newobj__" or any(more is not None for more in items):
        return value
    instance = memo[id(value)] = _Instance()
    _keep(state, memo)
    instance.fill(content, _pack(state, memo))
    return instance


def _keep(made: Any, memo: dict[int, Any]) -> None:
    """Keep a value that was made on the way as long as ``memo``, where another one could be found under its id."""
    memo.setdefault(id(memo), []).append(made)


def _new(kind: type[Any], *args: Any) -> Any:
    return kind.__new__(kind, *args)


def _is_plain(value: Any) -> bool:
    """Check quickly whether there is nothing to pack: an atom, or a container of atoms, as rows often are."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is list or kind is tuple:
        return _ATOMS.issuperset(map(type, value))
    if kind is dict:
        return _ATOMS.issuperset(map(type, value.values()))
    return isinstance(value, np.generic)


def _pack_objects(array: np.ndarray[Any, Any], memo: dict[int, Any]) -> np.ndarray[Any, Any]:
    rows = array.ravel().tolist()
    if all(map(_is_plain, rows)):
        return array
    packed = memo[id(array)] = np.empty(array.shape, dtype=object)
    target = packed.reshape(-1)
    for number, item in enumerate(rows):
        target[number] = _pack(item, memo)
    return packed


def _owned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Receive an array; saved files contain this function's name."""
    return received_array(array)


def _viewed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Receive an array as a read-only view."""
    return array


class _Sending(threading.local):
    """The options for what a thread pickles."""

    views = False
    apart = False


_sending = _Sending()


class sending:
    """Set the options for what this thread pickles in the ``with`` block.

    ``views``: arrays arrive as read-only views; ``apart``: each tensor is a separate parcel.
    """

    __slots__ = ("_apart", "_before", "_views")

    def __init__(self, views: bool, apart: bool = False) -> None:
        """Set the options."""
        self._views, self._apart = views, apart

    def __enter__(self) -> None:
        self._before = _sending.views, _sending.apart
        _sending.views, _sending.apart = self._views, self._apart

    def __exit__(self, *_: object) -> None:
        _sending.views, _sending.apart = self._before


def _reduce_array(array: np.ndarray[Any, Any], protocol: int) -> Reduced:
    as_views = _sending.views
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        array = array.copy()
    if array.dtype.kind not in _PLAIN_KINDS or array.nbytes == 0:
        return (_viewed if as_views else _owned), (array,)
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    raw = _buffer(array.ravel(order).view(np.uint8), protocol)
    return _array, (array.dtype.str, array.shape, order, raw, as_views)


def _buffer(raw: np.ndarray[Any, Any], protocol: int) -> Any:
    """Return memory as what pickles without a call of Python: the quickest that ``protocol`` knows."""
    return PickleBuffer(raw) if protocol >= 5 and raw.size else raw  # type: ignore[arg-type]


def _array(
    dtype: str, shape: tuple[int, ...], order: Literal["C", "F"], raw: Any, as_view: bool
) -> np.ndarray[Any, Any]:
    array = np.frombuffer(raw, dtype=dtype).reshape(shape, order=order)
    return array if as_view else received_array(array)


def _reduce_tensor(tensor: torch.Tensor, shared: dict[int, Parcel], protocol: int) -> Reduced:
    if is_jagged(tensor):
        offsets, lengths = ragged_parts(tensor)
        source = offsets if lengths is None else lengths
        whole = tight(tensor, {})
        parcel = shared.setdefault(id(source), Parcel(ragged_parts(whole)[0]))
        return _jagged, (Parcel(whole.values()), parcel, ragged_dim(tensor))
    if tensor.is_nested:
        like = Parcel(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        return _strided, ([Parcel(row) for row in tensor.unbind()], like)
    if not is_plain_tensor(tensor):
        return _subclassed, _subclass_parts(tensor)
    if tensor.layout is torch.sparse_coo:
        whole = tensor.detach().coalesce()
        return _sparse, (Parcel(whole.indices()), Parcel(whole.values()), tuple(whole.shape))
    if tensor.layout in _COMPRESSED:
        of_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        compressed = tensor.crow_indices() if of_rows else tensor.ccol_indices()
        plain = tensor.col_indices() if of_rows else tensor.row_indices()
        content = Parcel(compressed), Parcel(plain), Parcel(tensor.values().detach())
        return _compressed, (*content, tuple(tensor.shape), str(tensor.layout).removeprefix("torch."))
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise BatchError(
            f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} cannot be sent; convert it first "
            f"(tensor.to_dense(), tensor.dequantize())"
        )
    return _dense, _dense_parts(tensor, protocol)


_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def _subclass_parts(tensor: torch.Tensor) -> tuple[Parcel, type[torch.Tensor], Any]:
    """Take a tensor of a user's type apart: the plain tensor that it is, its type, and its attributes.

    Raises:
        BatchError: It is not a plain tensor inside: its type answers torch's operations itself, as DTensor does.
    """
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise BatchError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be sent: this subclass of torch.Tensor holds its values "
            f"in its own way; send the tensors it is made of, for a DTensor tensor.full_tensor() or tensor.to_local()"
        )
    return Parcel(tensor.detach().as_subclass(torch.Tensor)), kind, pack(dict(tensor.__dict__))


def _dense_parts(tensor: torch.Tensor, protocol: int) -> tuple[str, tuple[int, ...], Any, str | None]:
    """Take a dense tensor apart into dtype, shape, memory and device, None for the CPU."""
    dtype, shape, raw = serialize_single_tensor(tensor)
    device = None if tensor.device.type == "cpu" else str(tensor.device)
    return dtype, shape, _buffer(raw, protocol), device


def _dense(dtype: str, shape: tuple[int, ...], raw: Any, device: str | None) -> torch.Tensor:
    if device == "meta":
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    tensor = deserialize_single_tensor((dtype, shape, raw))
    return tensor if device is None else tensor.to(local_device(device))


def _jagged(values: torch.Tensor, offsets: torch.Tensor, dim: int) -> torch.Tensor:
    return from_parts(values, offsets, dim)


def _strided(rows: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return stack_strided(rows, like)


def _sparse(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)


def _compressed(
    compressed: torch.Tensor, plain: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...], layout: str
) -> torch.Tensor:
    kind = getattr(torch, layout)
    return torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=kind, check_invariants=False)


def _subclassed(tensor: torch.Tensor, kind: type[torch.Tensor], attributes: dict[str, Any]) -> torch.Tensor:
    made = tensor.as_subclass(kind)
    made.__dict__.update(attributes)
    return made


def _reduce_tensordict(batch: Any, shared: dict[int, Parcel], protocol: int) -> Reduced:
    device = None if batch.device is None else str(batch.device)
    size = tuple(batch.batch_size)
    if isinstance(batch, NonTensorData):
        return _non_tensor, (pack(batch.data), size, device)
    if isinstance(batch, NonTensorStack):
        return _non_tensor_stack, ([Parcel(item) for item in batch.tensordicts], batch.stack_dim)
    if isinstance(batch, LazyStackedTensorDict):
        return _lazy_stack, ([Parcel(item, shared) for item in batch.tensordicts], batch.stack_dim)
    if not isinstance(batch, TensorDict):
        # Another tensorclass, which defines its own pickling.
        return _same, (_Opaque(batch),)
    return _tensordict, (
        size,
        device,
        [(key, *_column(key, column, shared, protocol)) for key, column in batch.items()],
    )


def _column(name: str, column: Any, shared: dict[int, Parcel], protocol: int) -> tuple[Any, ...]:
    """Return what stands for a column: the parts of a dense tensor, or a parcel of anything else.

    Raises:
        BatchError: It is a tensor of a type that cannot be a column.
    """
    if isinstance(column, torch.Tensor):
        check_tensor(column, name)
        if column.layout is torch.strided and not (_sending.apart or column.is_nested):
            return _dense_parts(column, protocol)
    return (Parcel(column, shared),)


class _Opaque:
    """A value that pickles as itself."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.content.__reduce_ex__(protocol)


def _same(value: Any) -> Any:
    return value


def _tensordict(size: tuple[int, ...], device: str | None, items: list[tuple[Any, ...]]) -> TensorDict:
    """Build the batch again; an item is a key and a value, or a key and the parts of a dense tensor."""
    target = None if device is None else local_device(device)
    columns = {key: parts[0] if len(parts) == 1 else _dense(*parts) for key, *parts in items}
    return TensorDict(columns, batch_size=list(size), device=target)


def _non_tensor(content: Any, size: tuple[int, ...], device: str | None) -> NonTensorData:
    return NonTensorData(content, batch_size=list(size), device=None if device is None else local_device(device))


def _non_tensor_stack(items: list[Any], stack_dim: int) -> NonTensorStack:
    return NonTensorStack(*items, stack_dim=stack_dim)


def _lazy_stack(items: list[Any], stack_dim: int) -> LazyStackedTensorDict:
    return LazyStackedTensorDict(*items, stack_dim=stack_dim)


def reduce_object(value: Any, state: dict[str, Any]) -> tuple[Any, ...]:
    """Return what ``__reduce_ex__`` gives for an object whose state is packed and set by ``__setstate__``."""
    return _rebuild, (type(value), pack(state))


def _rebuild(kind: type[Any], state: dict[str, Any]) -> Any:
    made = object.__new__(kind)
    made.__setstate__(state)
    return made
