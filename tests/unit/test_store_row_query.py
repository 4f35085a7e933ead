"""SELECTs made from the fields of a row type."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, fields

import pytest

from app.store.row_query import RowQuery, ms
from web.rows import AuditEntry


@dataclass(frozen=True, slots=True)
class Thing:
    """A row with a field of each kind."""

    group: str
    started_ms: float
    ended_ms: float | None
    is_big: bool
    oom: bool | None
    sizes: tuple[int, ...]
    n_parts: int = 0


THINGS = RowQuery(
    Thing,
    "thing t",
    "t",
    columns={"group": "upper(t.name)"},
    parse={"sizes": lambda text: tuple(map(int, text.split(",")))},
    computed=("n_parts",),
    also={"id": "t.id"},
)


@pytest.fixture
def connection() -> sqlite3.Connection:
    """Return a database whose columns are in another order than the fields."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE thing (sizes, oom, is_big, ended_ns, started_ns, name, id)")
    connection.execute("INSERT INTO thing VALUES ('1,2', 0, 1, NULL, 1500000, 'a', 7)")
    return connection


def test_fields_are_read_by_name_and_converted_by_unit_and_type(connection: sqlite3.Connection) -> None:
    (record,) = THINGS.records(connection, "WHERE t.id = ?", (7,))
    assert record["id"] == 7
    assert THINGS.build(record, n_parts=2) == Thing("A", 1.5, None, True, False, (1, 2), 2)
    assert THINGS.records(connection, "WHERE t.id = ?", (8,)) == []


def test_a_text_where_a_time_belongs_is_refused(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE thing SET started_ns = 'soon'")
    with pytest.raises(TypeError):
        THINGS.records(connection)


def test_a_new_field_of_a_row_type_is_selected() -> None:
    names = [f'AS "{one.name}"' for one in fields(AuditEntry)]
    assert [
        part.split("AS")[1] for part in RowQuery(AuditEntry, "audit_entry").select.split(" FROM ")[0].split(", ")
    ] == [name.removeprefix("AS") for name in names]


@pytest.mark.parametrize("ns", [2**63, -(2**63) - 1, -1e308, 9e999])
def test_a_time_that_no_calendar_has_is_an_error(ns: float) -> None:
    with pytest.raises(OverflowError):
        ms(ns)
    assert ms(2**63 - 1) == (2**63 - 1) / 1e6
