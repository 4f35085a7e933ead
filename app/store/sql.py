"""SQL text made from the tables, so that it cannot drift from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Table

from app.store.models import Record


def table_of(model: type[Record]) -> Table:
    """Return the table that ``model`` describes."""
    table = Record.metadata.tables.get(str(model.__tablename__))
    if table is None:
        raise LookupError(f"{model.__name__} is not a table of a run's file")
    return table


def column_names(model: type[Record]) -> tuple[str, ...]:
    """Return the columns of ``model`` in the order of the table."""
    return tuple(column.name for column in table_of(model).columns)


def key_names(model: type[Record]) -> tuple[str, ...]:
    """Return the columns of the primary key of ``model``."""
    return tuple(column.name for column in table_of(model).primary_key.columns)


def field_names(row: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of the dataclass ``row``, in order."""
    return tuple(f.name for f in fields(row))


def upsert(model: type[Record], columns: Sequence[str] | None = None, merge: dict[str, str] | None = None) -> str:
    """Return an INSERT of whole rows that replaces the row with the same key.

    Args:
        model: The table.
        columns: The order in which values come; the table's own by default.
        merge: For a column the SQL expression of its new value where the row exists; ``excluded`` is the row that
            comes. Columns not named take the value that comes.

    Raises:
        LookupError: ``columns`` are not exactly the table's.
    """
    names = _checked(model, columns)
    keys = key_names(model)
    changes = [
        f"{_quoted(name)} = {(merge or {}).get(name, f'excluded.{_quoted(name)}')}"
        for name in names
        if name not in keys
    ]
    return f"{_insert(model, names)} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(changes)}"


def insert_or_ignore(model: type[Record], columns: Sequence[str] | None = None) -> str:
    """Return an INSERT of whole rows that leaves a row with the same key as it is.

    Raises:
        LookupError: ``columns`` are not exactly the table's.
    """
    return _insert(model, _checked(model, columns), "INSERT OR IGNORE")


def update(model: type[Record], columns: Sequence[str]) -> str:
    """Return an UPDATE of ``columns`` of the row with the key that comes last.

    Raises:
        LookupError: A column is not the table's.
    """
    unknown = set(columns) - set(column_names(model))
    if unknown:
        raise LookupError(f"{table_of(model).name} has no columns {sorted(unknown)}")
    changes = ", ".join(f"{_quoted(name)} = ?" for name in columns)
    keys = " AND ".join(f"{_quoted(name)} = ?" for name in key_names(model))
    return f"UPDATE {table_of(model).name} SET {changes} WHERE {keys}"


def _insert(model: type[Record], names: Sequence[str], verb: str = "INSERT") -> str:
    columns = ", ".join(map(_quoted, names))
    return f"{verb} INTO {table_of(model).name} ({columns}) VALUES ({', '.join('?' * len(names))})"


def _checked(model: type[Record], columns: Sequence[str] | None) -> Sequence[str]:
    own = column_names(model)
    if columns is None:
        return own
    if sorted(columns) != sorted(own):
        odd = sorted(set(columns) ^ set(own))
        raise LookupError(f"{table_of(model).name} and the written row differ in {odd}")
    return columns


def _quoted(name: str) -> str:
    return f'"{name}"'
