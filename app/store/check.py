"""Tells whether a run's file is whole: by SQLite's own word, by its schema, and by number."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Boolean, Column, Float, Integer

from app.errors import NotARunFileError, RunLockedError
from app.store.lock import holder, is_free
from app.store.models import SCHEMA_REVISION, Record
from app.store.opened import RunConnection, check_plain, patience_s
from app.store.readpool import ReadPool

_MOST_RANGES = 1_000
_MOST_LINES = 100
# Tables whose rows are numbered from 1 and never deleted.
_NUMBERED = ("call", "event", "step", "operation", "audit_entry", "death")
# What hot rows refer to without saying so in the schema: a span may come before or after its call. 0 is nobody.
_UNDECLARED = (
    ("call", "method_id", "method"),
    ("call", "dispatch_mode_id", "word"),
    ("call", "execute_mode_id", "word"),
    ("rank_span", "lane_id", "lane"),
    ("rank_span", "method_id", "method"),
)


@dataclass(frozen=True, slots=True)
class Missing:
    """Numbers from ``first`` to ``last`` that a table has no rows of."""

    table: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found. ``faults`` are SQLite's own words, empty for a file that is whole.

    ``n_dropped`` events are known to be missing from the file; ``missing`` counts missing rows.
    """

    path: str
    revision: str
    is_current: bool
    faults: tuple[str, ...]
    n_calls: int
    n_spans: int
    n_dropped: int
    pruned_before_ns: int | None
    missing: tuple[Missing, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the file is sound and no number is missing."""
        return not self.faults and not self.missing


def check(path: Path) -> Checked:
    """Look through the whole file of a run that is over, and change nothing.

    Raises:
        RunFileMissingError: There is no such file.
        NotARunFileError: The file holds something else.
        SchemaVersionError: Another Podium wrote it.
        RunLockedError: A driver is writing it: a look this long would make its write-ahead log grow.
        RunFileError: It cannot be read at all.
    """
    check_plain(path)
    if not is_free(path):
        pid = holder(path)
        raise RunLockedError(
            f"{path} is being written by process {pid}; check it after that run has ended", str(path), pid
        )
    with contextlib.closing(ReadPool(path, 1, patience_s(path))) as pool, pool.lend() as connection:
        faults = _Faults()
        for look in (_structure, _references, _types):
            with faults.of(look.__name__.strip("_")):
                look(connection, faults)
        return _checked(connection, path, connection.revision, faults)


class _Faults:
    """What is broken, in lines of text, each kind up to a bound."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, lines: Iterable[str]) -> None:
        """Keep the first of ``lines``."""
        self.lines += itertools.islice(lines, _MOST_LINES)

    @contextlib.contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Note a part of the file that cannot be read at all, and go on with the others."""
        try:
            yield
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            self.add([f"{what} cannot be read: {error}"])


def _checked(connection: RunConnection, path: Path, revision: str, faults: _Faults) -> Checked:
    row = connection.execute("SELECT n_dropped, pruned_before_ns FROM run").fetchone()
    if row is None:
        raise NotARunFileError(f"{path} is not a Podium run file: it contains no run", str(path))
    # What is not a number is among the faults already.
    n_dropped, pruned_ns = (value if isinstance(value, int) else None for value in row)
    n_rows = dict.fromkeys(("call", "rank_span"), 0)
    missing: list[Missing] = []
    for table in n_rows:
        with faults.of(table):
            (n_rows[table],) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    for table in _NUMBERED:
        with faults.of(table):
            missing += _missing(connection, table)
    return Checked(
        path=str(path),
        revision=revision,
        is_current=revision == SCHEMA_REVISION,
        faults=tuple(dict.fromkeys(faults.lines)),
        n_calls=n_rows["call"],
        n_spans=n_rows["rank_span"],
        n_dropped=n_dropped or 0,
        pruned_before_ns=pruned_ns,
        missing=tuple(missing),
    )


def _structure(connection: RunConnection, faults: _Faults) -> None:
    """Ask SQLite itself: every page, and every index against its table."""
    faults.add(
        str(word) for (word,) in connection.execute(f"PRAGMA main.integrity_check({_MOST_LINES})") if word != "ok"
    )


def _references(connection: RunConnection, faults: _Faults) -> None:
    """Look for rows that refer to rows that are not there, as SQLite knows of them and as only we do."""
    lost = connection.execute("PRAGMA main.foreign_key_check")
    faults.add(f"row {row[1]} of {row[0]} refers to a row of {row[2]} that does not exist" for row in lost)
    for table, column, other in _UNDECLARED:
        rows = connection.execute(
            f"SELECT DISTINCT {column} FROM {table} WHERE {column} != 0 "
            f"AND {column} NOT IN (SELECT id FROM {other}) LIMIT {_MOST_LINES}"
        )
        faults.add(f"{table}.{column} has {str(row[0])[:60]!r}, and {other} has no such row" for row in rows)


def _types(connection: RunConnection, faults: _Faults) -> None:
    """Look at the type of every value: SQLite keeps a text in a column of numbers."""
    for table in Record.metadata.sorted_tables:
        wrong = {column.name: f'typeof("{column.name}") NOT IN ({_type_names(column)})' for column in table.columns}
        sums = ", ".join(f"coalesce(sum({condition}), 0)" for condition in wrong.values())
        counts = connection.execute(f"SELECT {sums} FROM {table.name}").fetchone()
        found = zip(table.columns, counts, strict=True)
        faults.add(
            f"{table.name}.{column.name} is not {_type_names(column, ' or ')} in {n:,} rows" for column, n in found if n
        )


def _type_names(column: Column[object], between: str = ", ") -> str:
    match column.type:
        case Integer() | Boolean():
            names = ["'integer'"]
        case Float():
            names = ["'real'", "'integer'"]
        case _:
            names = ["'text'"]
    return between.join([*names, *(["'null'"] if column.nullable else [])])


def _missing(connection: RunConnection, table: str) -> list[Missing]:
    rows = connection.execute(
        f"SELECT before + 1, id - 1 FROM (SELECT id, lag(id, 1, 0) OVER (ORDER BY id) AS before FROM {table}) "
        "WHERE id > before + 1 ORDER BY id LIMIT ?",
        (_MOST_RANGES,),
    )
    return [Missing(table, first, last) for first, last in rows]
