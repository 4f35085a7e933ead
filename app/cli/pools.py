"""``podium pools``: look at a running driver's pools, pause and resume them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from app.cli.client import Client, pool_path
from app.cli.say import CommandError, Exit, as_json, as_table, message
from app.settings import client_settings

program = typer.Typer(no_args_is_help=True, help="Look at a running driver's pools, pause and resume them.")

Url = Annotated[str, typer.Option("--url", help="The dashboard's address without its token; else PODIUM_URL.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="The file that holds the token; else PODIUM_TOKEN.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="The pool's name.")]
Generation = Annotated[
    int | None, typer.Option("--generation", min=0, help="Refuse if the pool was changed since this generation.")
]
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait until it is done; 0 does not wait.")]

_POLL_S = 0.2


@program.command("list")
def list_pools(url: Url = "", token_file: TokenFile = None, json: Json = False) -> None:
    """List the pools as they stand."""
    pools = Client(client_settings(url, token_file)).get("/api/v1/resource-pools")["items"]
    if json:
        as_json(pools)
        return
    names = ("name", "state", "generation", "world_size", "groups")
    as_table(names, [[*(pool[name] for name in names[:4]), ",".join(pool["groups"])] for pool in pools])


@program.command("pause")
def pause_pool(
    name: Name,
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Let no new call on the pool's groups start; a running call finishes."""
    _act("pause", name, url, token_file, generation, wait, json)


@program.command("resume")
def resume_pool(
    name: Name,
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Let the pool's groups go on."""
    _act("resume", name, url, token_file, generation, wait, json)


def _act(
    action: str, name: str, url: str, token_file: Path | None, generation: int | None, wait_s: float, json: bool
) -> None:
    client = Client(client_settings(url, token_file))
    body: dict[str, object] = {} if generation is None else {"expected_generation": generation}
    operation = _settled(client, client.post(pool_path(name, action), body), wait_s)
    if json:
        as_json(operation)
    else:
        as_table(("operation", "kind", "pool", "state"), [[operation[key] for key in ("id", "kind", "pool", "state")]])
    if operation["done"] and operation["state"] != "succeeded":
        raise CommandError(f"the operation {operation['state']}: {operation['error']}", code=Exit.FAILED)
    if not operation["done"]:
        message("the driver does it at its next safe point")


def _settled(client: Client, operation: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """Return the operation once it is done, or as it stands after ``wait_s``."""
    deadline_s = time.monotonic() + wait_s
    while not operation["done"] and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        operation = client.get(f"/api/v1/operations/{quote(str(operation['id']), safe='')}")
    return operation
