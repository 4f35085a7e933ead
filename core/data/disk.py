"""A batch as a file: a mark, then the wire format.

Reading a pickle runs what it names, so ``load`` allows only what the wire format and plain values need, unless the
caller trusts the file; and what torch takes at its word is checked first: an index or an offset beyond the memory that
it is for would be written to and read all the same.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from core.data.wire import _jagged, _sparse
from core.errors import BatchError

_MARK = b"podium DataProto 1\n"

_ALLOWED = {
    "numpy": {"ndarray", "dtype"},
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
        "_tensordict",
        "_non_tensor",
        "_non_tensor_stack",
        "_lazy_stack",
    },
}


def save(value: object, path: str | os.PathLike[str]) -> None:
    """Write ``value`` to ``path``; a reader sees the old file or the whole new one."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MARK)
            pickle.dump(value, file, protocol=5)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], root: type[Any], trusted: bool) -> Any:
    """Read what ``save`` wrote; without trust only plain values, arrays, tensors and classes derived from ``root``.

    Raises:
        BatchError: Not such a file, a damaged one, or it holds objects of other classes.
    """
    with open(path, "rb") as file:
        if file.read(len(_MARK)) != _MARK:
            raise BatchError(f"{path} was not written by DataProto.save_to_disk")
        try:
            return pickle.load(file) if trusted else _Reader(file, root, str(path)).load()
        except BatchError:
            raise
        except Exception as error:
            # In a file that is trusted a class of the user's own may raise what it likes.
            if trusted and not isinstance(error, (pickle.UnpicklingError, EOFError)):
                raise
            raise BatchError(f"{path} is damaged: {type(error).__name__}: {error}") from error


class _Reader(pickle.Unpickler):
    """An unpickler that knows only what a batch is made of."""

    def __init__(self, file: BinaryIO, root: type[Any], path: str) -> None:
        super().__init__(file)
        self._root = root
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class or function."""
        if name in _ALLOWED.get(module, ()):
            return _CHECKED.get(name) or super().find_class(module, name)
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(found, self._root):
            return found
        raise BatchError(
            f"{self._path} holds a {module}.{name}, which is not read from an untrusted file; "
            f"if you know where the file comes from, use load_from_disk(path, trusted=True)"
        )


def _checked_sparse(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=True)
    return _sparse(indices, values, shape)


def _checked_jagged(values: torch.Tensor, offsets: torch.Tensor, dim: int) -> torch.Tensor:
    edges = [0, *offsets.tolist(), values.shape[dim - 1]]
    if offsets.is_floating_point() or edges != sorted(edges):
        raise ValueError(f"the offsets of a jagged tensor do not part its {edges[-1]} values")
    return _jagged(values, offsets, dim)


_CHECKED = {"_sparse": _checked_sparse, "_jagged": _checked_jagged}
