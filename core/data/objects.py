"""Object columns: rows that are Python objects, given back as they were put in.

``from_dict`` makes of lists of one length an array of two (or more) axes, as drivers of this field expect
(``ListRows``). What such an array stands for are its lists: they are what is sent to workers, written to files, put
into a TensorDict and given out row by row, whatever the lengths of the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class ListRows(np.ndarray[Any, np.dtype[Any]]):
    """Lists of one length as an object array of two or more axes; slices and joins of it are of this type too."""


def is_list_rows(array: object) -> TypeGuard[ListRows]:
    """Return whether the rows of an array are lists; what was made of a ``ListRows`` by arithmetic is a plain array."""
    return type(array) is ListRows and array.dtype == object and array.ndim > 1


def object_array(values: Sequence[Any]) -> Array:
    """Return an object array of rows; lists of equal length, however deep, become further axes (``ListRows``).

    Only lists are opened: a tuple, a tensor, an array or a string stays one object.
    """
    shape = [len(values)]
    level: list[Any] = list(values)
    while level and all(type(item) is list for item in level):
        lengths = {len(item) for item in level}
        if len(lengths) != 1 or 0 in lengths:
            break
        shape.append(lengths.pop())
        level = [inner for item in level for inner in item]
    array = fill_objects(level)
    return array if len(shape) == 1 else array.reshape(shape).view(ListRows)


def fill_objects(values: Sequence[object]) -> Array:
    """Return an array of shape ``(len(values),)`` that holds the values as they are."""
    array = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        array[number] = value
    return array


def row_of(array: Array, row: int) -> Any:
    """Return one row as it was put in."""
    return array[row].tolist() if is_list_rows(array) else array[row]


def rows_of(array: Array) -> list[Any]:
    """Return an array's rows as they were put in."""
    return array.tolist() if is_list_rows(array) else [array[number] for number in range(array.shape[0])]


def array_of_rows(rows: Sequence[Any]) -> Array:
    """Undo ``rows_of``: numpy scalars and arrays of one dtype and shape become an array of that dtype, others objects.

    Its rows are then what they were, whichever of the two the column was before.
    """
    kinds = {type(row) for row in rows}
    is_numpy = len(kinds) == 1 and (kinds == {np.ndarray} or issubclass(next(iter(kinds)), np.generic))
    if not is_numpy or len({row.shape for row in rows}) > 1:
        return fill_objects(rows)
    dtypes = {row.dtype for row in rows}
    if len(dtypes) > 1 and not all(dtype.kind in "US" for dtype in dtypes):
        return fill_objects(rows)
    made = np.stack(list(rows)) if kinds == {np.ndarray} else np.array(list(rows))
    return made if len(dtypes) > 1 else made.astype(next(iter(dtypes)), copy=False)


def one_axis(array: Array) -> Array:
    """Return lists as an object array of one axis, which is how they travel; any other array as it is."""
    return fill_objects(array.tolist()) if is_list_rows(array) else array


def opened(array: Array) -> Array:
    """Undo ``one_axis``: lists of one length become further axes again; any other array is returned as it is."""
    if array.dtype != object or array.ndim != 1:
        return array
    made = object_array(array.tolist())
    return made if is_list_rows(made) else array
