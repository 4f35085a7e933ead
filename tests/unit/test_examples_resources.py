"""docker-compose.yml offers what the demo needs, at the start and after each change that docs/docker.md shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from arithmetic.resources import COMPOSE_STAGES, MAX_COLOCATE_COUNT, Stage, logical_resources
from typer.main import get_command

from app.cli.program import program
from core.cluster.base import ReserveRequest
from core.cluster.shortage import NodeRoom, explain_shortage

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
WALK = (ROOT / "docs/docker.md").read_text(encoding="utf-8")
BUNDLE = {"CPU": float(MAX_COLOCATE_COUNT), "GPU": 1.0}
N_GROUPS = 3
"""The demo's actor, reference and rollout."""


def command_of(service: str) -> str:
    command = COMPOSE["services"][service]["command"]
    return command if isinstance(command, str) else " ".join(command)


def offered(service: str) -> dict[str, float]:
    """Return the CPUs and GPUs that one container of the service adds to the cluster."""
    options = dict(re.findall(r"--num-(cpus|gpus)=(\d+)", command_of(service)))
    return {"CPU": float(options["cpus"]), "GPU": float(options.get("gpus", 0))}


def workers() -> list[NodeRoom]:
    service = COMPOSE["services"]["worker"]
    return [NodeRoom(f"worker-{index}", f"10.0.0.{index}", offered("worker")) for index in range(service["scale"])]


def entries_of(stage: Stage) -> list[tuple[str, int]]:
    return [(pool, size) for pool, sizes in stage.pools.items() for size in sizes]


def placements(entries: Sequence[tuple[str, int]]) -> Iterator[tuple[int, ...]]:
    """Yield every way to put the entries on the workers, each entry whole on one: the worker of each."""
    rooms = workers()
    for chosen in product(range(len(rooms)), repeat=len(entries)):
        slots = [
            sum(size for (_, size), node in zip(entries, chosen, strict=True) if node == n) for n in range(len(rooms))
        ]
        if all(
            slots[n] * amount <= room.total[name] for n, room in enumerate(rooms) for name, amount in BUNDLE.items()
        ):
            yield chosen


@pytest.mark.parametrize("stage", COMPOSE_STAGES, ids=lambda stage: stage.after)
def test_the_workers_have_room_for_the_pools_after(stage: Stage) -> None:
    sizes = tuple(size for _, size in entries_of(stage))
    assert explain_shortage(ReserveRequest("demo", sizes, BUNDLE), workers(), []) is None
    assert list(placements(entries_of(stage)))


@pytest.mark.parametrize("stage", COMPOSE_STAGES, ids=lambda stage: stage.after)
def test_no_worker_has_room_for_two_entries_so_a_pool_of_two_is_on_both_after(stage: Stage) -> None:
    entries = entries_of(stage)
    for chosen in placements(entries):
        assert len(set(chosen)) == len(entries)


def test_a_slot_takes_all_groups_and_the_new_workers_that_a_change_starts_beside_them() -> None:
    assert MAX_COLOCATE_COUNT >= 2 * N_GROUPS


def test_head_and_driver_offer_no_slots() -> None:
    assert offered("head") == offered("driver") == {"CPU": 0.0, "GPU": 0.0}


@pytest.mark.parametrize("nproc", [1, 2, 4])
def test_a_ray_of_the_examples_own_has_room_for_pools_of_twice_the_size(nproc: int) -> None:
    num_cpus, num_gpus = logical_resources(nproc)
    room = NodeRoom("here", "127.0.0.1", {"CPU": float(num_cpus), "GPU": float(num_gpus)})
    assert explain_shortage(ReserveRequest("all", (4 * nproc,), BUNDLE), [room], []) is None


def test_the_walk_through_is_the_one_that_is_checked() -> None:
    commands = re.findall(r"^podium pools ((?:merge|split|resize) .*?)(?: --yes)?(?: +#.*)?$", WALK, re.MULTILINE)
    assert commands == [stage.after for stage in COMPOSE_STAGES[1:]]


def test_the_dashboard_is_published_on_loopback_only_and_nothing_else_is() -> None:
    published = {name: service.get("ports") for name, service in COMPOSE["services"].items()}
    assert [name for name, ports in published.items() if ports] == ["driver"]
    assert all(port.startswith("127.0.0.1:") for port in published["driver"])


def test_each_container_has_an_init_and_the_driver_gets_signals_itself() -> None:
    assert all(service["init"] is True for service in COMPOSE["services"].values())
    assert "exec podium demo" in command_of("driver")


def test_every_option_of_the_driver_is_one_that_podium_demo_has() -> None:
    demo = getattr(get_command(program()), "commands", {})["demo"]
    known = {name for parameter in demo.params for name in parameter.opts}
    used = set(re.findall(r"(--[a-z-]+)", command_of("driver").partition("podium demo")[2]))
    assert used
    assert used <= known


def test_the_image_has_all_that_the_wheel_is_built_from() -> None:
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for names in copied for name in names.split()} == set(kept)
    assert all((ROOT / name).exists() for name in kept)
