"""A batch as a file: a mark, then the wire format.

Reading a pickle runs what it names, so ``load`` allows only what the wire format and plain values need, unless the
caller trusts the file (``untrusted``).
"""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

from core.data.untrusted import Reader, Refused
from core.errors import BatchError

_MARK = b"podium DataProto 1\n"


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
            return pickle.load(file) if trusted else Reader(file, root, os.fstat(file.fileno()).st_size).load()
        except Refused as refused:
            raise BatchError(
                f"{path} holds {refused}, which is not read from an untrusted file; "
                f"if you know where the file comes from, use load_from_disk(path, trusted=True)"
            ) from None
        except Exception as error:
            # In a file that is trusted a class of the user's own may raise what it likes.
            if trusted and not isinstance(error, (pickle.UnpicklingError, EOFError)):
                raise
            raise BatchError(f"{path} is damaged: {type(error).__name__}: {error}") from error
