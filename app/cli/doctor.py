"""``podium doctor``: check whether this machine can run Podium."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.say import Exit, as_json, as_line, message
from app.doctor import Level, check_all, collect


def doctor(
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Directory for run files.")] = Path("runs"),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to check; 0 for any.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check versions, packages, port, disk, shared memory, limits and Ray's settings; exit code 1 on an error."""
    found = check_all(collect(runs_dir, port))
    n_errors = sum(one.level is Level.ERROR for one in found)
    if json:
        as_json([{**asdict(one), "level": one.level.value} for one in found])
    else:
        for one in found:
            as_line(f"{one.level.value:<7}  {one.name:<17}  {one.text}")
            if one.fix:
                as_line(f"{'':<28}fix: {one.fix}")
        n_warnings = sum(one.level is Level.WARNING for one in found)
        message(f"{len(found)} checks, {n_warnings} warnings, {n_errors} errors")
    if n_errors:
        raise typer.Exit(Exit.FAILED)
