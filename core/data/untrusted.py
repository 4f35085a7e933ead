"""Reading of untrusted files: a batch in the format of ``disk``, and nothing else.

A pickle is a program. What it may call is listed here, and what it calls is looked at first where numpy or torch take
it at its word: shapes beyond the bytes there are, an array whose memory is swapped while a tensor lies on it, a dtype
that calls numbers objects. Python's own unpickler does the reading: the one in C does not allow to check a state
(BUILD) before it is set. It makes a large batch hardly slower, and a column of a million texts take seconds.
"""

from __future__ import annotations

import math
import pickle
import struct
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar, Literal
from uuid import UUID

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.meta import PerPart
from core.data.untrusted_sizes import KeyBudget, check_call, check_no_range
from core.data.wire import _array, _compressed, _jagged, _rebuild, _sparse, _tensordict
from core.errors import BatchError

_ALLOWED = {
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
    "builtins": {"complex", "set", "frozenset", "bytearray", "slice", "range"},
    "collections": {"OrderedDict", "deque", "Counter"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "uuid": {"UUID"},
    "torch": {"Size", "device"},
    "core.data.meta": {"PerPart"},
    "core.data.wire": {
        "_rebuild",
        "_owned",
        "_array",
        "_dense",
        "_jagged",
        "_strided",
        "_sparse",
        "_compressed",
        "_subclassed",
        "_new",
        "_tensordict",
        "_non_tensor",
        "_non_tensor_stack",
        "_lazy_stack",
    },
}
_WITH_STATE = (OrderedDict, Counter, deque, PerPart, UUID)
"""Classes whose state may be a dict: never a class or a function, which the whole process shares."""


_dispatched: dict[int, Callable[[Any], None]] = dict(pickle._Unpickler.dispatch)
_call, _new_object, _new_object_ex, _set_item, _set_items, _make_dict, _add_items, _make_frozenset = (
    _dispatched[code[0]]
    for code in (
        pickle.REDUCE,
        pickle.NEWOBJ,
        pickle.NEWOBJ_EX,
        pickle.SETITEM,
        pickle.SETITEMS,
        pickle.DICT,
        pickle.ADDITEMS,
        pickle.FROZENSET,
    )
)
_set_state = _dispatched[pickle.BUILD[0]]
_HASHING = (set, frozenset, Counter, OrderedDict)


class Refused(Exception):
    """Names what is not read from an untrusted file."""


class Reader(pickle._Unpickler):
    """An unpickler that knows only what a batch is made of; ``root`` is the class that batches derive from."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    read: Callable[[int], bytes]
    readinto: Callable[[bytearray], object]
    append: Callable[[Any], None]

    def __init__(self, file: BinaryIO, root: type[Any], n_bytes: int) -> None:
        """Read from ``file``, which has ``n_bytes``."""
        super().__init__(file)
        self._root = root
        self._n_bytes = n_bytes
        self._batches: list[Any] = []
        self._keys = KeyBudget(n_bytes)

    def load(self) -> Any:
        """Return what the file holds.

        Raises:
            Refused: A class that is not of a batch.
            Exception: Anything else, of a file that is damaged.
        """
        loaded = super().load()
        for batch in self._batches:
            _check_batch(batch)
        return loaded

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class or function."""
        if name in _ALLOWED.get(module, ()):
            if name == "_rebuild":
                return self._rebuilt
            return _CHECKED.get(name) or super().find_class(module, name)
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, self._root):
            return kind
        raise Refused(f"a {module}.{name}")

    def _rebuilt(self, kind: type[Any], state: dict[str, Any]) -> Any:
        if not (isinstance(kind, type) and issubclass(kind, self._root)):
            raise TypeError(f"{kind} is not a batch")
        if hidden := [key for key in state if callable(getattr(kind, key, None))]:
            raise ValueError(f"a batch cannot keep a value as {hidden[0]!r}")
        batch = _rebuild(kind, {**state, "_cut": None})
        self._batches.append(batch)
        return batch

    def load_build(self) -> None:
        """Check a state before it is set."""
        owner, state = self.stack[-2:]
        check_no_range(state)
        if type(owner) is np.ndarray:
            _check_array(owner, state)
        elif isinstance(owner, np.dtype):
            _check_dtype(owner, state)
        elif type(owner) not in _WITH_STATE or not isinstance(state, dict):
            raise ValueError(f"a {type(owner).__name__} has no such state")
        _set_state(self)

    dispatch[pickle.BUILD[0]] = load_build

    def load_bytearray8(self) -> None:
        """Read a bytearray if the file is that large: Python would allocate the memory first."""
        (size,) = struct.unpack("<Q", self.read(8))
        if size > self._n_bytes:
            raise pickle.UnpicklingError(f"a bytearray of {size:,} bytes in a file of {self._n_bytes:,} bytes")
        content = bytearray(size)
        self.readinto(content)
        self.append(content)

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def load_reduce(self) -> None:
        """Check a call before it is made."""
        self._check_call(*self.stack[-2:])
        _call(self)

    def load_newobj(self) -> None:
        """Check what a new object is made of."""
        self._check_call(*self.stack[-2:])
        _new_object(self)

    def load_newobj_ex(self) -> None:
        """Check what a new object is made of; nothing of a batch takes names."""
        kind, arguments, named = self.stack[-3:]
        if named:
            raise ValueError("an object made with named arguments")
        self._check_call(kind, arguments)
        _new_object_ex(self)

    def _instantiate(self, kind: Any, arguments: Any) -> None:
        self._check_call(kind, tuple(arguments))
        super()._instantiate(kind, arguments)  # type: ignore[misc]

    def load_setitem(self) -> None:
        """Check the key of an item."""
        self._keys.check(self.stack[-2])
        _set_item(self)

    def load_setitems(self) -> None:
        """Check the keys of items; those since the mark are on the stack."""
        self._keys.check_all(self.stack[::2])
        _set_items(self)

    def load_dict(self) -> None:
        """Check the keys of a dict."""
        self._keys.check_all(self.stack[::2])
        _make_dict(self)

    def load_additems(self) -> None:
        """Check the items of a set."""
        self._keys.check_all(self.stack)
        _add_items(self)

    def load_frozenset(self) -> None:
        """Check the items of a frozenset."""
        self._keys.check_all(self.stack)
        _make_frozenset(self)

    def _check_call(self, called: Any, arguments: Any) -> None:
        check_call(called, arguments)
        if called in _HASHING and arguments:
            self._keys.check_all(arguments[0])
        elif called is _tensordict and len(arguments) == 3:
            self._keys.check_all(item[0] for item in arguments[2])

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.FROZENSET[0]] = load_frozenset


