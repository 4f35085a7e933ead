"""Cutting arguments into one part per rank, under the names that dispatch functions written for verl import."""

from __future__ import annotations

from typing import Any

from core.data.batch import BatchData
from core.data.future import DataProtoFuture
from core.data.padding import cycled_numbers
from core.data.proto import DataProto
from core.data.rows import is_splittable
from core.errors import ShareError

_padding_size_key = "_podium_padding_size"
"""The keyword under which ``_split_args_kwargs_data_proto_with_auto_padding`` says how many rows it added."""

Columns = tuple[list[list[Any]], dict[str, list[Any]]]
"""The parts of each positional argument and of each keyword, in rank order."""


def _split_args_kwargs_data_proto(chunks: int, *args: Any, **kwargs: Any) -> Columns:
    """Cut every argument into ``chunks`` parts.

    Raises:
        BatchError: The rows do not divide.
        ShareError: An argument has no rows.
    """
    return (
        [_parts(value, chunks, f"#{index + 1}") for index, value in enumerate(args)],
        {name: _parts(value, chunks, name) for name, value in kwargs.items()},
    )


def _split_args_kwargs_data_proto_with_auto_padding(chunks: int, *args: Any, **kwargs: Any) -> Columns:
    """Cut every argument into ``chunks`` parts; batches with auto padding are filled up first, on a copy.

    When one was, the keywords have the number of rows that were added as well, under ``_padding_size_key``, so that the
    caller can take as many off the end of the result.

    Raises:
        BatchError: The rows do not divide, and the batch is not to be padded.
        ShareError: An argument has no rows, or batches to be padded differ in length.
    """
    named = [*((f"#{index + 1}", value) for index, value in enumerate(args)), *kwargs.items()]
    lengths = {name: len(value) for name, value in named if isinstance(value, DataProto) and value.is_padding_enabled()}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ShareError(f"batches of different lengths cannot be padded alike ({words}); pass batches of one length")
    filled = {name: _filled(value, chunks) if name in lengths else value for name, value in named}
    columns = _split_args_kwargs_data_proto(
        chunks, *(filled[f"#{index + 1}"] for index in range(len(args))), **{name: filled[name] for name in kwargs}
    )
    if lengths:
        n_rows = next(iter(lengths.values()))
        columns[1][_padding_size_key] = -n_rows % chunks  # type: ignore[assignment]
    return columns


def _filled(batch: DataProto, chunks: int) -> DataProto:
    return batch.select_idxs(cycled_numbers(len(batch), chunks))


def _parts(value: Any, chunks: int, name: str) -> list[Any]:
    if isinstance(value, DataProtoFuture):
        return list(value.chunk(chunks))
    if is_splittable(value):
        return BatchData.chunk(value, chunks)
    raise ShareError(f"argument {name} is a {type(value).__name__}, which has no rows to split", argument=name)
