"""``podium pools``: the pools of a running driver, and a command for each of ``web.commands``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter as SignatureParameter
from inspect import Signature, signature
from typing import Annotated, Any

import typer

from app.cli.client import Json, TokenFile, Url, connect
from app.cli.ops import conclude
from app.cli.say import CommandError, Exit, as_json, as_table, ask, message
from core.control.commands import COMMAND_CLASSES, Part
from web.commands import COMMANDS, CommandDefinition, Kind, Parameter

program = typer.Typer(no_args_is_help=True, help="List and change the pools of a running driver.")


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


def _command(definition: CommandDefinition) -> Callable[..., None]:
    """Return the function that runs a command; typer reads what it takes from its signature."""
    kind = COMMAND_CLASSES[definition.kind]

    def run(
        *,
        url: Url = "",
        token_file: TokenFile = None,
        generation: Generation = None,
        deadline: Deadline = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        wait: Wait = 0.0,
        json: Json = False,
        **given: Any,
    ) -> None:
        values = {one.name: _value(one, given) for one in definition.parameters}
        if deadline is not None:
            values["deadline_s"] = deadline
        client = connect(url, token_file)
        command = client.expecting(kind(**values, who="", expected_generation=generation))
        if not kind.changes_slots or _agreed(lambda: client.plan(command), dry_run, yes, json):
            conclude(client, client.submit(command), wait, json)

    left_out = {"given"} | (set() if kind.changes_slots else {"dry_run", "yes"})
    if definition.has(Kind.GENERATIONS):
        left_out.add("generation")
    options = [one for one in signature(run, eval_str=True).parameters.values() if one.name not in left_out]
    run.__signature__ = Signature([*map(_declared, definition.parameters), *options])  # type: ignore[attr-defined]
    return run


def _declared(parameter: Parameter) -> SignatureParameter:
    """Return a parameter as typer declares it."""
    kind, text = parameter.kind, parameter.help
    annotation: Any = str
    default: Any = SignatureParameter.empty
    declared: Any = typer.Argument(metavar="name" if kind is Kind.THIS_POOL else None, help=text)
    if parameter.is_option:
        declared = typer.Option(f"--{parameter.name}", help=text)
    if kind is Kind.GENERATIONS:
        annotation, declared, default = list[str] | None, typer.Option("--generation", help=text), None
    elif kind is Kind.SIZES:
        annotation, declared = list[int], typer.Argument(min=1, help=text)
    elif kind in {Kind.POOLS, Kind.PARTS}:
        annotation = list[str]
    annotation = Annotated[annotation, declared]
    return SignatureParameter(parameter.name, SignatureParameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _value(parameter: Parameter, given: Mapping[str, Any]) -> Any:
    """Return the value of a parameter as the command's class takes it."""
    value = given[parameter.name]
    match parameter.kind:
        case Kind.PARTS:
            return tuple(map(_part, value))
        case Kind.GENERATIONS:
            return tuple(_generation(text, given["pools"]) for text in value or ())
    return tuple(value) if isinstance(value, (list, tuple)) else value


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


def _part(text: str) -> Part:
    """Return the part "train=2:actor,ref"."""
    name, _, rest = text.rpartition("=")
    size, _, groups = rest.partition(":")
    if not name or not size.isdecimal() or int(size) < 1:
        raise CommandError(f"{text!r} is not NAME=SIZE or NAME=SIZE:GROUP,...", code=Exit.USAGE)
    return Part(name, int(size), tuple(group for group in groups.split(",") if group))


def _generation(text: str, pools: Sequence[str]) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if name not in pools or not number.isdecimal():
        raise CommandError(f"--generation {text!r} is not POOL=N with one of the pools to merge", code=Exit.USAGE)
    return name, int(number)


def _sizes(per_node: Sequence[int]) -> str:
    return "+".join(map(str, per_node)) or "none"


for _definition in COMMANDS:
    _example = f" Example: {_definition.usage}" if _definition.usage else ""
    program.command(_definition.kind, help=_definition.summary + _example)(_command(_definition))