def _check_batch(batch: Any) -> None:
    """Check that the parts of a batch have the types that its methods expect."""
    columns = batch.non_tensor_batch
    parts = (
        batch.batch is None or isinstance(batch.batch, TensorDictBase),
        columns is None or (type(columns) is dict and all(map(_is_column, columns.items()))),
        isinstance(batch.meta_info, dict),
        batch.__dict__.get("_row_ids") is None or type(batch._row_ids) is np.ndarray,
    )
    if not all(parts):
        raise BatchError("its parts are not tensors, arrays and meta")
    batch.check_consistency()


def _is_column(column: tuple[object, object]) -> bool:
    return isinstance(column[0], str) and type(column[1]) is np.ndarray


def _check_array(array: np.ndarray[Any, Any], state: Any) -> None:
    """Check the state of an array: numpy trusts its length, and may free memory that a tensor uses."""
    version, shape, dtype, is_fortran, content = state
    if array.shape != (0,) or array.dtype != np.int8:
        raise ValueError("the content of an array is set twice")
    if version != 1 or not isinstance(dtype, np.dtype) or type(is_fortran) is not bool or min(shape, default=0) < 0:
        raise ValueError("invalid state of an array")
    n_items = math.prod(shape)
    kind, n_there = (list, n_items) if dtype.hasobject else (bytes, n_items * dtype.itemsize)
    if type(content) is not kind or len(content) != n_there:
        raise ValueError(f"the content of an array of {n_items} items has another length or type")


def _check_dtype(dtype: np.dtype[Any], state: Any) -> None:
    """Check that the state is one that numpy itself writes for such a dtype."""
    _, order, subarray, names, fields, size, _, flags, *more = state
    if names is not None:
        columns = [fields[name] for name in names]
        formats, offsets = [column[0] for column in columns], [column[1] for column in columns]
        aligned = bool(flags & 0x80)
        like = np.dtype({"names": list(names), "formats": formats, "offsets": offsets, "itemsize": size}, align=aligned)
    elif subarray is not None:
        like = np.dtype(tuple(subarray))
    elif more:
        unit, count = more[-1][1][:2]
        like = np.dtype(f"{dtype.char}8[{int(count)}{unit.decode()}]").newbyteorder(order)
    else:
        like = dtype.newbyteorder(order)
    if like.hasobject and like != np.dtype(object):
        raise Refused("a structured array of objects")
    if like.__reduce__()[2] != state or like.itemsize != dtype.itemsize:
        raise ValueError(f"invalid state of the dtype {like}")


class _NdArray:
    """Stands for numpy's class, which would make arrays of uninitialized memory."""


def _fresh_array(kind: type[Any], shape: tuple[int, ...], code: bytes) -> np.ndarray[Any, Any]:
    if kind is not _NdArray or shape != (0,) or code != b"b":
        raise ValueError("invalid array")
    return np.empty(0, np.int8)


def _checked_array(dtype: str, shape: tuple[int, ...], order: Literal["C", "F"], raw: Any, as_view: bool) -> Any:
    array = _array(dtype, shape, order, raw, as_view)
    if array.dtype.kind == "U" and array.size:
        code_points = array.ravel("K").view(f"{array.dtype.byteorder}u4")
        if int(code_points.max()) > sys.maxunicode:
            raise ValueError("texts with invalid code points")
    return array


def _checked_sparse(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=True)
    return _sparse(indices, values, shape)


def _checked_compressed(
    compressed: torch.Tensor, plain: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...], layout: str
) -> torch.Tensor:
    if layout not in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        raise ValueError(f"a compressed tensor of layout {layout!r}")
    kind = getattr(torch, layout)
    torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=kind, check_invariants=True)
    return _compressed(compressed, plain, values, shape, layout)


def _refused_class(*_: object) -> None:
    """Replace what builds objects of a user's own class; the class itself was refused by its name before."""
    raise ValueError("an object of an invalid class")


def _checked_jagged(values: torch.Tensor, offsets: torch.Tensor, dim: int) -> torch.Tensor:
    if offsets.ndim != 1 or not 1 <= dim <= values.ndim:
        raise ValueError(f"a jagged tensor of values {tuple(values.shape)} and offsets {tuple(offsets.shape)}")
    edges = [0, *offsets.tolist(), values.shape[dim - 1]]
    if offsets.dtype not in {torch.int64, torch.int32} or len(edges) < 3 or edges != sorted(edges):
        raise ValueError(f"the offsets of a jagged tensor do not partition its {edges[-1]} values")
    return _jagged(values, offsets, dim)


_CHECKED = {
    "ndarray": _NdArray,
    "_reconstruct": _fresh_array,
    "_array": _checked_array,
    "_sparse": _checked_sparse,
    "_compressed": _checked_compressed,
    "_subclassed": _refused_class,
    "_new": _refused_class,
    "_jagged": _checked_jagged,
}
