"""The client of the command line: from options to a client, from its errors to exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.say import Exit
from app.client import (
    Client,
    ClientError,
    ConflictError,
    NotAuthorisedError,
    RefusedError,
    StaleGenerationError,
    UnreachableError,
)
from app.settings import client_settings

Url = Annotated[str, typer.Option("--url", help="Dashboard URL without token, or unix:PATH. Default: $PODIUM_URL.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File that contains the token. Default: $PODIUM_TOKEN.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connect(url: str, token_file: Path | None) -> Client:
    """Return a client for what the options, or the environment, name.

    Raises:
        SettingsError: No URL was given, or the token's file cannot be read.
    """
    settings = client_settings(url, token_file)
    return Client(settings.url, settings.token)


def said_of(error: ClientError) -> str:
    """Return the line for ``error``, with the way to a token where one is missing."""
    return f"{error} (pass --token-file or set PODIUM_TOKEN)" if isinstance(error, NotAuthorisedError) else str(error)


def code_of(error: ClientError) -> Exit:
    """Return the exit code for ``error``."""
    match error:
        case NotAuthorisedError():
            return Exit.AUTH
        case UnreachableError():
            return Exit.UNREACHABLE
        case StaleGenerationError() | ConflictError():
            return Exit.REFUSED
        case RefusedError(status=403):
            return Exit.REFUSED
        case _:
            return Exit.FAILED
