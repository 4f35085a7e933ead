"""A batch that is still on the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from core.cluster import Ref
from core.cluster.fetching import fetch
from core.data.direct import with_tensors
from core.data.proto import DataProto
from core.data.rows import cut_rows, join, padded_indices, row_count, row_ids, select_rows
from core.data.shares import Receipt, Share, Uneven, plan_shares
from core.data.zero_copy import borrowing
from core.errors import BatchError

_Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Window:
    """Part ``index`` of ``n_parts`` of a future, cut as ``uneven`` says once its rows are known."""

    index: int
    n_parts: int
    uneven: Uneven


@dataclass
class DataProtoFuture:
    """The result of a non-blocking call, or one part of it.

    Pass it straight to another group's method: each rank then fetches only the shards that overlap its part, and
    nothing goes through the driver. ``receipts`` say how many rows each shard has, so that a part can be found without
    fetching them; without receipts every shard is fetched. ``padded`` says that shards may hold padding rows, which the
    receipts name. Chunking a part again composes.
    """

    collect_fn: Callable[[Sequence[Any]], Any]
    futures: list[Ref]
    dispatch_fn: Callable[[Any], Any] | None = None
    receipts: list[Ref] = field(default_factory=list)
    padded: bool = False
    windows: tuple[Window, ...] = ()
    resolve: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def concat(data: Sequence[Ref]) -> DataProtoFuture:
        """Make the future of the concatenation of batches, given by their references."""
        return DataProtoFuture(collect_fn=_concat, futures=list(data))

    def chunk(self, chunks: int, uneven: Uneven = Uneven.ERROR) -> list[DataProtoFuture]:
        """Return ``chunks`` parts, to be cut when the number of rows is known.

        A part's ``get`` raises ``UnevenSplitError`` if the rows do not divide and ``uneven`` is ``ERROR``.
        """
        return [
            replace(self, windows=(*self.windows, Window(index, chunks, uneven)), resolve=None)
            for index in range(chunks)
        ]

    def get(self) -> Any:
        """Wait for the ranks and return the joined value: the same that a blocking call would have returned.

        Raises:
            WorkerError: A rank failed.
            UnevenSplitError: This is a part, and the rows do not divide.
        """
        if self.resolve is not None:
            return self.resolve()
        return self.materialize()[0]

    def materialize(self) -> tuple[Any, Share | None]:
        """Return the value, and the share it is when this is a part: that says how much of it is padding."""
        value, share = self._value()
        if self.dispatch_fn is not None:
            value = self.dispatch_fn(value)
        return value, share

    def _value(self) -> tuple[Any, Share | None]:
        if not self.windows:
            return self._whole(self._receipts() if self.padded else []), None
        receipts = self._receipts()
        if not receipts or any(receipt.rows_out < 0 for receipt in receipts):
            whole = self._whole(receipts)
            rows, share = self._rows(_length(whole))
            return _tagged(whole, rows, share), share
        rows, share = self._rows(sum(receipt.n_kept for receipt in receipts))
        return self._overlapping(rows, share, receipts), share

    def _whole(self, receipts: Sequence[Receipt]) -> Any:
        return _joined(self.futures, lambda parts: self.collect_fn(without_padding(parts, receipts)))

    def _receipts(self) -> list[Receipt]:
        return [Receipt.unpack(packed) for packed in fetch(self.receipts)]

    def _rows(self, n_rows: int) -> tuple[_Indices, Share]:
        """Return the rows of the whole that this part holds, padding included."""
        rows = np.arange(n_rows, dtype=np.int64)
        share = Share(0, n_rows)
        for window in self.windows:
            share = plan_shares(len(rows), window.n_parts, window.uneven, "a future batch")[window.index]
            rows = rows[padded_indices(share, len(rows))]
        return rows, share

    def _overlapping(self, rows: _Indices, share: Share, receipts: Sequence[Receipt]) -> Any:
        """Fetch the shards that hold ``rows`` and join what they hold of them."""
        ends = np.cumsum([receipt.n_kept for receipt in receipts])
        starts = ends - [receipt.n_kept for receipt in receipts]
        shard_of_row = np.searchsorted(ends, rows, side="right")
        # An empty part still needs one shard, for its columns.
        wanted = sorted({int(shard) for shard in shard_of_row}) or [0]

        def joined(parts: Sequence[Any]) -> Any:
            kept = without_padding(parts, [receipts[shard] for shard in wanted])
            if _in_a_row(rows):
                first, last = int(rows[0]), int(rows[-1]) + 1
                pieces = [
                    _cut(part, max(first - int(starts[shard]), 0), min(last, int(ends[shard])) - int(starts[shard]))
                    for part, shard in zip(kept, wanted, strict=True)
                ]
                return _tagged(self.collect_fn(pieces), np.arange(len(rows), dtype=np.int64), share)
            shift = np.zeros(len(receipts), dtype=np.int64)
            offset = 0
            for shard in wanted:
                shift[shard] = offset - starts[shard]
                offset += receipts[shard].n_kept
            return _tagged(self.collect_fn(kept), rows + shift[shard_of_row], share)

        return _joined([self.futures[shard] for shard in wanted], joined)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without ``resolve``, which only the driver has."""
        return DataProtoFuture, (
            self.collect_fn,
            self.futures,
            self.dispatch_fn,
            self.receipts,
            self.padded,
            self.windows,
        )


def _concat(parts: Sequence[Any]) -> Any:
    return join(parts, "a future")


def without_padding(parts: Sequence[Any], receipts: Sequence[Receipt]) -> list[Any]:
    """Remove from each rank's part the rows that its receipt does not keep."""
    if not receipts:
        return list(parts)
    return [
        part if receipt.keep is None else select_rows(part, receipt.keep)
        for part, receipt in zip(parts, receipts, strict=True)
    ]


def _length(whole: Any) -> int:
    n_rows = row_count(whole)
    if n_rows is None:
        raise BatchError(f"a future of {type(whole).__name__} has no rows and cannot be cut into shares")
    return n_rows


def _joined(refs: Sequence[Ref], join_parts: Callable[[Sequence[Any]], Any]) -> Any:
    """Fetch parts and join them: several into one allocation, straight from the cluster's memory."""
    if len(refs) == 1:
        return join_parts(with_tensors(fetch(refs)))
    with borrowing() as borrowed:
        parts = with_tensors(fetch(refs))
    if not borrowed.all_within(parts):
        return join_parts(with_tensors(fetch(refs)))
    return borrowed.owned(join_parts(parts))


def _in_a_row(rows: _Indices) -> bool:
    return len(rows) > 0 and bool((np.diff(rows) == 1).all())


def _cut(part: Any, start: int, stop: int) -> Any:
    return part if start == 0 and stop == _length(part) else cut_rows(part, start, stop)


def _tagged(value: Any, rows: _Indices, share: Share) -> Any:
    contiguous = _in_a_row(rows)
    if contiguous and int(rows[0]) == 0 and len(rows) == _length(value):
        part = value
    elif contiguous:
        part = cut_rows(value, int(rows[0]), int(rows[-1]) + 1)
    else:
        part = select_rows(value, [int(row) for row in rows])
    if share.n_padding and isinstance(part, DataProto):
        return part.with_row_ids(row_ids(share))
    return part
