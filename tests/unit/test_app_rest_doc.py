"""The examples of docs/rest.md, sent as they stand, in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from core.control.commands import PoolSnapshot
from tests.app_doubles import House, answer
from tests.app_plane import MemoryPlane

_REST = (Path(__file__).parents[2] / "docs/rest.md").read_text(encoding="utf-8")


def examples() -> list[list[str]]:
    """Return every curl command of the page, in words."""
    blocks = re.findall(r"```console\n(.*?)```", _REST, re.DOTALL)
    commands = [line for block in blocks for line in re.split(r"\n(?=curl)", block) if line.startswith("curl")]
    return [shlex.split(command.replace("\\\n", " ")) for command in commands]


def sent(house: House, words: list[str]) -> Any:
    """Send what curl would."""
    method, body, headers, url = "GET", None, {}, ""
    rest = iter(words[1:])
    for word in rest:
        match word:
            case "-X":
                method = next(rest)
            case "-d":
                body = next(rest)
            case "-H":
                name, _, value = next(rest).replace("$TOKEN", house.tokens.control).partition(": ")
                headers[name] = value
            case _:
                url = word.replace("$URL", "")
    return answer(house, method, url, content=body, headers=headers, token="")


def test_every_example_does_what_it_says() -> None:
    plane = MemoryPlane()
    plane.by_name = {"all": PoolSnapshot("all", "active", 3, (4,), 4, ("actor", "ref", "rollout"), 0)}
    house = House(plane=plane)
    commands = examples()
    assert len(commands) >= 10
    for words in commands:
        response = sent(house, words)
        if words[-1].endswith("/cancel"):
            assert response.status_code == 404
        elif "dry_run" in words[-1] or "-X" not in words:
            assert (response.status_code, words) == (200, words)
        else:
            assert (response.status_code, words, response.text) == (202, words, response.text)
    assert [one.kind for one in plane.operations()] == ["pause", "resume", "resize", "split", "move", "merge"]
    assert plane.pool("all").groups == ("actor", "rollout", "ref")


def test_every_kind_of_problem_is_in_the_table() -> None:
    root = Path(__file__).parents[2] / "app/api"
    source = "".join(path.read_text(encoding="utf-8") for path in root.rglob("*.py"))
    slugs = set(re.findall(r"Problem\(\s*\d{3},\s*\"([a-z-]+)\"", source))
    slugs |= set(re.findall(r"Error, \d{3}, \"([a-z-]+)\"", source))
    slugs |= set(re.findall(r"\d{3}: \(\"([a-z-]+)\"", source))
    assert {"stale-generation", "no-room", "generation-needed", "cannot-work", "method-not-allowed"} <= slugs
    missing = [slug for slug in slugs if f"`{slug}`" not in _REST]
    assert not missing
