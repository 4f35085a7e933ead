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


def values_equal(left: object, right: object) -> bool:
    """Return whether two values are the same, whatever they are; containers are compared item by item."""
    return _equal(left, right, set())


def _equal(left: Any, right: Any, seen: _Pairs) -> bool:
    if left is right:
        return True
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and tensors_equal(left, right)
    if isinstance(left, (bool, np.bool_)) or isinstance(right, (bool, np.bool_)):
        return isinstance(left, (bool, np.bool_)) and isinstance(right, (bool, np.bool_)) and bool(left == right)
    if isinstance(left, numbers.Number) and isinstance(right, numbers.Number):
        return _numbers_equal(left, right)
    pair = (id(left), id(right))
    if pair in seen:
        # Both came back to a pair that is being compared higher up: they are equal if the rest is.
        return True
    return _composites_equal(left, right, seen | {pair})


def _composites_equal(left: Any, right: Any, seen: _Pairs) -> bool:
    for kind, compare in _COMPARISONS:
        if isinstance(left, kind) or isinstance(right, kind):
            return isinstance(left, kind) and isinstance(right, kind) and bool(compare(left, right, seen))
    try:
        return type(left) is type(right) and bool(left == right)
    except Exception:
        # Whatever a stranger's __eq__ raises or returns, such as an array: not known to be equal.
        return False


def _numbers_equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right) or bool(left != left and right != right)
    except Exception:
        return False


def _arrays_equal(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], seen: _Pairs) -> bool:
    if left.shape != right.shape:
        # Lists of one length have two axes where they were put in, and one where they have come back.
        as_put_in, as_got = one_axis(left), one_axis(right)
        return as_put_in.shape == as_got.shape and _arrays_equal(as_put_in, as_got, seen)
    if isinstance(left, np.ma.MaskedArray) or isinstance(right, np.ma.MaskedArray):
        return _masked_equal(left, right, seen)
    if left.dtype != right.dtype and not (left.dtype.kind == right.dtype.kind and left.dtype.kind in "US"):
        return False
    if left.dtype.hasobject and left.dtype.names is None:
        return all(_equal(a, b, seen) for a, b in zip(left.flat, right.flat, strict=True))
    if left.dtype.names is not None:
        return all(_arrays_equal(left[name], right[name], seen) for name in left.dtype.names)
    same = left == right
    if left.dtype.kind in "fcmM":
        same = same | ((left != left) & (right != right))
    return bool(np.all(same))


def _masked_equal(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], seen: _Pairs) -> bool:
    if type(left) is not type(right) or not np.array_equal(np.ma.getmaskarray(left), np.ma.getmaskarray(right)):
        return False
    return _arrays_equal(np.ma.filled(left), np.ma.filled(right), seen)


def _dicts_equal(left: dict[Any, Any], right: dict[Any, Any], seen: _Pairs) -> bool:
    return left.keys() == right.keys() and all(_equal(value, right[key], seen) for key, value in left.items())


def _sequences_equal(left: Any, right: Any, seen: _Pairs) -> bool:
    return len(left) == len(right) and all(_equal(a, b, seen) for a, b in zip(left, right, strict=True))


def tensors_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape, layout and values (NaN equals NaN) on any device."""
    if left is right:
        return True
    if left.dtype != right.dtype or left.is_nested != right.is_nested or left.layout != right.layout:
        return False
    if left.is_nested:
        return _nested_equal(left, right)
    if left.shape != right.shape:
        return False
    if left.layout is not torch.strided:
        return tensors_equal(left.to_dense(), right.to_dense())
    if left.is_meta or right.is_meta:
        return left.is_meta and right.is_meta
    return _dense_equal(left.detach(), right.detach().to(left.device))


def _dense_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    try:
        if torch.equal(left, right):
            return True
        if not (left.is_floating_point() or left.is_complex()):
            return False
        return bool(((left == right) | ((left != left) & (right != right))).all())
    except (RuntimeError, NotImplementedError):
        pass
    if left.dtype is torch.complex32:
        return _dense_equal(left.to(torch.complex64), right.to(torch.complex64))
    if left.is_floating_point() and left.dtype in _FLOAT8:
        return _dense_equal(left.to(torch.float32), right.to(torch.float32))
    return torch.equal(_raw(left), _raw(right))


_FLOAT8 = {
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
}


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.int_repr()
    return raw_bytes(tensor.contiguous())


def _nested_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.size(0) != right.size(0) or left.dim() != right.dim():
        return False
    if is_jagged(left) and ragged_dim(left) != ragged_dim(right):
        return False
    return all(tensors_equal(a, b) for a, b in zip(left.unbind(), right.unbind(), strict=True))


def _tensordicts_equal(left: TensorDictBase, right: TensorDictBase, seen: _Pairs) -> bool:
    if left.batch_size != right.batch_size or set(left.keys()) != set(right.keys()):
        return False
    return all(_equal(value, right.get(key), seen) for key, value in left.items())


def _non_tensors_equal(left: Any, right: Any, seen: _Pairs) -> bool:
    return left.batch_size == right.batch_size and _equal(left.tolist(), right.tolist(), seen)


_COMPARISONS: tuple[tuple[Any, Any], ...] = (
    ((NonTensorData, NonTensorStack), _non_tensors_equal),
    (TensorDictBase, _tensordicts_equal),
    (np.ndarray, _arrays_equal),
    (dict, _dicts_equal),
    (list, _sequences_equal),
    (tuple, _sequences_equal),
)
