"""``podium db``: check, upgrade and prune run files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.say import CommandError, Exit, as_json, as_table, line
from app.errors import NotARunFileError, RunFileMissingError, RunLockedError, SchemaVersionError
from app.store.check import Checked, check
from app.store.opened import bound_memory, real_path
from app.store.prune import Retention
from app.store.trim import trim

program = typer.Typer(no_args_is_help=True, help="Check, upgrade and prune run files.")

File = Annotated[Path, typer.Argument(help="Run file that is not in use by a driver.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_MAX_GB = typer.Option("--max-gb", min=0, max=1e9, help="Maximum size of the file in GB (10^9 bytes).")
_KEEP_HOURS = typer.Option("--keep-hours", min=0, help="Keep spans of the last HOURS of the run.")


@program.command("check")
def check_file(file: File, json: Json = False) -> None:
    """Check a run file: SQLite integrity, schema version, and missing rows.

    Exit codes: 0 ok, 1 damaged or incomplete, 2 not a run file, 3 in use by a driver.
    """
    with _refusals():
        file = real_path(file)
        found = check(file)
    if json:
        as_json({**asdict(found), "path": Path(found.path), "is_whole": found.is_whole})
    else:
        _show(found)
    if not found.is_whole:
        raise typer.Exit(Exit.FAILED)


@program.command("upgrade")
def upgrade_file(file: File, json: Json = False) -> None:
    """Upgrade a run file to the current schema. A backup is kept next to it."""
    # Alembic takes a third of a second to import, which no driver shall wait for.
    from app.store.migrate import upgrade

    with _refusals():
        file = real_path(file)
        done = upgrade(file)
    if json:
        as_json({"before": done.before, "after": done.after, "backup": done.backup})
    elif done.backup is None:
        line(f"{file} already has schema {done.after}")
    else:
        line(f"{file} upgraded from schema {done.before} to {done.after}; backup: {done.backup}")


@program.command("prune")
def prune_file(
    file: File,
    max_gb: Annotated[float, _MAX_GB] = 0.0,
    keep_hours: Annotated[float, _KEEP_HOURS] = 0.0,
    json: Json = False,
) -> None:
    """Delete the oldest spans of a run file by size or age. Calls, roll-ups, events and operations are kept."""
    if not max_gb and not keep_hours:
        raise CommandError("pass --max-gb, --keep-hours, or both", code=Exit.USAGE)
    with _refusals():
        file = real_path(file)
        done = trim(file, Retention(int(max_gb * 1e9), keep_hours * 3600))
    if json:
        as_json(asdict(done))
        return
    gone = f"deleted {done.n_spans:,} spans; size {done.bytes_after:,} bytes (before: {done.bytes_before:,})"
    line(f"{file}: {gone}")
    if max_gb and done.bytes_after > max_gb * 1e9:
        line(f"{file} is still larger than {max_gb:g} GB: calls, roll-ups and events are not pruned")


def _show(found: Checked) -> None:
    current = "" if found.is_current else " (run podium db upgrade)"
    pruned = "none" if found.pruned_before_ns is None else f"before {found.pruned_before_ns / 1e9:.1f} s"
    rows: list[tuple[str, object]] = [
        ("file", Path(found.path)),
        ("state", "ok" if not found.faults else f"damaged ({len(found.faults)} errors)"),
        ("schema", f"{found.revision}{current}"),
        ("calls", f"{found.n_calls:,}"),
        ("spans", f"{found.n_spans:,}"),
        ("spans pruned", pruned),
        ("events dropped", f"{found.n_dropped:,}"),
        ("missing rows", "none" if not found.missing else str(len(found.missing))),
    ]
    as_table(("check", "result"), rows)
    for fault in found.faults:
        line(f"damaged: {fault}")
    for gap in found.missing:
        numbers = str(gap.first) if gap.first == gap.last else f"{gap.first} to {gap.last}"
        line(f"missing: {gap.table} {numbers}")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Give each refusal its exit code."""
    bound_memory()
    try:
        yield
    except RunLockedError as error:
        raise CommandError(str(error), code=Exit.REFUSED) from error
    except (RunFileMissingError, NotARunFileError, SchemaVersionError) as error:
        raise CommandError(str(error), code=Exit.USAGE) from error
