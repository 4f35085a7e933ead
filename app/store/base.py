"""What every table of a run's file has: metadata of our own, names of constraints, columns that came later."""

from __future__ import annotations

from typing import Any

from sqlalchemy import MetaData, text
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

SCHEMA_REVISION = "0004"
# Files of these are read as they are; what came later is empty in them. `podium db upgrade` moves them on.
READABLE_REVISIONS = ("0001", "0002", "0003", SCHEMA_REVISION)
# "PODM" in the file's header identifies a run file among SQLite files.
APPLICATION_ID = 0x504F444D

# Alembic can only drop or alter a constraint that has a name.
_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
_registry = registry(metadata=MetaData(naming_convention=_NAMES))


class Record(SQLModel, registry=_registry):
    """The root of our tables, with metadata of its own: a driver's own SQLModel tables never meet ours."""

    metadata = _registry.metadata


def later(default: Any) -> Any:
    """Return the field of a column that came after the first schema; older rows hold ``default``."""
    if default is None:
        return Field(default=None)
    return Field(
        default=default,
        sa_column_kwargs={"server_default": text(f"'{default}'" if isinstance(default, str) else str(default))},
    )
