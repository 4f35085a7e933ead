"""``python -m app.store.check_migrations``: the migrations, run on an empty file, make exactly what the models say."""

from __future__ import annotations

import contextlib
import sqlite3
import sys

from app.store.migrate import differences, known_revisions, run_migrations
from app.store.models import SCHEMA_REVISION
from app.store.schema import create_schema, pieces


def problems() -> list[str]:
    """Return, as lines of text, where models and migrations part."""
    found = []
    if known_revisions()[0] != SCHEMA_REVISION:
        found.append(f"models.SCHEMA_REVISION is {SCHEMA_REVISION}, the newest migration is {known_revisions()[0]}")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as migrated:
        run_migrations(migrated)
        found += [f"alembic reports a difference: {difference}" for difference in differences(migrated)]
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as created:
            create_schema(created)
            theirs, ours = _schema(migrated), _schema(created)
    # Alembic sees neither triggers nor WITHOUT ROWID; the file's own text does.
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            found.append(f"{name}: models say {ours.get(name)!r}, migrations say {theirs.get(name)!r}")
    return found


def main() -> int:
    """Print the problems and return how a process should exit."""
    found = problems()
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


def _schema(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the SQL of every table, index and trigger in pieces; the order of a table's constraints means nothing."""
    rows = connection.execute("SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: pieces(sql) for name, sql in rows}


if __name__ == "__main__":
    sys.exit(main())
