"""The control commands, one definition each.

REST routes, request bodies, the client, ``podium pools``, dialogs and a table of docs/rest.md are made from these. What
a command does to pools and groups is in ``core.control``: there its class has the same name and the same fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a parameter is: its type in JSON, its form on the command line and its control in a dialog."""

    THIS_POOL = "this-pool"
    """The pool that the command is for; the dialog is opened from it."""
    POOL = "pool"
    """Another pool."""
    POOLS = "pools"
    """Several pools, one of them that from which the dialog was opened."""
    GROUP = "group"
    """A worker group; in a dialog, one of this pool."""
    NEW_NAME = "new-name"
    """The name of a pool that the command makes."""
    SIZES = "sizes"
    """Processes per node."""
    PARTS = "parts"
    """New pools that share the slots of this one: name, size and groups of each."""
    GENERATIONS = "generations"
    """The expected generation of each pool, where a command is for several."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a command: a field of its class in ``core.control.commands``.

    ``help`` is for the command line, ``label`` and ``hint`` for the dialog. ``is_option`` makes it an option of the
    command line; the others are arguments.
    """

    name: str
    kind: Kind
    help: str
    label: str = ""
    hint: str = ""
    is_option: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDefinition:
    """A control command.

    ``kind`` is the name of its class in lower case. Parameters named in ``path`` are not in the request body. ``body``
    describes the body, ``example`` is one. ``button``, ``icon``, ``title`` and ``effect`` are for the dialog; with
    ``confirm`` the name of the pool must be typed first: "always", or "smaller" if the pool loses slots. ``usage`` is
    an example for the help of the command line.
    """

    kind: str
    path: str
    summary: str
    parameters: tuple[Parameter, ...]
    body: str = ""
    example: Mapping[str, object] = field(default_factory=dict)
    usage: str = ""
    button: str
    icon: str
    title: str
    effect: str
    confirm: str = "never"

    @property
    def in_path(self) -> tuple[str, ...]:
        """Return the names of the parameters in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def in_body(self) -> tuple[Parameter, ...]:
        """Return the parameters that are in the request body."""
        return tuple(one for one in self.parameters if one.name not in self.in_path)

    def has(self, kind: str) -> bool:
        """Return whether it has a parameter of a kind."""
        return any(one.kind == kind for one in self.parameters)


_POOL = Parameter("pool", Kind.THIS_POOL, "Name of the pool.")

COMMANDS: tuple[CommandDefinition, ...] = (
    CommandDefinition(
        kind="pause",
        path="/resource-pools/{pool}/pause",
        summary="Pause a pool: new calls on its groups wait, running calls finish.",
        parameters=(_POOL,),
        button="Pause",
        icon="pause",
        title="Pause {pool}",
        effect="New calls on its groups wait. Running calls finish; other pools are not affected.",
    ),
    CommandDefinition(
        kind="resume",
        path="/resource-pools/{pool}/resume",
        summary="Resume a paused pool.",
        parameters=(_POOL,),
        button="Resume",
        icon="play",
        title="Resume {pool}",
        effect="Waiting calls continue.",
    ),
    CommandDefinition(
        kind="resize",
        path="/resource-pools/{pool}/resize",
        summary="Change the processes per node of a pool; its groups are rebuilt.",
        parameters=(
            _POOL,
            Parameter(
                "process_on_nodes",
                Kind.SIZES,
                "Processes per node, for example 4 or 2 2.",
                "Processes per node",
                "One number per node, for example 4, or 2, 2 for two nodes.",
            ),
        ),
        body="The pool's new processes per node.",
        example={"process_on_nodes": [2], "expected_generation": 3},
        button="Resize",
        icon="resize",
        title="Resize {pool}",
        effect="Its groups are rebuilt on the new slots.",
        confirm="smaller",
    ),
    CommandDefinition(
        kind="split",
        path="/resource-pools/{pool}/split",
        summary="Split a pool into several; each group is assigned to one of them.",
        parameters=(
            _POOL,
            Parameter("parts", Kind.PARTS, "NAME=SIZE[:GROUP,...] for each new pool, in rank order."),
        ),
        body="The pools that the pool's slots are split into, in rank order.",
        example={
            "parts": [
                {"name": "train", "size": 2, "groups": ["actor", "ref"]},
                {"name": "rollout", "size": 2, "groups": ["rollout"]},
            ],
            "expected_generation": 3,
        },
        usage="podium pools split all train=2:actor,ref rollout=2:rollout",
        button="Split",
        icon="split",
        title="Split {pool}",
        effect="Splits its slots into several pools, in rank order. Each group is assigned to one of them.",
        confirm="always",
    ),
    CommandDefinition(
        kind="merge",
        path="/resource-pools/merge",
        summary="Merge pools into one; all groups run on all of its slots.",
        parameters=(
            Parameter("pools", Kind.POOLS, "Pools to merge.", "With"),
            Parameter("name", Kind.NEW_NAME, "Name of the merged pool.", "Name of the merged pool", is_option=True),
            Parameter(
                "expected_generations",
                Kind.GENERATIONS,
                "POOL=N: fail if POOL has changed since generation N.",
                is_option=True,
            ),
        ),
        body="The pools to make one of, and its name; ``expected_generations`` is what the asker saw of each.",
        example={"pools": ["train", "rollout"], "name": "all", "expected_generations": {"train": 4, "rollout": 4}},
        button="Merge",
        icon="merge",
        title="Merge {pool} with others",
        effect="Merges several pools into one. All groups run on all of its slots.",
        confirm="always",
    ),
    CommandDefinition(
        kind="move",
        path="/worker-groups/{group}/move",
        summary="Move a group, and groups that share its processes, to another pool.",
        parameters=(
            Parameter("group", Kind.GROUP, "Name of the group.", "Group"),
            Parameter("pool", Kind.POOL, "Target pool.", "To pool"),
        ),
        body="The pool that a group goes to; ``expected_generation`` is of that pool.",
        example={"pool": "rollout", "expected_generation": 4},
        button="Move a group",
        icon="right",
        title="Move a group of {pool}",
        effect="Rebuilds the group, and groups that share its processes, on the slots of another pool.",
    ),
)

BY_KIND = {command.kind: command for command in COMMANDS}


def offered(state: str, world_size: int, n_pools: int, has_groups: bool) -> tuple[CommandDefinition, ...]:
    """Return the commands that make sense for a pool."""
    gate = "pause" if state in {"paused", "pausing"} else "resume"
    others = n_pools > 1
    return tuple(
        command
        for command in COMMANDS
        if command.kind != gate
        and (world_size > 1 or not command.has(Kind.PARTS))
        and (others or not (command.has(Kind.POOLS) or command.has(Kind.POOL)))
        and (has_groups or not command.has(Kind.GROUP))
    )


def dialogs() -> list[dict[str, object]]:
    """Return the definitions as JSON values, for the dialogs."""
    return [asdict(command) for command in COMMANDS]


def docs_table() -> str:
    """Return the table of the commands in docs/rest.md."""
    lines = ["| command | REST | body, for example |", "|---|---|---|"]
    for command in COMMANDS:
        summary = f"{command.summary.rstrip('.')} (`podium pools {command.kind}`)"
        path = re.sub(r"{\w+}", "{name}", command.path)
        lines.append(f"| {summary} | `POST /api/v1{path}` | `{json.dumps(command.example)}` |")
    return "\n".join(lines) + "\n"
