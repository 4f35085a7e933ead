"""SELECTs made from the fields of a row type of `web.rows`, so that no code depends on the order of columns."""

from __future__ import annotations

import sqlite3
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_MOST_NS = 2**63
Record = dict[str, Any]


def ms(ns: float) -> float:
    """Return nanoseconds as milliseconds.

    Raises:
        OverflowError: It is infinite or does not fit into 64 bits, as a file can hold; no calendar has such a time.
    """
    whole = round(ns)
    if not -_MOST_NS <= whole < _MOST_NS:
        raise OverflowError(f"{ns:.3g} ns is not a time")
    return whole / 1e6


def ms_or_none(ns: int | None) -> float | None:
    """Return nanoseconds as milliseconds, None as None."""
    return None if ns is None else ms(ns)


class RowQuery(Generic[T]):
    """A SELECT with one column per field of ``kind``.

    A field is read from the column of its name in the table ``alias``, a field ``x_ms`` from ``x_ns`` and divided;
    ``columns`` names other expressions, ``parse`` other conversions. Fields in ``computed`` are not selected: the
    caller passes them to ``build``. ``also`` are further columns for that.
    """

    def __init__(
        self,
        kind: type[T],
        source: str,
        alias: str = "",
        *,
        columns: Mapping[str, str] | None = None,
        parse: Mapping[str, Callable[[Any], object]] | None = None,
        computed: Sequence[str] = (),
        also: Mapping[str, str] | None = None,
    ) -> None:
        """Make the SELECT; nothing is asked yet."""
        hints = typing.get_type_hints(kind)
        prefix = f"{alias}." if alias else ""
        self._kind: Callable[..., T] = kind
        self._fields = tuple(one.name for one in fields(kind) if one.name not in computed)  # type: ignore[arg-type]
        expressions = {name: f"{prefix}{_column(name)}" for name in self._fields} | dict(columns or {})
        expressions |= also or {}
        self._names = tuple(expressions)
        self._parsers = tuple((parse or {}).get(name) or _parser(name, hints.get(name)) for name in self._names)
        self.select = "SELECT " + ", ".join(f'{text} AS "{name}"' for name, text in expressions.items())
        self.select += f" FROM {source}"

    def records(self, connection: sqlite3.Connection, rest: str = "", values: Sequence[object] = ()) -> list[Record]:
        """Return the converted values of each row by name; ``rest`` follows the SELECT."""
        found = connection.execute(f"{self.select} {rest}", values)
        return [dict(zip(self._names, self._parsed(row), strict=True)) for row in found]

    def rows(self, connection: sqlite3.Connection, rest: str = "", values: Sequence[object] = ()) -> tuple[T, ...]:
        """Return the rows of a query without computed fields."""
        found = connection.execute(f"{self.select} {rest}", values)
        # The fields are the first columns, in the order in which the type takes them.
        return tuple(self._kind(*self._parsed(row)) for row in found)

    def build(self, record: Record, **computed: object) -> T:
        """Return the row of a record, with its computed fields."""
        return self._kind(**{name: record[name] for name in self._fields}, **computed)

    def _parsed(self, row: Sequence[Any]) -> list[object]:
        return [value if parse is None else parse(value) for value, parse in zip(row, self._parsers, strict=True)]


def _column(name: str) -> str:
    return f"{name.removesuffix('_ms')}_ns" if name.endswith("_ms") else name


def _parser(name: str, hint: object) -> Callable[[Any], object] | None:
    if name.endswith("_ms"):
        return ms_or_none
    if hint is bool:
        return bool
    return _bool_or_none if hint == (bool | None) else None


def _bool_or_none(value: Any) -> bool | None:
    return None if value is None else bool(value)
