"""``podium ops``: the operations of a running driver, listed, watched and cancelled."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.client import Json, TokenFile, Url, connect
from app.cli.say import CommandError, Exit, as_json, as_table, message
from app.client import Client, Operation, StillRunningError

program = typer.Typer(no_args_is_help=True, help="Look at a running driver's operations, watch and cancel them.")

Id = Annotated[str, typer.Argument(help="The operation's id, as pools pause and its kin print it.")]


@program.command("list")
def list_operations(
    url: Url = "",
    token_file: TokenFile = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, the youngest first.")] = 20,
    json: Json = False,
) -> None:
    """List operations, the youngest first."""
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
        float | None, typer.Option("--timeout", min=0, help="Seconds to watch; else to its end.")
    ] = None,
    json: Json = False,
) -> None:
    """Follow an operation until it is done; ends with 0 when it succeeded and 1 when not."""
    for seen in connect(url, token_file).watch(operation_id, timeout):
        if not json:
            message(said_of(seen))
    show(seen, json)
    refuse_failure(seen)


@program.command("cancel")
def cancel_operation(operation_id: Id, url: Url = "", token_file: TokenFile = None, json: Json = False) -> None:
    """Take back an operation that is not running yet."""
    show(connect(url, token_file).cancel(operation_id), json)


def conclude(client: Client, operation: Operation, wait_s: float, json: bool) -> None:
    """Wait for an operation as long as was asked for, print it, and fail if it came to nothing.

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
        message(f"the driver does it at its next safe point; follow it with: podium ops watch {latest.id}")


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
        raise CommandError(f"the operation {operation.state}: {operation.error}", code=Exit.FAILED)


def said_of(operation: Operation) -> str:
    """Return a line on where an operation is."""
    progress = f": {operation.progress}" if operation.progress and not operation.done else ""
    return f"{operation.kind} {operation.pool} {operation.state}{progress}"
