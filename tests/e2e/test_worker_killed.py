"""A worker is killed in the middle of a call: the driver hears of it, the page says who died and in which call.

Then the worker of a group is killed that leaves ``podium run`` its default: the driver is ended, the file says why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.e2e.commands import Command
from tests.e2e.pages import watch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
VICTIM = 1

_DRIVER = """
import os
import time

import core
from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from core.errors import WorkerDiedError


class Slow(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def greet(self):
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train(self):
        time.sleep(600)


core.init(num_cpus=8, num_gpus=3)
pools = RayResourcePool([2], max_colocate_count=1), RayResourcePool([1], max_colocate_count=1)
group = RayWorkerGroup(pools[0], RayClassWithInitArgs(Slow), name_prefix="slow", on_death="raise")
other = RayWorkerGroup(pools[1], RayClassWithInitArgs(Slow), name_prefix="other")
print("greeted by", group.greet(), flush=True)
try:
    group.train()
except WorkerDiedError as error:
    print("died:", error.group, error.rank, error.method, flush=True)
other.train()
"""


_DEATHS = """
SELECT death.cause, death.pid, death.call_id FROM death
JOIN worker_group ON worker_group.id = death.group_id WHERE worker_group.name = ?
"""


@dataclass(frozen=True)
class Killed:
    """A driver whose worker was killed, still running, and who that worker was."""

    command: Command
    worker: dict[str, Any]
    call: int


@pytest.fixture(scope="module")
def killed(short_dir: Path) -> Iterator[Killed]:
    """A driver in a call on two ranks, one of which gets a SIGKILL."""
    (short_dir / "driver.py").write_text(_DRIVER, encoding="utf-8")
    with Command(short_dir, "run", "driver.py") as command:
        command.said(r"greeted by \[0, 1\]", command.out)
        call = command.until(lambda: _running_call(command), "the call that will not end is in the record")
        worker = next(one for one in _workers(command, "slow") if one["rank"] == VICTIM)
        assert worker["pid"] in command.leftovers()
        os.kill(worker["pid"], signal.SIGKILL)
        # Ray prints of the death too, from a thread of its own: the two may share a line.
        command.said(r"died: slow \d", command.out)
        yield Killed(command, worker, call)


def _workers(command: Command, group: str) -> list[dict[str, Any]]:
    return [one for one in command.get("/workers")["items"] if one["group"] == group]


def _running_call(command: Command) -> int:
    """Return the id of the call of which both ranks have begun, or 0."""
    calls = command.get("/calls?method=train&status=running")["items"]
    return int(calls[0]["id"]) if calls else 0


def test_the_driver_gets_a_typed_error_that_names_the_rank(killed: Killed) -> None:
    assert f"died: slow {VICTIM} train" in killed.command.out.text
    assert "Traceback" not in killed.command.err.text


def test_the_api_says_that_the_worker_died_and_in_which_call(killed: Killed) -> None:
    command = killed.command
    workers = command.until(lambda: _with_a_casualty(command), "the worker's death in the record")
    assert [(one["rank"], one["pid"]) for one in workers if one["state"] == "died"] == [(VICTIM, killed.worker["pid"])]
    detail = command.until(lambda: _over(command, killed.call), "the call's end in the record")
    assert detail["call"]["status"] == "died"
    assert detail["error_rank"] == VICTIM
    assert detail["error_type"] == "WorkerDiedError"
    assert {span["rank"]: span["status"] for span in detail["spans"]}[VICTIM] == "died"
    assert any(f"rank {VICTIM}" in one["text"] for one in command.get("/events")["items"])


def _with_a_casualty(command: Command) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = command.get("/workers")["items"]
    return workers if any(one["state"] == "died" for one in workers) else []


def _over(command: Command, call: int) -> dict[str, Any]:
    detail: dict[str, Any] = command.get(f"/calls/{call}")
    return detail if detail["call"]["status"] != "running" else {}


def test_the_page_shows_who_died_while_the_driver_still_runs(killed: Killed, browser: Browser) -> None:
    command = killed.command
    command.until(lambda: _with_a_casualty(command) and _over(command, killed.call), "the death in the record")
    watched = watch(browser)
    page = watched.page
    page.goto(command.url)
    assert page.locator(".bar [data-state-pill]").inner_text() == "running"
    assert page.locator("[data-kpi=n_died]").inner_text() == "1 died"
    casualty = page.locator(".casualty").inner_text()
    assert f"slow · rank {VICTIM}" in casualty
    assert f"PID {killed.worker['pid']}" in casualty
    page.goto(f"{command.origin}/calls/{killed.call}")
    assert page.locator("#call").get_attribute("data-status") == "died"
    assert f"on rank {VICTIM}" in page.locator(".failure h2").inner_text()
    assert watched.complaints == []
    page.context.close()


def test_the_report_says_who_how_and_what_the_others_did_on_file_and_on_the_terminal(killed: Killed) -> None:
    assert f"(rank {VICTIM} of slow, pid {killed.worker['pid']}, node " in killed.command.err.text
    assert "died: killed from outside by signal 9 (SIGKILL)" in killed.command.err.text
    assert f"in        call {killed.call} train" in killed.command.err.text
    ((reason, pid, call_id),) = _deaths(killed.command, "slow")
    assert (reason, pid, call_id) == ("killed from outside by signal 9 (SIGKILL)", killed.worker["pid"], killed.call)


def test_the_default_of_podium_run_ends_the_driver_with_all_on_file_and_nothing_left_running(killed: Killed) -> None:
    command = killed.command
    (other,) = _workers(command, "other")
    os.kill(other["pid"], signal.SIGKILL)
    assert command.wait() == -signal.SIGABRT
    ((reason, pid, _),) = _deaths(command, "other")
    assert (reason, pid) == ("killed from outside by signal 9 (SIGKILL)", other["pid"])
    assert "the driver is ended by SIGABRT" in command.err.text
    (crash,) = command.folder.glob("runs/*.crash.txt")
    assert "Fatal Python error: Aborted" in crash.read_text(encoding="utf-8")
    assert command.gone()


def _deaths(command: Command, group: str) -> list[tuple[str, int, int]]:
    """Return reason, pid and call of a group's deaths as the file has them."""
    (file,) = command.folder.glob("runs/*.db")
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute(_DEATHS, (group,)).fetchall()
