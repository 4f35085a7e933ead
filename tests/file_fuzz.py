"""Seeded mutations of run files, put to every page, route, export and command: ``python -m tests.file_fuzz FOLDER``.

A case is named by its seed and number, and is made again from them alone: ``--seed 7 --first 123 --n 1``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import io
import json
import logging.handlers
import random
import shutil
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

import httpx

from app.cli.program import main as podium
from app.store.models import Record
from app.store.opened import bound_memory
from app.store.reader import Reader
from app.store.writer import Writer
from core.events import (
    CallFinished,
    DeathReport,
    ErrorFacts,
    Notice,
    OperationChanged,
    RankState,
    StepFinished,
    StepStarted,
    WorkerEnded,
)
from tests.app_doubles import House, MemorySource
from tests.store_scene import MS, at, facts, one_call, people, started

MOST_MIB, MOST_CPU_S = 300, 5.0
PAGES = (
    "/", "/timeline", "/calls", "/calls?above_p95=1&min_ms=1", "/calls/1", "/calls/2", "/heatmap", "/stragglers",
    "/data",    "/compare", "/compare?a=1&b=2", "/pools", "/workers", "/operations", "/postmortem",
)  # fmt: skip
ROUTES = (
    "/metrics", "/readyz", "/api/v1/runs", "/api/v1/runs/current/overview", "/api/v1/runs/current/timeline?px=10000",
    "/api/v1/runs/current/timeline?from=-1e12&to=1e12", "/api/v1/runs/current/timeline?from=1&to=2",
    "/api/v1/calls?limit=1000",
    "/api/v1/calls?above_p95=1&padding_above=0", "/api/v1/calls?status=running", "/api/v1/calls/1",
    "/api/v1/calls/9007199254740992",
    "/api/v1/workers", "/api/v1/events?limit=1000", "/api/v1/now", "/api/v1/worker-groups",
    "/api/v1/audit-entries?limit=1000",
    "/api/v1/operations?limit=1000", "/api/v1/operations/op", "/api/v1/resource-pools", "/api/v1/resource-pools/train",
    "/export/calls.csv", "/export/trace.json", "/export/report.html",
)  # fmt: skip
PLAN = '{"pools": [{"pool": "train", "before": [2], "after": [1]}], "groups": [], "downtime_s": 1}'
DECLARE = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@dataclass(frozen=True)
class Finding:
    """What went wrong with a case: an error of ours, a 500, too much memory, too much time."""

    case: str
    mutations: tuple[str, ...]
    asked: str
    what: str


def record(path: Path, n_calls: int = 150) -> Path:
    """Record a run with something in every table."""
    writer = Writer(path, facts())
    writer.start()
    error = ErrorFacts("ValueError", "bad shape", "Traceback (most recent call last)\n  File ...", 0)
    report = DeathReport(
        "actor", "w", "a", "killed by signal 9", 9, evidence=("exit",), others=(RankState(1, "idle", 1),)
    )
    writer.put(StepStarted(at(5), 1, 3))
    for event in people():
        writer.put(event)
    for n in range(1, n_calls + 1):
        if n == n_calls // 2:
            writer.put(StepFinished(at(n * 20 + 9), 1, (("reward", 0.5),)))
            writer.put(StepStarted(at(n * 20 + 10), 2, 3))
        for event in one_call(n, n * 20.0):
            writer.put(event)
    writer.put(started(n_calls + 1, n_calls * 20.0 + 30))
    writer.put(
        CallFinished(
            n_calls + 1, at(n_calls * 20.0 + 40), "error", 7, 7, (4, 4), 1, 8, 4, MS, MS, MS, MS, MS, error=error
        )
    )
    writer.put(started(n_calls + 2, n_calls * 20.0 + 50))
    for state in ("pending", "succeeded"):
        writer.put(OperationChanged(at(60), "op", "resize", "train", state, "me", 0, "[2]", "[1]", plan=PLAN))
    writer.put(WorkerEnded(at(n_calls * 20.0 + 60), "actor", 0, True, "gone", report=report))
    writer.put(Notice(at(70), "warning", "look"))
    writer.close()
    run(
        path,
        "INSERT INTO gap VALUES (1, 10, 20, 3, 'the queue was full'); INSERT INTO stall VALUES (2, 5, 1.5, '0,1');"
        "INSERT INTO audit_entry VALUES (1, 5, 'control', '::1', 'curl', 'r', 'resize', 'train', 0, 'ok', '', 'op');",
    )
    return path


# A command may take long for a file of gigabytes.
MOST_PAGES = "PRAGMA max_page_count = 20000"

# --- mutations: each changes the file at ``path`` and returns what it did, and may fail as SQLite lets it


def value(rng: random.Random) -> str:
    """Return a value as SQL text."""
    number = str(
        rng.choice([0, 1, -1, 2, 5, 63, 255, 10**6, 2**31, 2**53, 10**17, 10**18, 2**62, 2**63 - 1, -(2**63) + 1])
    )
    text = rng.choice(
        ["''", "'noon'", "'-1'", "'1e9'", "'1,2'", "'a' || char(9) || 'b'", "replace(hex(zeroblob(5000)), '00', '9')",
         "replace(hex(zeroblob(20000)), '00', '1,')", "replace(hex(zeroblob(5000)), '00', '[')",
         "'<script>alert(1)</script>'",
         "char(27) || '[2J' || char(8238) || char(10)", "CAST(x'eda080ff' AS TEXT)",
         "replace(hex(zeroblob(6000000)), '00', 'xy')",
         "replace(hex(zeroblob(30000)), '00', '1' || char(9) || '1' || char(9) || '1' || char(10))",
         f"'{PLAN.replace('[1]', '[999999999]')}'", "'{\"pools\": 3, \"groups\": [[[]]]}'", "char(0) || 'x'",
         "'running'", "'closed'", "'died'"]
    )  # fmt: skip
    other = rng.choice(["NULL", "1e308", "-1e308", "9e999", "0.5", "-0.0", "x'00ff'", "zeroblob(1000000)"])
    return rng.choice([number, number, text, text, other])


def change_values(path: Path, rng: random.Random) -> str:
    """Put another value into a column, of one row or of all, with what would forbid it taken away for a moment."""
    table = rng.choice(sorted(Record.metadata.tables.values(), key=lambda table: table.name))
    columns = rng.sample([column.name for column in table.columns], k=min(len(table.columns), rng.choice([1, 1, 1, 3])))
    sets = ", ".join(f'"{column}" = {value(rng)}' for column in columns)
    where = rng.choice(["", "", " WHERE random() % 2"])
    return run_unbound(path, f"UPDATE OR IGNORE {table.name} SET {sets}{where}")


def delete_rows(path: Path, rng: random.Random) -> str:
    """Take rows away."""
    table = rng.choice(sorted(Record.metadata.tables))
    return run(path, f"DELETE FROM {table}{rng.choice(['', ' WHERE random() % 2'])}")


def multiply_rows(path: Path, rng: random.Random) -> str:
    """Make many rows of one, with numbers of their own."""
    table = rng.choice(sorted(Record.metadata.tables.values(), key=lambda table: table.name))
    names = [column.name for column in table.columns]
    unique = {"name", "uid", "text", "rank", "bucket", "call_id", "at_ns", "generation", "slot"}
    n, step = rng.choice([100, 3_000, 30_000]), rng.choice([1, 1, 10**9, 10**13])
    pick = ", ".join(
        f'"{name}" + n.i * {step}' if name == "id" else f'"{name}" || n.i' if name in unique else f'"{name}"'
        for name in names
    )
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {n})"
    return run_unbound(
        path, f"INSERT OR IGNORE INTO {table.name} {numbers} SELECT {pick} FROM (SELECT * FROM {table.name} LIMIT 1), n"
    )


def change_schema(path: Path, rng: random.Random) -> str:
    """Declare something else."""
    table, other = rng.sample(sorted(Record.metadata.tables), 2)
    statement = rng.choice([
        f"DROP TABLE {table}; CREATE VIEW {table} AS {ENDLESS}", f"CREATE VIEW more AS {ENDLESS}",
        f"DROP TABLE {table}", f"DROP TABLE {table}; CREATE VIEW {table} AS SELECT * FROM {other}",
        f"CREATE TRIGGER more AFTER UPDATE ON {table} BEGIN SELECT randomblob(1000000000); END",
        f"CREATE TRIGGER more AFTER DELETE ON rank_span BEGIN INSERT INTO {table} SELECT * FROM {table}; END",
        f"ALTER TABLE {table} ADD COLUMN more AS (hex(zeroblob(100000000)))", f"ALTER TABLE {table} ADD COLUMN more",
        f"DROP TABLE {table}; CREATE TABLE {table} (id)", f"CREATE INDEX more ON {table} (hex(zeroblob(1000)))",
        "CREATE VIRTUAL TABLE more USING fts5(a)", "DROP INDEX ix_call_started_ns", "PRAGMA application_id = 7",
        "UPDATE alembic_version SET version_num = '0002'", "UPDATE alembic_version SET version_num = '0001'",
        "UPDATE alembic_version SET version_num = zeroblob(10000000)", "DELETE FROM alembic_version", "VACUUM",
        "PRAGMA journal_mode = WAL", f"PRAGMA user_version = {rng.randrange(2**31)}", "DROP TABLE alembic_version",
        f"{DECLARE} rootpage = "
        f"(SELECT rootpage FROM sqlite_master WHERE name = '{other}') WHERE name = '{table}'",
        f"{DECLARE} rootpage = {rng.choice([0, 1, 2, 99999999, -1])} WHERE name = '{table}'",
        f"{DECLARE} sql = {value(rng)} WHERE name = '{table}'",
        f"{DECLARE} type = 'view', sql = 'CREATE VIEW {table} AS {ENDLESS}' "
        f"WHERE name = '{table}'",
        f"{DECLARE} sql = replace(sql, 'NOT NULL', 'AS (1)') WHERE name = '{table}'",
        f"{DECLARE} sql = replace(sql, 'WITHOUT ROWID', '') WHERE name = '{table}'",
        f"{DECLARE} name = 'x' WHERE name = 'alembic_version'",
    ])  # fmt: skip
    return run(path, statement)


def change_bytes(path: Path, rng: random.Random) -> str:
    """Overwrite bytes: in the header, in pages, or with whole other pages."""
    data = bytearray(path.read_bytes())
    n_pages = max(1, len(data) // 4096)
    how = rng.choice(["header", "flip", "flip", "flip", "page", "swap", "pointers", "cut", "more"])
    if how == "header":
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(16, 100)] = rng.randrange(256)
    elif how == "flip":
        page = rng.randrange(n_pages) * 4096
        for _ in range(rng.choice([1, 5, 50])):
            data[min(len(data) - 1, page + rng.randrange(rng.choice([16, 4096])))] = rng.randrange(256)
    elif how == "page":
        page = rng.randrange(n_pages) * 4096
        data[page : page + 4096] = rng.choice([bytes(4096), rng.randbytes(4096), b"\xa5" * 4096])
    elif how == "swap":
        a, b = rng.randrange(n_pages) * 4096, rng.randrange(n_pages) * 4096
        data[a : a + 4096], data[b : b + 4096] = data[b : b + 4096], data[a : a + 4096]
    elif how == "pointers":
        # An inner page whose children are pages before it, itself among them: a tree without an end.
        page = rng.randrange(1, max(2, n_pages))
        cells = 300
        body = bytearray(4096)
        body[0:12] = bytes([5, 0, 0, cells >> 8, cells & 255, 4, 0, 0]) + (page + 1).to_bytes(4, "big")
        for i in range(cells):
            body[12 + 2 * i : 14 + 2 * i] = (1024 + 8 * i).to_bytes(2, "big")
            body[1024 + 8 * i : 1029 + 8 * i] = (page + 1).to_bytes(4, "big") + bytes([i & 127])
        data[page * 4096 : page * 4096 + 4096] = body
    elif how == "cut":
        del data[rng.randrange(len(data)) :]
    else:
        data += rng.randbytes(rng.randrange(10_000))
    path.write_bytes(data)
    return how


def lay_beside(path: Path, rng: random.Random) -> str:
    """Lay files beside it that belong to a run's file."""
    suffix = rng.choice(["-wal", "-journal", "-shm", ".lock"])
    beside = path.with_name(path.name + suffix) if suffix != ".crash" else path.with_suffix(".crash.txt")
    head = rng.choice([b"", bytes.fromhex("377f0682002de218"), bytes.fromhex("d9d505f920a163d7"), b"99999"])
    beside.write_bytes(head + rng.randbytes(rng.choice([0, 100, 5_000])))
    path.with_suffix(".crash.txt").write_bytes(rng.randbytes(1_000))
    return suffix


