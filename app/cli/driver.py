"""Runs a user's script or module as Python itself would, and shows its errors without a frame of ours."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
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


@dataclass(frozen=True, slots=True)
class Program:
    """A driver to run: the script ``file``, or the module ``module`` whose code is in ``file``.

    ``folder`` is what Python would put first on ``sys.path``: the script's, or the current one for a module.
    """

    file: Path
    folder: Path
    module: str = ""

    @property
    def name(self) -> str:
        """Return the name of its run."""
        return self.module.rpartition(".")[2] or self.file.stem


def check_script(script: Path) -> Program:
    """Return the program of a script, with its absolute path.

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
    _check_packages_are_ours(path.parent, path.name)
    return Program(path, path.parent)


def check_module(module: str) -> Program:
    """Return the program of a module, as ``python -m`` would find it from the current directory.

    Nothing of the module's package is imported here: that is for the run.

    Raises:
        CommandError: There is no such module or package, it has no code to run, or a ``core``, ``app`` or ``web`` of
            its own is in the current directory.
    """
    folder = Path.cwd()
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        raise CommandError(
            f"{module} is not a module name; pass one such as package.module, without .py", code=Exit.USAGE
        )
    _check_packages_are_ours(folder, module)
    with _first_on_path(folder):
        spec = _spec_of(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _spec_of(f"{module}.__main__")
            if spec is None:
                raise CommandError(f"cannot run {module}: the package has no module __main__", code=Exit.USAGE)
    if spec is None:
        raise CommandError(f"cannot run {module}: no such module on sys.path or in {folder}", code=Exit.USAGE)
    return Program(Path(spec.origin or module), folder, module)


def run_program(program: Program, arguments: Sequence[str]) -> Outcome:
    """Run ``program`` as ``__main__``, with ``sys.argv`` and ``sys.path`` as Python would set them for it."""
    before = sys.argv
    # As Python has it while it looks for a module: runpy puts the module's file in its place.
    sys.argv = ["-m" if program.module else str(program.file), *arguments]
    try:
        with _first_on_path(program.folder):
            if program.module:
                runpy.run_module(program.module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(program.file), run_name="__main__")
    except SystemExit as error:
        return Outcome(_exit_code(error), error)
    except KeyboardInterrupt as error:
        return Outcome(Exit.INTERRUPTED, error)
    except BaseException as error:
        return Outcome(Exit.FAILED, error)
    finally:
        sys.argv = before
    return Outcome(Exit.OK)


def show_error(error: BaseException | None, path: Path) -> None:
    """Say once what the program at ``path`` raised: in a line for Podium's own errors, else with its own traceback."""
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
            trace = _without_ours(error.__traceback__)
            print("".join(traceback.format_exception(type(error), error, trace)), end="", file=sys.stderr, flush=True)


def _check_packages_are_ours(folder: Path, program: str) -> None:
    found = shadowed_by(folder)
    if found is not None:
        name, where = found
        raise CommandError(
            f"{where} has the name of Podium's package {name!r}, and {program} or its workers could import the wrong "
            f"one; rename it, or move the driver script to a directory without it",
            code=Exit.USAGE,
        )


def _spec_of(module: str) -> ModuleSpec | None:
    """Return where a module is, without importing the packages around it."""
    first, *others = module.split(".")
    spec = find_spec(first)
    for number in range(len(others)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = ".".join([first, *others[: number + 1]])
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    paths = list(sys.path)
    if not sys.flags.safe_path:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
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


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of ``trace`` that begins in the user's code; nothing of it for code that did not compile."""
    while trace is not None and trace.tb_frame.f_code.co_filename in {__file__, runpy.run_path.__code__.co_filename}:
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
