"""A method about to run on a worker: its arguments resolved, and its result with the receipt of what it did."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from core.data.batch import payload_bytes
from core.data.direct import kept_here, noting
from core.data.future import DataProtoFuture
from core.data.identity import real_rows
from core.data.private_mmap import method_ended, unpin_store_objects
from core.data.proto import DataProto
from core.data.rows import row_count, select_rows
from core.data.shares import Receipt, Share
from core.data.wire import pack
from core.data.zero_copy import views
from core.errors import ShareError
from core.worker.call_header import Header


@dataclass(slots=True)
class Work:
    """A method about to run, with its arguments resolved. ``given`` are the batches among them."""

    header: Header
    method: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: tuple[Any, ...]
    n_real: int
    n_padding: int
    note: str = ""

    @classmethod
    def prepare(cls, worker: object, header: Header, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Work:
        """Find the method and fetch the futures among the arguments."""
        unpin_store_objects()
        n_real, n_padding = max(header.n_real, 0), header.n_padding
        shares: list[Share] = []
        notes: list[str] = []

        def resolve(value: Any) -> Any:
            if not header.materialize or not isinstance(value, DataProtoFuture):
                return value
            with views() if header.views else nullcontext(), noting(notes):
                resolved, share = value.materialize()
            if share is not None:
                shares.append(share)
            return resolved

        resolved_args = tuple(resolve(value) for value in args)
        resolved_kwargs = {name: resolve(value) for name, value in kwargs.items()}
        if shares:
            n_real, n_padding = _agreed(shares, header)
        # A method may change its batch in place: what is compared later must be what it was given.
        mixed = n_real > 0 and n_padding > 0
        given = tuple(_kept_aside(value) for value in (*resolved_args, *resolved_kwargs.values())) if mixed else ()
        method = attrgetter(header.method)(worker)
        return cls(
            header, method, resolved_args, resolved_kwargs, given, n_real, n_padding, "; ".join(notes) if notes else ""
        )

    def reported(self, result: Any, started_ns: int, group: str) -> tuple[Any, bytes]:
        """Return the result with its receipt; ``group`` is the worker's."""
        finished_ns = time.monotonic_ns()
        method_ended()
        if self.n_padding and isinstance(result, tuple):
            result = self._without_padding_inside(result)
        keep = self._kept(result)
        if keep is not None and not (self.header.trims == "rows" and self.n_padding):
            # The driver joins no rows of this call, or expects no padding in them: what there is ends here.
            result, keep = select_rows(result, keep), None
        rows_out = row_count(result) if self.header.trims else None
        n_bytes = payload_bytes(result)
        note = self.note
        if self.header.transport and n_bytes:
            notes = [note] if note else []
            with noting(notes):
                result = kept_here(result, f"{group}.{self.header.method}", self.header.transport)
            note = "; ".join(notes)
        receipt = Receipt(
            started_ns=started_ns,
            finished_ns=finished_ns,
            rows_in=self.n_real + self.n_padding,
            rows_out=-1 if rows_out is None else rows_out,
            bytes_out=n_bytes,
            n_padding=self.n_padding,
            keep=keep,
            note=note,
        )
        return pack(result) if n_bytes else result, receipt.pack()

    def _without_padding_inside(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Cut the padding rows of the batches in a tuple here: the driver gets one tuple per rank and joins none."""
        cut = []
        for result in results:
            is_batch = isinstance(result, (DataProto, TensorDictBase))
            keep = real_rows(self.given, result, self.n_real, self.n_padding, self.header.method) if is_batch else None
            cut.append(result if keep is None else select_rows(result, keep))
        # A named tuple keeps its type.
        return results._make(cut) if hasattr(results, "_make") else tuple(cut)

    def _kept(self, result: Any) -> tuple[int, ...] | None:
        """Return which rows of the result are real, None for all of them."""
        if self.n_padding and (self.header.trims == "rows" or isinstance(result, DataProto)):
            return real_rows(self.given, result, self.n_real, self.n_padding, self.header.method)
        # A batch that the worker kept from an earlier call, or got by a user's own mode, brings its padding along.
        ids = result.row_ids if isinstance(result, DataProto) else None
        if ids is None or bool((ids >= 0).all()):
            return None
        return tuple(int(index) for index in np.flatnonzero(ids >= 0))


def _agreed(shares: Sequence[Share], header: Header) -> tuple[int, int]:
    """Return the real and the padding rows of this rank's part, which all batches must share if there is padding.

    Without padding one may have a whole number of rows for each row of the other, as where batches are split.

    Raises:
        ShareError: Batches meet whose rows do not match.
    """
    parts = {(share.n_real, share.n_padding) for share in shares}
    if header.n_real >= 0:
        parts.add((header.n_real, header.n_padding))
    sizes = sorted(n_real for n_real, _ in parts if n_real)
    if len(parts) > 1 and (any(n_padding for _, n_padding in parts) or any(size % sizes[0] for size in sizes)):
        words = ", ".join(f"{n_real} rows and {n_padding} padding rows" for n_real, n_padding in sorted(parts))
        raise ShareError(
            f"the batches of {header.method}, some of them futures, have different lengths: a rank got {words}; "
            f"they cannot be split by rows"
        )
    if header.n_real >= 0:
        return header.n_real, header.n_padding
    return shares[0].n_real, shares[0].n_padding


def _kept_aside(value: Any) -> Any:
    """Copy a batch that holds padding; one rank of a call has such a one, and its share is small."""
    return copy.deepcopy(value) if isinstance(value, (DataProto, TensorDictBase, torch.Tensor)) else value
