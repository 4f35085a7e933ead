"""Terminal output of the command line, and its exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TextIO

import orjson

from core.errors import PodiumError

_MOST_OF_LINE, _MOST_OF_CELL = 1_000, 200


class Exit(IntEnum):
    """The exit codes of ``podium``."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    AUTH = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


@dataclass(eq=False)
class CommandError(PodiumError):
    """A command ends with this one line and ``code``."""

    code: int = int(Exit.FAILED)


def message(text: str) -> None:
    """Print ``text`` on stderr."""
    lines = "\n".join(_plain(line) for line in text.split("\n"))
    print(f"podium: {lines}", file=sys.stderr, flush=True)


def line(text: str) -> None:
    """Say ``text`` in one line however its names are spelled: a file's name may hold line breaks, and 4,000 letters."""
    message(text.replace("\n", "?") if len(text) <= _MOST_OF_LINE else f"{text[:_MOST_OF_LINE]}…".replace("\n", "?"))


def ask(question: str) -> bool:
    """Return whether the user confirms ``question``.

    Raises:
        CommandError: stdin is not a terminal.
    """
    if not is_terminal(sys.stdin):
        raise CommandError("stdin is not a terminal; pass --yes to confirm the change", code=Exit.USAGE)
    print(f"podium: {question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether ``stream`` is a terminal; Python has None for a stream that was closed when it started."""
    return stream is not None and not stream.closed and stream.isatty()


def as_json(value: object) -> None:
    """Print ``value`` as JSON on stdout."""
    document = orjson.dumps(value, _as_text, orjson.OPT_INDENT_2)
    try:
        document.decode().encode(_encoding())
        print(document.decode(), flush=True)
    except UnicodeEncodeError:
        print(json.dumps(orjson.loads(document), indent=2), flush=True)


def as_line(text: str) -> None:
    """Print ``text`` as one whole line on stdout."""
    _print(_plain(text))


def as_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print ``rows`` under ``names`` in columns on stdout."""
    texts = [[str(name).upper() for name in names], *([_plain(_short(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(names))]
    for row in texts:
        _print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print(text: str) -> None:
    """Print on stdout, with escapes for what its encoding does not have, such as a name's letters under LC_ALL=C."""
    print(text.encode(_encoding(), "backslashreplace").decode(_encoding()), flush=True)


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _short(cell: object) -> str:
    """Return a cell that leaves room for the others; the name of a file is there to be copied."""
    text = str(cell)
    return text if isinstance(cell, Path) or len(text) <= _MOST_OF_CELL else f"{text[:_MOST_OF_CELL]}…"


def _as_text(value: object) -> str:
    """Return a path as JSON can carry it: its name may contain bytes that are not text."""
    if isinstance(value, Path):
        return os.fsencode(value).decode("utf-8", "replace")
    raise TypeError(f"{type(value).__name__} is not JSON")


def _plain(cell: object) -> str:
    """Return ``cell`` as text that moves no cursor: names come from drivers."""
    return "".join(char if char.isprintable() else "?" for char in str(cell))
