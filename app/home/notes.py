"""A person's note and tags of a run, in a file beside the run's: the record itself is the driver's alone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from app.errors import RunsFolderError
from app.store.private import open_beside, open_private

MAX_NOTE, MAX_TAGS = 2_000, 20
_MOST_BYTES = 64 * 1024
_SUFFIX = ".note.json"

Tag = Annotated[str, StringConstraints(min_length=1, max_length=40, pattern=r"^[^\x00-\x1f\x7f]+$")]


class RunNote(BaseModel):
    """What somebody wrote about a run."""

    model_config = ConfigDict(frozen=True)

    note: str = Field(default="", max_length=MAX_NOTE)
    tags: tuple[Tag, ...] = Field(default=(), max_length=MAX_TAGS)


def note_path(path: Path) -> Path:
    """Return where the note of the run file ``path`` lies."""
    return path.with_name(path.name + _SUFFIX)


def read_note(path: Path) -> RunNote:
    """Return the note of a run file; an empty one where there is none, or something else."""
    with contextlib.suppress(OSError, ValidationError), os.fdopen(open_beside(note_path(path)), "rb") as file:
        return RunNote.model_validate_json(file.read(_MOST_BYTES))
    return RunNote()


def write_note(path: Path, note: RunNote) -> None:
    """Keep the note of a run file; an empty one removes it.

    Raises:
        RunsFolderError: It cannot be written.
    """
    target = note_path(path)
    try:
        if note == RunNote():
            target.unlink(missing_ok=True)
            return
        made = target.with_name(target.name + ".new")
        with os.fdopen(open_private(made, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(note.model_dump_json().encode())
        made.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunsFolderError(f"cannot write the note {target}: {reason}", str(target), reason) from error
