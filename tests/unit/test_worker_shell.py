"""What a worker's process does before anything of the user's runs in it."""

from __future__ import annotations

import pytest

from core.worker import self_built_class, shell_class
from core.worker import shell as shells


class Built:
    def __init__(self, told: list[str], word: str = "built") -> None:
        told.append(word)


def test_a_worker_ends_with_its_keeper_whoever_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(shells, "end_with_parent", lambda: told.append("asked"))
    shell_class(Built)()
    assert told == ["asked"]
    self_built_class(Built)(told, word="by itself")
    assert told == ["asked", "asked", "by itself"]