MUTATIONS: tuple[tuple[int, Callable[[Path, random.Random], str]], ...] = (
    (10, change_values), (2, delete_rows), (2, multiply_rows), (3, change_schema), (4, change_bytes), (1, lay_beside),
)  # fmt: skip


def run(path: Path, script: str) -> str:
    """Run a script on a file; what SQLite refuses stays as it was."""
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection,
        contextlib.suppress(sqlite3.Error),
    ):
        connection.execute(MOST_PAGES)
        connection.executescript(script)
    return script


def run_unbound(path: Path, script: str) -> str:
    """Run a script on a file whose tables take nothing for something meanwhile, as pages made by hand would."""
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection,
        contextlib.suppress(sqlite3.Error),
    ):
        connection.execute(MOST_PAGES)
        kept = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql LIKE '% NOT NULL%'").fetchall()
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'")
        connection.execute("PRAGMA writable_schema = RESET")
        with contextlib.suppress(sqlite3.Error, MemoryError):
            connection.executescript(script)
        connection.execute("PRAGMA writable_schema = ON")
        connection.executemany("UPDATE sqlite_master SET sql = ?2 WHERE name = ?1 AND sql IS NOT NULL", kept)
        connection.execute("PRAGMA writable_schema = RESET")
    return script


# --- what each case is put to


