"""``podium pools``: look at a running driver's pools, pause, resume, resize, split and merge them, move a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from app.cli.client import Json, TokenFile, Url, connect
from app.cli.ops import conclude
from app.cli.say import CommandError, Exit, as_json, as_table, ask, message
from app.client import Client

program = typer.Typer(no_args_is_help=True, help="Look at a running driver's pools and change them.")

Name = Annotated[str, typer.Argument(help="The pool's name.")]
Generation = Annotated[
    int | None, typer.Option("--generation", min=0, help="Refuse if the pool was changed since this generation.")
]
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait until it is done; 0 does not wait.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")]
Deadline = Annotated[
    float | None, typer.Option("--deadline", min=0.001, help="Seconds after which the driver gives the change up.")
]


@program.command("list")
def list_pools(url: Url = "", token_file: TokenFile = None, json: Json = False) -> None:
    """List the pools as they stand."""
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
    """Let no new call on the pool's groups start; a running call finishes."""
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
    """Let the pool's groups go on."""
    client = connect(url, token_file)
    conclude(client, client.resume(name, generation, deadline), wait, json)


@program.command("resize")
def resize_pool(
    name: Name,
    process_on_nodes: Annotated[list[int], typer.Argument(min=1, help="Processes per node, such as 4 or 2 2.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Give the pool other processes per node; its groups are rebuilt on them."""
    client = connect(url, token_file)
    seen = _seen(client, name, generation)
    if _agreed(lambda: client.plan_resize(name, process_on_nodes), dry_run, yes, json):
        conclude(client, client.resize(name, process_on_nodes, seen, deadline), wait, json)


@program.command("split")
def split_pool(
    name: Name,
    parts: Annotated[list[str], typer.Argument(help="NAME=SIZE[:GROUP,...] of each new pool, in rank order.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Deal the pool's slots to several new pools: podium pools split all train=2:actor,ref rollout=2:rollout."""
    client = connect(url, token_file)
    wanted = [_part(text) for text in parts]
    seen = _seen(client, name, generation)
    if _agreed(lambda: client.plan_split(name, wanted), dry_run, yes, json):
        conclude(client, client.split(name, wanted, seen, deadline), wait, json)


@program.command("merge")
def merge_pools(
    pools: Annotated[list[str], typer.Argument(help="The pools to make one of.")],
    name: Annotated[str, typer.Option("--name", help="What the new pool is called.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Annotated[
        list[str] | None, typer.Option("--generation", help="POOL=N: refuse if POOL was changed since generation N.")
    ] = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Make one pool of several; their groups go on all of its slots."""
    client = connect(url, token_file)
    named = dict(_generation(text, pools) for text in generation or ())
    seen = {pool: _seen(client, pool, named.get(pool)) for pool in pools}
    if _agreed(lambda: client.plan_merge(pools, name), dry_run, yes, json):
        conclude(client, client.merge(pools, name, seen, deadline), wait, json)


@program.command("move")
def move_group(
    group: Annotated[str, typer.Argument(help="The group's name.")],
    pool: Annotated[str, typer.Argument(help="The pool that it goes to.")],
    url: Url = "",
    token_file: TokenFile = None,
    generation: Generation = None,
    deadline: Deadline = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Rebuild a group, and what shares its processes, on the slots of another pool."""
    client = connect(url, token_file)
    seen = _seen(client, pool, generation)
    if _agreed(lambda: client.plan_move(group, pool), dry_run, yes, json):
        conclude(client, client.move(group, pool, seen, deadline), wait, json)


def _seen(client: Client, pool: str, generation: int | None) -> int:
    """Return the generation that a change is decided upon: what the person saw, else what is there just before."""
    return client.pool(pool).generation if generation is None else generation


def _agreed(plan: Callable[[], Mapping[str, Any]], dry_run: bool, yes: bool, json: bool) -> bool:
    """Show the plan, and return whether to go on.

    Raises:
        CommandError: Nobody can be asked and ``--yes`` was not given, or the person said no.
    """
    if dry_run:
        found = plan()
        if json:
            as_json(found)
        else:
            as_table(("what", "before", "after"), _changes(found))
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
    if not ask("go on?"):
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
    lines = [f"waits for {one}" for one in plan["drains"]] + [f"lost: {one}" for one in plan["lost"]]
    if plan["groups"]:
        how = "new workers come up first" if plan["prepared"] else f"in one go: {plan['why_not_prepared']}"
        whence = f", {plan['estimate_from']}" if plan["estimate_from"] else ""
        lines.append(f"{how}; the driver stands still for about {plan['stand_still_s']:.1f} s{whence}")
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
