"""Runs a user's script as Python itself would, and shows its errors without a frame of ours."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from app.cli.say import CommandError, Exit, message
from app.cli.signals import Terminated
from app.origin import shadowed_by
from core.errors import PodiumError, WorkerError


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended: the process's exit code, and what it raised if anything."""

    code: int
    error: BaseException | None = None


def check_script(script: Path) -> Path:
    """Return the script's absolute path.

    Raises:
        CommandError: It is not there, cannot be read, or has a ``core``, ``app`` or ``web`` of its own beside it.
    """
    if script.is_dir():
        raise CommandError(f"{script} is a directory; pass a driver script", code=Exit.USAGE)
    try:
        with script.open("rb"):
            pass
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise CommandError(f"cannot run {script}: {reason}", code=Exit.USAGE) from error
    path = script.resolve()
    found = shadowed_by(path.parent)
    if found is not None:
        name, where = found
        raise CommandError(
            f"{where} has the name of Podium's package {name!r}, and {path.name} or its workers could import the wrong "
            f"one; rename it, or move the driver script to a directory without it",
            code=Exit.USAGE,
        )
    return path


def run_script(path: Path, arguments: Sequence[str]) -> Outcome:
    """Run ``path`` as ``__main__``, with ``sys.argv`` and ``sys.path`` as Python would set them for that path."""
    with _as_main_program(path, arguments):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as error:
            return Outcome(_exit_code(error), error)
        except KeyboardInterrupt as error:
            return Outcome(Exit.INTERRUPTED, error)
        except BaseException as error:
            return Outcome(Exit.FAILED, error)
    return Outcome(Exit.OK)


def show_error(error: BaseException | None, path: Path) -> None:
    """Say once what the script at ``path`` raised: in a line for Podium's own errors, else with its own traceback."""
    match error:
        case None:
            pass
        case Terminated():
            message(str(error))
        case SystemExit(code=code):
            if code is not None and not isinstance(code, int):
                print(code, file=sys.stderr, flush=True)
        case KeyboardInterrupt():
            message("interrupted")
        case PodiumError():
            where = _last_line_in(error.__traceback__, path)
            message(f"{error}{where}")
            if isinstance(error, WorkerError) and error.traceback_text and error.traceback_text not in str(error):
                print(error.traceback_text, file=sys.stderr, flush=True)
        case _:
            trace = _from_script_on(error.__traceback__, path)
            print("".join(traceback.format_exception(type(error), error, trace)), end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _as_main_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, paths = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = paths


def _exit_code(error: SystemExit) -> int:
    """Return the process's exit code as Python has it: nothing is 0, a text is 1."""
    match error.code:
        case None:
            return Exit.OK
        case int():
            return error.code
        case _:
            return Exit.FAILED


def _from_script_on(trace: TracebackType | None, path: Path) -> TracebackType | None:
    """Return the part of ``trace`` that begins in the script; nothing of it for a script that did not compile."""
    while trace is not None and not _is(trace, path):
        trace = trace.tb_next
    return trace


def _last_line_in(trace: TracebackType | None, path: Path) -> str:
    """Return where the script was when it failed, such as " [driver.py, line 12]"."""
    line = 0
    while trace is not None:
        if _is(trace, path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" [{path.name}, line {line}]" if line else ""


def _is(trace: TracebackType, path: Path) -> bool:
    return os.path.abspath(trace.tb_frame.f_code.co_filename) == str(path)
