"""``podium db``: looks after the files of runs that are over."""

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

program = typer.Typer(no_args_is_help=True, help="Look after the files of runs that are over.")

File = Annotated[Path, typer.Argument(help="A run's file that no driver writes.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_MAX_GB = typer.Option("--max-gb", min=0, max=1e9, help="How big the file may be, in GB of 10^9 bytes.")
_KEEP_HOURS = typer.Option("--keep-hours", min=0, help="How many hours before the run's end spans are kept.")


@program.command("check")
def check_file(file: File, json: Json = False) -> None:
    """Tell whether a file is whole: SQLite's own check, its schema, and every row by number.

    Ends with 0 when it is, 1 when something is broken or missing, 2 for no run's file, 3 while a driver writes it.
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
    """Move a file of an older Podium to the schema of this one; the file as it was is kept beside it."""
    # Alembic takes a third of a second to import, which no driver shall wait for.
    from app.store.migrate import upgrade

    with _refusals():
        file = real_path(file)
        done = upgrade(file)
    if json:
        as_json({"before": done.before, "after": done.after, "backup": done.backup})
    elif done.backup is None:
        line(f"{file} has schema {done.after} already")
    else:
        line(f"{file} went from schema {done.before} to {done.after}; as it was it is in {done.backup}")


@program.command("prune")
def prune_file(
    file: File,
    max_gb: Annotated[float, _MAX_GB] = 0.0,
    keep_hours: Annotated[float, _KEEP_HOURS] = 0.0,
    json: Json = False,
) -> None:
    """Let go of a file's oldest spans by size or age; calls, roll-ups, events and operations stay."""
    if not max_gb and not keep_hours:
        raise CommandError("say how much to keep: --max-gb, --keep-hours, or both", code=Exit.USAGE)
    with _refusals():
        file = real_path(file)
        done = trim(file, Retention(int(max_gb * 1e9), keep_hours * 3600))
    if json:
        as_json(asdict(done))
        return
    gone = f"{done.n_spans:,} spans went; the file has {done.bytes_after:,} bytes, {done.bytes_before:,} before"
    line(f"{file}: {gone}")
    if max_gb and done.bytes_after > max_gb * 1e9:
        line(f"{file} is still bigger than {max_gb:g} GB: what is left are calls, roll-ups and events, which stay")


def _show(found: Checked) -> None:
    current = "" if found.is_current else "; podium db upgrade moves it on"
    pruned = "none" if found.pruned_before_ns is None else f"before {found.pruned_before_ns / 1e9:.1f} s"
    rows: list[tuple[str, object]] = [
        ("file", Path(found.path)),
        ("state", "sound" if not found.faults else f"broken in {len(found.faults)} places"),
        ("schema", f"{found.revision}{current}"),
        ("calls", f"{found.n_calls:,}"),
        ("spans", f"{found.n_spans:,}"),
        ("spans pruned", pruned),
        ("events dropped", f"{found.n_dropped:,}"),
        ("missing by number", "none" if not found.missing else str(len(found.missing))),
    ]
    as_table(("what", "found"), rows)
    for fault in found.faults:
        line(f"broken: {fault}")
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
