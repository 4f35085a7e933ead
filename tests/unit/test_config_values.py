"""What a driver shows of its configuration: dotted names, values as JSON, bounds."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import core
from app.revision import commit_of
from app.store.event_reducer import EventReducer
from app.store.models import ConfigValue
from core.config_values import MOST_NAME_CHARS, MOST_VALUE_CHARS, config_values
from core.controller import Controller
from core.errors import UsageError
from core.events import ConfigLogged
from core.testing import RecordingObserver


@dataclass
class Optim:
    """A part of a configuration."""

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass
class Config:
    """A configuration."""

    seed: int = 0
    optim: Optim = field(default_factory=Optim)
    more: dict[str, Any] = field(default_factory=lambda: {"a": {"b": None}, "empty": {}})


def test_nested_values_get_dotted_names() -> None:
    assert dict(config_values(Config())) == {
        "seed": "0",
        "optim.lr": "0.0003",
        "optim.betas": "[0.9, 0.95]",
        "more.a.b": "null",
        "more.empty": "{}",
    }
    assert config_values({1: {"x": "ü"}}) == (("1.x", '"ü"'),)


def test_what_json_does_not_know_is_its_repr() -> None:
    values = dict(config_values({"path": Path("x"), "both": {(1, 2): 3}, "bad": [{(1, 2): 3}]}))
    assert json.loads(values["path"]) == "PosixPath('x')"
    assert values["both.(1, 2)"] == "3"
    assert json.loads(values["bad"]) == "[{(1, 2): 3}]"


def test_a_configuration_that_holds_itself_ends() -> None:
    config: dict[str, Any] = {"a": 1}
    config["self"] = config
    assert dict(config_values(config)) == {"a": "1", "self": '"..."'}


def test_long_names_and_values_are_cut_and_stay_json() -> None:
    ((name, value),) = config_values({"n" * 500: "v" * 5_000})
    assert len(name) == MOST_NAME_CHARS
    assert len(value) <= MOST_VALUE_CHARS + 10
    assert json.loads(value).endswith("…")


@pytest.mark.parametrize("config", [3, "text", [1], None, Config])
def test_only_a_mapping_or_a_dataclass_is_a_configuration(config: object) -> None:
    with pytest.raises(UsageError, match="takes a mapping or a dataclass, not a"):
        core.log_config(config)


def test_too_many_values_are_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="at most 1,000 values; log a part"):
        config_values({str(i): i for i in range(1_001)})


def test_the_driver_emits_its_values_and_the_record_keeps_the_last_of_each_name(
    local: tuple[Controller, RecordingObserver],
) -> None:
    core.log_config({"lr": 1, "seed": 0})
    core.log_config({"lr": 2})
    events = local[1].of(ConfigLogged)
    assert [event.values for event in events] == [(("lr", "1"), ("seed", "0")), (("lr", "2"),)]
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE config_value (name PRIMARY KEY, value)")
    for statement, rows in EventReducer(0).take(events).statements:
        if ConfigValue.__tablename__ in statement:
            connection.executemany(statement, rows)
    assert dict(connection.execute("SELECT name, value FROM config_value").fetchall()) == {"lr": "2", "seed": "0"}
    connection.close()


def test_a_folder_without_a_work_tree_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path) == ""
    monkeypatch.setenv("PATH", "")
    assert commit_of(Path.cwd()) == ""
