"""SQL text made from the tables."""

from __future__ import annotations

import sqlite3

import pytest
import sqlmodel
from sqlalchemy import Boolean, Integer

from app.store.calls import CALL_COLUMNS
from app.store.models import Call, Lane, RankSpan, Record, Roll, StepMetric
from app.store.schema import schema_statements
from app.store.sql import column_names, field_names, insert_or_ignore, update, upsert
from app.store.totals import SPAN_COLUMNS, LaneRow


def test_an_upsert_names_every_column_and_keeps_the_key() -> None:
    assert upsert(StepMetric) == (
        'INSERT INTO step_metric ("step_id", "name", "value") VALUES (?, ?, ?) '
        'ON CONFLICT (step_id, name) DO UPDATE SET "value" = excluded."value"'
    )


def test_a_row_that_misses_a_column_of_its_table_is_refused_by_name() -> None:
    with pytest.raises(LookupError, match="'shard_sizes'"):
        upsert(Call, [name for name in CALL_COLUMNS if name != "shard_sizes"])


def test_a_row_with_a_column_too_many_is_refused_by_name() -> None:
    with pytest.raises(LookupError, match="'colour'"):
        insert_or_ignore(RankSpan, (*SPAN_COLUMNS, "colour"))


def test_an_update_of_an_unknown_column_is_refused() -> None:
    with pytest.raises(LookupError, match="colour"):
        update(Lane, ("colour",))


def test_every_statement_for_every_table_is_sql_that_sqlite_takes() -> None:
    connection = sqlite3.connect(":memory:")
    for statement in schema_statements():
        connection.execute(statement)
    models = [model for model in Record.__subclasses__() if model.__name__ != "Run"]
    assert len(models) >= 14
    for model in models:
        columns = column_names(model)
        for statement in (upsert(model), insert_or_ignore(model)):
            connection.execute(f"EXPLAIN {statement}", (None,) * len(columns))
    connection.close()


def test_hot_tables_hold_numbers_and_no_foreign_keys() -> None:
    for model in (Call, RankSpan, Roll):
        assert not Record.metadata.tables[str(model.__tablename__)].foreign_keys
    texts = [c.name for c in Record.metadata.tables["call"].columns if not isinstance(c.type, Boolean | Integer)]
    assert texts == ["shard_sizes", "error_type", "error_message", "error_traceback"]


def test_every_constraint_has_a_name_so_that_a_migration_can_drop_it() -> None:
    for table in Record.metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name


def test_our_tables_stay_out_of_the_metadata_that_a_drivers_own_models_use() -> None:
    assert not {"run", "call"} & set(sqlmodel.SQLModel.metadata.tables)


def test_the_fields_of_a_lane_are_its_columns() -> None:
    assert field_names(LaneRow) == column_names(Lane)
