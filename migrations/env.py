"""Alembic's way into a run's file; `app.store.migrate` hands it the connection."""

from __future__ import annotations

from alembic import context

from app.store.models import Record

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations through `podium db upgrade FILE`: each run has a file of its own")
context.configure(
    connection=connection,
    target_metadata=Record.metadata,
    # SQLite cannot alter most of a table in place; alembic then copies the table.
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
