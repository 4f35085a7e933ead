"""When two values are the same: by type, recursively, NaN equal to NaN, and never an error.

Arrays, tensors, TensorDicts, containers and objects in them; containers that contain themselves are equal when they
are built alike. A value that cannot be compared is equal only to itself.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from core.data.memory import raw_bytes
from core.data.objects import one_axis
from core.data.ragged import is_jagged, ragged_dim

_Pairs = set[tuple[int, int]]


def values_equal(one: object, other: object) -> bool:
    """Return whether two values are the same, whatever they are; containers are compared item by item."""
    return _equal(one, other, set())


def _equal(one: Any, other: Any, seen: _Pairs) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and tensors_equal(one, other)
    if isinstance(one, (bool, np.bool_)) or isinstance(other, (bool, np.bool_)):
        return isinstance(one, (bool, np.bool_)) and isinstance(other, (bool, np.bool_)) and bool(one == other)
    if isinstance(one, numbers.Number) and isinstance(other, numbers.Number):
        return _numbers_equal(one, other)
    pair = (id(one), id(other))
    if pair in seen:
        # Both came back to a pair that is being compared higher up: they are equal if the rest is.
        return True
    return _composites_equal(one, other, seen | {pair})


def _composites_equal(one: Any, other: Any, seen: _Pairs) -> bool:
    for kind, compare in _COMPARISONS:
        if isinstance(one, kind) or isinstance(other, kind):
            return isinstance(one, kind) and isinstance(other, kind) and bool(compare(one, other, seen))
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        # Whatever a stranger's __eq__ raises or returns, such as an array: not known to be equal.
        return False


def _numbers_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or bool(one != one and other != other)
    except Exception:
        return False


def _arrays_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], seen: _Pairs) -> bool:
    if one.shape != other.shape:
        # Lists of one length have two axes where they were put in, and one where they have come back.
        as_put_in, as_got = one_axis(one), one_axis(other)
        return as_put_in.shape == as_got.shape and _arrays_equal(as_put_in, as_got, seen)
    if isinstance(one, np.ma.MaskedArray) or isinstance(other, np.ma.MaskedArray):
        return _masked_equal(one, other, seen)
    if one.dtype != other.dtype and not (one.dtype.kind == other.dtype.kind and one.dtype.kind in "US"):
        return False
    if one.dtype.hasobject and one.dtype.names is None:
        return all(_equal(a, b, seen) for a, b in zip(one.flat, other.flat, strict=True))
    if one.dtype.names is not None:
        return all(_arrays_equal(one[name], other[name], seen) for name in one.dtype.names)
    same = one == other
    if one.dtype.kind in "fcmM":
        same = same | ((one != one) & (other != other))
    return bool(np.all(same))


def _masked_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], seen: _Pairs) -> bool:
    if type(one) is not type(other) or not np.array_equal(np.ma.getmaskarray(one), np.ma.getmaskarray(other)):
        return False
    return _arrays_equal(np.ma.filled(one), np.ma.filled(other), seen)


def _dicts_equal(one: dict[Any, Any], other: dict[Any, Any], seen: _Pairs) -> bool:
    return one.keys() == other.keys() and all(_equal(value, other[key], seen) for key, value in one.items())


def _sequences_equal(one: Any, other: Any, seen: _Pairs) -> bool:
    return len(one) == len(other) and all(_equal(a, b, seen) for a, b in zip(one, other, strict=True))


def tensors_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape, layout and values (NaN equals NaN) on any device."""
    if one is other:
        return True
    if one.dtype != other.dtype or one.is_nested != other.is_nested or one.layout != other.layout:
        return False
    if one.is_nested:
        return _nested_equal(one, other)
    if one.shape != other.shape:
        return False
    if one.layout is not torch.strided:
        return tensors_equal(one.to_dense(), other.to_dense())
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta
    return _dense_equal(one.detach(), other.detach().to(one.device))


def _dense_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        if torch.equal(one, other):
            return True
        if not (one.is_floating_point() or one.is_complex()):
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    except (RuntimeError, NotImplementedError):
        pass
    if one.dtype is torch.complex32:
        return _dense_equal(one.to(torch.complex64), other.to(torch.complex64))
    if one.is_floating_point() and one.dtype in _FLOAT8:
        return _dense_equal(one.to(torch.float32), other.to(torch.float32))
    return torch.equal(_raw(one), _raw(other))


_FLOAT8 = {
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
}


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.int_repr()
    return raw_bytes(tensor.contiguous())


def _nested_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.size(0) != other.size(0) or one.dim() != other.dim():
        return False
    if is_jagged(one) and ragged_dim(one) != ragged_dim(other):
        return False
    return all(tensors_equal(a, b) for a, b in zip(one.unbind(), other.unbind(), strict=True))


def _tensordicts_equal(one: TensorDictBase, other: TensorDictBase, seen: _Pairs) -> bool:
    if one.batch_size != other.batch_size or set(one.keys()) != set(other.keys()):
        return False
    return all(_equal(value, other.get(key), seen) for key, value in one.items())


def _non_tensors_equal(one: Any, other: Any, seen: _Pairs) -> bool:
    return one.batch_size == other.batch_size and _equal(one.tolist(), other.tolist(), seen)


_COMPARISONS: tuple[tuple[Any, Any], ...] = (
    ((NonTensorData, NonTensorStack), _non_tensors_equal),
    (TensorDictBase, _tensordicts_equal),
    (np.ndarray, _arrays_equal),
    (dict, _dicts_equal),
    (list, _sequences_equal),
    (tuple, _sequences_equal),
)
