"""``podium pools``: list, pause, resume, resize, split and merge the pools of a running driver, move a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from app.cli.client import Json, TokenFile, Url, connect
from app.cli.ops import conclude
from app.cli.say import CommandError, Exit, as_json, as_table, ask, message
from app.client import Client

program = typer.Typer(no_args_is_help=True, help="List and change the pools of a running driver.")

Name = Annotated[str, typer.Argument(help="Name of the pool.")]
Generation = Annotated[
    int | None, typer.Option("--generation", min=0, help="Fail if the pool has changed since this generation.")
]
Wait = Annotated[float, typer.Option("--wait", min=0, help="Wait up to this many seconds for the operation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan without applying it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Deadline = Annotated[float | None, typer.Option("--deadline", min=0.001, help="Give up after this many seconds.")]


@program.command("list")
def list_pools(url: Url = "", token_file: TokenFile = None, json: Json = False) -> None:
    """List pools."""
    pools = connect(url, token_file).pools()
    if json:
        as_json(pools)
        return
    names = ("name", "state", "generation", "nodes", "groups")
    rows = [
        (pool.name, pool.state, pool.generation, _sizes(pool.process_on_nodes), ",".join(pool.groups)) for pool in pools
    ]
    as_table(names, rows)


@program.command("pause")
def pause_pool(
    name: Name,
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Pause a pool: new calls on its groups wait, running calls finish."""
    client = connect(url, token_file)
    conclude(client, client.pause(name, generation, deadline), wait, json)


@program.command("resume")
def resume_pool(
    name: Name,
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Resume a paused pool."""
    client = connect(url, token_file)
    conclude(client, client.resume(name, generation, deadline), wait, json)


@program.command("resize")
def resize_pool(
    name: Name,
    process_on_nodes: Annotated[list[int], typer.Argument(min=1, help="Processes per node, for example 4 or 2 2.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Change the processes per node of a pool. Its groups are rebuilt."""
    client = connect(url, token_file)
    seen = _seen(client, name, generation)
    if _agreed(lambda: client.plan_resize(name, process_on_nodes), dry_run, yes, json):
        conclude(client, client.resize(name, process_on_nodes, seen, deadline), wait, json)


@program.command("split")
def split_pool(
    name: Name,
    parts: Annotated[list[str], typer.Argument(help="NAME=SIZE[:GROUP,...] for each new pool, in rank order.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Split a pool into several, for example: podium pools split all train=2:actor,ref rollout=2:rollout."""
    client = connect(url, token_file)
    wanted = [_part(text) for text in parts]
    seen = _seen(client, name, generation)
    if _agreed(lambda: client.plan_split(name, wanted), dry_run, yes, json):
        conclude(client, client.split(name, wanted, seen, deadline), wait, json)


@program.command("merge")
def merge_pools(
    pools: Annotated[list[str], typer.Argument(help="Pools to merge.")],
    name: Annotated[str, typer.Option("--name", help="Name of the merged pool.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Annotated[
        list[str] | None, typer.Option("--generation", help="POOL=N: fail if POOL has changed since generation N.")
    ] = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Merge pools into one. All groups run on all of its slots."""
    client = connect(url, token_file)
    named = dict(_generation(text, pools) for text in generation or ())
    seen = {pool: _seen(client, pool, named.get(pool)) for pool in pools}
    if _agreed(lambda: client.plan_merge(pools, name), dry_run, yes, json):
        conclude(client, client.merge(pools, name, seen, deadline), wait, json)


@program.command("move")
def move_group(
    group: Annotated[str, typer.Argument(help="Name of the group.")],
    pool: Annotated[str, typer.Argument(help="Target pool.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Move a group, and groups that share its processes, to another pool."""
    client = connect(url, token_file)
    seen = _seen(client, pool, generation)
    if _agreed(lambda: client.plan_move(group, pool), dry_run, yes, json):
        conclude(client, client.move(group, pool, seen, deadline), wait, json)


def _seen(client: Client, pool: str, generation: int | None) -> int:
    """Return the generation that a change is decided upon: what the person saw, else what is there just before."""
    return client.pool(pool).generation if generation is None else generation


def _agreed(plan: Callable[[], Mapping[str, Any]], dry_run: bool, yes: bool, json: bool) -> bool:
    """Show the plan, and return whether to apply it.

    Raises:
        CommandError: stdin is not a terminal and ``--yes`` was not given, or the answer was no.
    """
    if dry_run:
        found = plan()
        if json:
            as_json(found)
        else:
            as_table(("resource", "before", "after"), _changes(found))
            for line in _remarks(found):
                message(line)
        return False
    if yes:
        return True
    found = plan()
    for what, before, after in _changes(found):
        message(f"{what}: {before} -> {after}")
    for line in _remarks(found):
        message(line)
    if not ask("apply?"):
        raise CommandError("nothing was changed", code=Exit.FAILED)
    return True


def _changes(plan: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    pools = [(f"pool {one['pool']}", _sizes(one["before"]), _sizes(one["after"])) for one in plan["pools"]]
    groups = [
        (
            f"group {one['group']}",
            f"{one['world_size_before']} on {one['from_pool']}",
            f"{one['world_size_after']} on {one['to_pool']} ({one['how']})",
        )
        for one in plan["groups"]
    ]
    return [*pools, *groups]


def _remarks(plan: Mapping[str, Any]) -> list[str]:
    lines = [f"waits for {one}" for one in plan["in_flight"]] + [f"lost: {one}" for one in plan["lost_state"]]
    if plan["groups"]:
        how = (
            "new workers start before the switch"
            if plan["prepared"]
            else f"not prepared: {plan['not_prepared_reason']}"
        )
        source = f" ({plan['estimate_from']})" if plan["estimate_from"] else ""
        lines.append(f"{how}; estimated downtime {plan['downtime_s']:.1f} s{source}")
    return lines


def _part(text: str) -> tuple[str, int, Sequence[str]]:
    """Return the name, size and groups of "train=2:actor,ref"."""
    name, _, rest = text.rpartition("=")
    size, _, groups = rest.partition(":")
    if not name or not size.isdecimal() or int(size) < 1:
        raise CommandError(f"{text!r} is not NAME=SIZE or NAME=SIZE:GROUP,...", code=Exit.USAGE)
    return name, int(size), [group for group in groups.split(",") if group]


def _generation(text: str, pools: Sequence[str]) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if name not in pools or not number.isdecimal():
        raise CommandError(f"--generation {text!r} is not POOL=N with one of the pools to merge", code=Exit.USAGE)
    return name, int(number)


def _sizes(per_node: Sequence[int]) -> str:
    return "+".join(map(str, per_node)) or "none"
