"""Which rows go to which rank, and which rows of what comes back are real: pure decisions.

A batch of ``n`` rows is split over ``w`` ranks in order. Padding fills the last shares up to equal size, so at most one
share holds both real rows and padding; shares before it are whole, shares behind it are only padding. What the
method did with its rows matters only for that share.
"""

from __future__ import annotations

import itertools
import json
import struct
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from core.data.index import balanced_sizes
from core.errors import UnevenSplitError

_NUMBERS = struct.Struct("<6q")


class Uneven(Enum):
    """What happens to rows that do not divide into equal shares."""

    ERROR = "error"
    PAD = "pad"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Share:
    """The rows ``start`` to ``stop`` (exclusive) of a batch, and how many padding rows follow them."""

    start: int
    stop: int
    n_padding: int = 0

    @property
    def n_real(self) -> int:
        """Return how many rows of the batch are in it."""
        return self.stop - self.start

    @property
    def size(self) -> int:
        """Return how many rows the rank gets."""
        return self.n_real + self.n_padding


class Receipt(NamedTuple):
    """What a rank reports of its part of a call, beside the result.

    ``started_ns`` and ``finished_ns`` are on the worker's monotonic clock. ``rows_in`` counts ``n_padding`` too;
    ``rows_out`` counts the rows of the result, padding included, -1 when it has none; ``keep`` lists those that are
    real, None for all of them. ``note`` is a remark for the record on how the result or the arguments were transferred.
    """

    started_ns: int
    finished_ns: int
    rows_in: int
    rows_out: int
    bytes_out: int
    n_padding: int = 0
    keep: tuple[int, ...] | None = None
    note: str = ""

    def pack(self) -> bytes:
        """Return the fields as bytes, which Ray sends unchanged; an object costs about 50 us more."""
        numbers = (self.started_ns, self.finished_ns, self.rows_in, self.rows_out, self.bytes_out, self.n_padding)
        words = b"" if self.keep is None and not self.note else json.dumps([self.keep, self.note]).encode()
        return _NUMBERS.pack(*numbers) + words

    @classmethod
    def unpack(cls, packed: bytes) -> Receipt:
        """Return the receipt from the bytes of ``pack``."""
        if len(packed) == _NUMBERS.size:
            return cls(*_NUMBERS.unpack(packed))
        keep, note = json.loads(packed[_NUMBERS.size :])
        return cls(*_NUMBERS.unpack_from(packed))._replace(keep=None if keep is None else tuple(keep), note=note)

    @property
    def n_kept(self) -> int:
        """Return how many real rows the result has."""
        return self.rows_out if self.keep is None else len(self.keep)


def plan_shares(n_rows: int, n_parts: int, uneven: Uneven, what: str = "the batch") -> tuple[Share, ...]:
    """Split ``n_rows`` rows over ``n_parts`` ranks, in order.

    Raises:
        UnevenSplitError: The rows do not divide and ``uneven`` is ``ERROR``; ``what`` names them in the message.
    """
    whole, rest = divmod(n_rows, n_parts)
    if rest == 0:
        return tuple(Share(part * whole, (part + 1) * whole) for part in range(n_parts))
    if uneven is Uneven.ERROR:
        raise UnevenSplitError(
            f"cannot split {n_rows} rows of {what} into {n_parts} equal shares; pad the batch (auto_padding=True), "
            f"register the method with uneven='pad' or uneven='split', or pass a multiple of {n_parts}",
            n_rows=n_rows,
            n_parts=n_parts,
        )
    if uneven is Uneven.SPLIT:
        stops = list(itertools.accumulate(balanced_sizes(n_rows, n_parts)))
        return tuple(Share(start, stop) for start, stop in zip([0, *stops], stops, strict=False))
    size = whole + 1
    return tuple(
        Share(min(part * size, n_rows), min((part + 1) * size, n_rows), size - _n_real(part, size, n_rows))
        for part in range(n_parts)
    )


def _n_real(part: int, size: int, n_rows: int) -> int:
    return max(0, min((part + 1) * size, n_rows) - part * size)
