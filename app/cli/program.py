"""The command line: all commands, and every Podium error as one line and an exit code."""

from __future__ import annotations

import os
from collections.abc import Sequence

import typer

from app.cli import db, doctor, ops, pools, runs, showing
from app.cli.client import code_of, said_of
from app.cli.say import CommandError, Exit, line, message
from app.cli.signals import end_at_once_with
from app.client import ClientError
from app.errors import ReaderError, RunFileError, RunsFolderError
from app.settings import SettingsError
from core.errors import PodiumError

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, this process's own if none is given, and return its exit code."""
    code = _run(arguments)
    if arguments is None:
        end_at_once_with(code)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        program()(args=None if arguments is None else list(arguments), prog_name="podium")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Exit.OK if error.code is None else Exit.FAILED
    except CommandError as error:
        line(str(error))
        return error.code
    except SettingsError as error:
        message(str(error))
        return Exit.USAGE
    except ClientError as error:
        message(said_of(error))
        return code_of(error)
    except (RunFileError, ReaderError, RunsFolderError) as error:
        line(str(error))
        return Exit.FAILED
    except PodiumError as error:
        message(str(error))
        return Exit.FAILED
    except KeyboardInterrupt:
        message("interrupted")
        return Exit.INTERRUPTED
    return Exit.OK


def program() -> typer.Typer:
    """Return the command line's program."""
    made = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Plain help and errors: boxes are noise in a log, and NO_COLOR is kept for free.
        rich_markup_mode=None,
        help="Record a driver, view it in the browser, change its pools.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _width()},
    )
    made.command("run", context_settings=_PASS_ON)(showing.run)
    made.command("demo", context_settings={**_PASS_ON, "allow_interspersed_args": True})(showing.demo)
    made.command("view")(showing.view)
    made.command("serve")(showing.serve_folder)
    made.command("doctor")(doctor.doctor)
    made.add_typer(runs.program, name="runs")
    made.add_typer(db.program, name="db")
    made.add_typer(pools.program, name="pools")
    made.add_typer(ops.program, name="ops")
    return made


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() else 100
