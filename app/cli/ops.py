"""``podium ops``: the operations of a running driver, listed, watched and cancelled."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.client import Json, TokenFile, Url, connect
from app.cli.say import CommandError, Exit, as_json, as_table, message
from app.client import Client, Operation, StillRunningError

program = typer.Typer(no_args_is_help=True, help="List, watch and cancel operations of a running driver.")

Id = Annotated[str, typer.Argument(help="Operation ID, as printed by `podium pools ...`.")]


@program.command("list")
def list_operations(
    url: Url = "",
    token_file: TokenFile = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of operations.")] = 20,
    json: Json = False,
) -> None:
    """List operations, newest first."""
    found = connect(url, token_file).operations(limit)
    if json:
        as_json([one.document for one in found])
        return
    names = ("operation", "kind", "pool", "state", "who", "before", "after", "error")
    as_table(names, [(one.id, *(getattr(one, name) for name in names[1:])) for one in found])


@program.command("watch")
def watch_operation(
    operation_id: Id,
    url: Url = "",
    token_file: TokenFile = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Stop watching after this many seconds.")
    ] = None,
    json: Json = False,
) -> None:
    """Follow an operation until it is done. Exit code: 0 if it succeeded, else 1."""
    for seen in connect(url, token_file).watch(operation_id, timeout):
        if not json:
            message(said_of(seen))
    show(seen, json)
    refuse_failure(seen)


@program.command("cancel")
def cancel_operation(operation_id: Id, url: Url = "", token_file: TokenFile = None, json: Json = False) -> None:
    """Cancel an operation that is not running yet."""
    show(connect(url, token_file).cancel(operation_id), json)


def conclude(client: Client, operation: Operation, wait_s: float, json: bool) -> None:
    """Wait for an operation up to ``wait_s``, print it, and fail if it did not succeed.

    Raises:
        CommandError: It is done and did not succeed.
    """
    latest = operation
    if wait_s and not operation.done:
        try:
            for latest in client.watch(operation, wait_s):
                if latest.progress and not json:
                    message(said_of(latest))
        except StillRunningError as error:
            latest = error.operation or latest
    show(latest, json)
    refuse_failure(latest)
    if not latest.done:
        message(f"takes effect at the next safe point of the driver; to follow it: podium ops watch {latest.id}")


def show(operation: Operation, json: bool) -> None:
    """Print an operation."""
    if json:
        as_json(operation.document)
        return
    names = ("operation", "kind", "pool", "state", "before", "after")
    as_table(names, [(operation.id, *(getattr(operation, name) for name in names[1:]))])


def refuse_failure(operation: Operation) -> None:
    """End with an error where an operation is done and did not succeed.

    Raises:
        CommandError: It did not.
    """
    if operation.done and not operation.succeeded:
        raise CommandError(f"operation {operation.state}: {operation.error}", code=Exit.FAILED)


def said_of(operation: Operation) -> str:
    """Return a line on where an operation is."""
    progress = f": {operation.progress}" if operation.progress and not operation.done else ""
    return f"{operation.kind} {operation.pool} {operation.state}{progress}"
