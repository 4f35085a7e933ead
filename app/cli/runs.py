"""``podium runs``: list runs, and keep notes of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from app.cli.say import CommandError, Exit, as_json, as_table, line
from app.errors import ReaderError, RunFileError
from app.home.notes import RunNote, read_note, write_note
from app.store.opened import bound_memory
from app.store.reader import Reader
from app.store.runs import run_paths

# Nobody waits for a folder's other runs longer than this for one.
_DEADLINE_S = 2.0

program = typer.Typer(no_args_is_help=True, help="List recorded runs, and keep notes of them.")


@program.command("list")
def list_runs(
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="Directory with run files.")] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs in a directory, newest first."""
    bound_memory()
    found = [(path, run) for path in run_paths(runs_dir) if (run := _read(path)) is not None]
    if json:
        as_json([{"file": path, **run} for path, run in found])
        return
    if not found:
        line(f"no runs in {runs_dir}")
        return
    names = ("name", "state", "started_at", "n_calls")
    rows = [[*(run[name] for name in names), f"{run['duration_ms'] / 1000:.1f}", path] for path, run in found]
    as_table((*names, "seconds", "file"), rows)


@program.command("note")
def note_run(
    file: Annotated[Path, typer.Argument(help="Run file.")],
    text: Annotated[str | None, typer.Argument(help="Note; an empty one removes it.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag; may be repeated.")] = None,
    untag: Annotated[list[str] | None, typer.Option("--untag", help="Remove a tag; may be repeated.")] = None,
) -> None:
    """Show, or change, your note and tags of a run. They lie beside the run file, which is not changed."""
    if not file.is_file():
        raise CommandError(f"{file} is not a file", code=Exit.FAILED)
    before = read_note(file)
    tags = [one for one in (*before.tags, *(tag or ())) if one not in (untag or ())]
    try:
        after = RunNote(note=before.note if text is None else text, tags=tuple(dict.fromkeys(tags)))
    except ValidationError as error:
        first = error.errors()[0]
        where = "note" if first["loc"][0] == "note" else "tag"
        raise CommandError(f"the {where} is not valid: {first['msg']}", code=Exit.USAGE) from None
    if after != before:
        write_note(file, after)
    line(f"note: {after.note or '-'}")
    line(f"tags: {', '.join(after.tags) or '-'}")


def _read(path: Path) -> dict[str, Any] | None:
    """Return the run in ``path``, or None after a line about a file that is not a run file."""
    reader = Reader(path, deadline_s=_DEADLINE_S)
    try:
        return asdict(reader.run())
    except (RunFileError, ReaderError) as error:
        line(str(error))
        return None
    finally:
        reader.close()