class Case:
    """One mutated file."""

    def __init__(self, folder: Path, bases: list[Path], seed: int, number: int) -> None:
        self.name = f"{seed}:{number}"
        rng = random.Random(self.name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.path = folder / "run.db"
        base = rng.choice(bases[:1] * 8 + bases)
        shutil.copy(base, self.path)
        self.mutations = tuple(self._mutate(rng) for _ in range(rng.choice([1, 1, 1, 2, 4])))

    def _mutate(self, rng: random.Random) -> str:
        (mutate,) = rng.choices([one for _, one in MUTATIONS], [weight for weight, _ in MUTATIONS])
        try:
            return f"{mutate.__name__}: {mutate(self.path, rng)[:300]}"
        except (sqlite3.Error, MemoryError) as error:
            # The memory of this process is bounded, as that of ``podium view`` is.
            return f"{mutate.__name__} refused: {error}"

    def findings(self) -> Iterator[Finding]:
        """Yield what goes wrong with it."""
        with contextlib.closing(Reader(self.path, deadline_s=0.25)) as reader:
            house = House(source=cast(MemorySource, reader), plane=None)
            for asked in (*PAGES, *ROUTES):
                yield from self._bounded(asked, partial(ask, house, asked))
        for command in (
            ["db", "check"], ["db", "check", "--json"], ["runs", "list", "--runs-dir"],
            ["db", "prune", "--keep-hours", "0.00001"],
            ["db", "upgrade"],
        ):  # fmt: skip
            target = self.path.parent if command[0] == "runs" else self.path
            yield from self._bounded(" ".join(command), partial(say, [*command, str(target)]))

    def _bounded(self, asked: str, deed: Callable[[], str]) -> Iterator[Finding]:
        # What mutating took, and other questions, is given back first.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        began = time.process_time()
        try:
            what = deed()
        except Exception:
            what = traceback.format_exc(limit=-6)
        took_s = time.process_time() - began
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        peak_mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
        if took_s > MOST_CPU_S:
            what += f" took {took_s:.1f} s of processor time"
        if peak_mib > MOST_MIB:
            what += f" took {peak_mib:.0f} MiB"
        if what:
            yield Finding(self.name, self.mutations, asked, what)


def ask(house: House, path: str) -> str:
    """Ask for a page or route and return what is wrong with the answer."""

    async def send() -> httpx.Response:
        async with house.visitor() as client:
            return await client.get(path, headers={"accept": "text/html"})

    # What the server did not expect is logged as an error.
    failures = logging.handlers.BufferingHandler(1000)
    failures.setLevel(logging.ERROR)
    logging.getLogger("podium.server").handlers[:] = [failures]
    try:
        answer = asyncio.run(send())
    except AssertionError:
        # httpx says so of an answer that was broken off, which is right for a file that is sent in parts.
        if path.startswith("/export/calls") and not failures.buffer:
            return ""
        raise
    if answer.status_code not in {200, 404, 422, 503}:
        return f"{answer.status_code}: {answer.text[:500]}"
    if answer.status_code == 200 and "json" in answer.headers["content-type"]:
        json.loads(answer.content)
    return ""


def say(arguments: list[str]) -> str:
    """Run a command and return what is wrong with what it says."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = podium(arguments)
    said = err.getvalue()
    longest = max(map(len, said.splitlines()), default=0)
    if code not in {0, 1, 2, 3} or "Traceback" in said or longest > 2_000 or not said.replace("\n", "").isprintable():
        return f"code {code}, longest line {longest}: {said[-1_000:]!r}"
    return ""


def main() -> int:
    """Try cases and print what was found as JSON lines; the last line is a summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--most-s", type=float, default=1e9)
    asked = parser.parse_args()
    bound_memory()
    asked.folder.mkdir(parents=True, exist_ok=True)
    bases = [
        record(asked.folder / f"base{asked.seed}.{asked.first}.db"),
        record(asked.folder / f"many{asked.seed}.{asked.first}.db", 1_200),
    ]
    ends_at, n, n_found = time.monotonic() + asked.most_s, 0, 0
    for number in range(asked.first, asked.first + asked.n):
        if time.monotonic() > ends_at:
            break
        # A hang is a finding too: it prints where, and ends the process with a code.
        faulthandler.dump_traceback_later(300, exit=True)
        for found in Case(asked.folder / f"case{asked.seed}.{asked.first}", bases, asked.seed, number).findings():
            n_found += 1
            print(json.dumps(asdict(found)), flush=True)
        n += 1
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"seed": asked.seed, "n": n, "n_found": n_found}), flush=True)
    return 1 if n_found else 0


if __name__ == "__main__":
    sys.exit(main())
