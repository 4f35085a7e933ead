"""Bounds on what a few bytes of an untrusted file can cost.

A call can make something much larger than its arguments: ``set(range(10**12))``, ``bytearray(10**12)``. A tuple that
holds one tuple twice, which holds another twice, and so on, takes 2**n steps to hash. Both are checked beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from core.data.wire import _non_tensor

_LEAST_BUDGET = 1_000_000
_MOST_DEPTH = 100
_SCALAR = np.float32(0).__reduce__()[0]


def check_call(called: Any, arguments: Any) -> None:
    """Check that a call makes nothing much larger than what it is given.

    Raises:
        ValueError: It may.
    """
    if type(arguments) is not tuple:
        raise ValueError("the arguments of a call are not a tuple")
    # The value of a non-tensor column may be a range; everywhere else one would be filled in.
    check_no_range(arguments[1:] if called is _non_tensor else arguments)
    if called is bytearray and arguments and not isinstance(arguments[0], (bytes, str)):
        raise ValueError("a bytearray made of a number")
    if called is _SCALAR and len(arguments) != 2:
        raise ValueError("a number without its bytes")
    if called is np.dtype and (not arguments or type(arguments[0]) is not str):
        raise ValueError("a dtype without a name")
    if called is torch.Size and not all(type(size) is int for part in arguments for size in part):
        raise ValueError("a shape that is not made of numbers")


def check_no_range(values: Any) -> None:
    """Check that no argument is a range, which is small and has any number of items.

    Raises:
        ValueError: One is.
    """
    if isinstance(values, range) or (isinstance(values, tuple) and any(isinstance(value, range) for value in values)):
        raise ValueError("a range in place of numbers")


class KeyBudget:
    """How many nested items the keys of a file may have in all, each counted as often as a hash visits it."""

    def __init__(self, n_bytes: int) -> None:
        """Allow keys in proportion to the ``n_bytes`` of the file."""
        self._n_left = _LEAST_BUDGET + n_bytes

    def check_all(self, keys: Iterable[Any]) -> None:
        """Check several keys. Raises what ``check`` raises."""
        for key in keys:
            if isinstance(key, (tuple, slice)):
                self.check(key)

    def check(self, key: Any) -> None:
        """Check a key before it is hashed.

        Raises:
            ValueError: It is nested too deeply, or hashing it would take too long.
        """
        waiting = [(key, 0)]
        while waiting:
            part, depth = waiting.pop()
            if isinstance(part, slice):
                part = (part.start, part.stop, part.step)
            if not isinstance(part, tuple):
                continue
            self._n_left -= len(part) + 1
            if depth > _MOST_DEPTH or self._n_left < 0:
                raise ValueError("a key that is nested too deeply")
            waiting += [(inner, depth + 1) for inner in part]
