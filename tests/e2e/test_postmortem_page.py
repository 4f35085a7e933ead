"""A driver dies, its file is looked at: the Post-mortem page says who died first, why, and what was in flight.

The driver is a real one on the in-process cluster, ended by SIGABRT as its group's policy has it, and one by SIGKILL.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from app.api import Tokens, create_app
from app.settings import ServerSettings
from app.store.reader import Reader
from app.web_server import WebServer
from tests.e2e.accessibility import violations
from tests.e2e.pages import Watched, watch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
_AN_HOUR_NS = 3600 * 10**9

_DRIVER = """
import os, resource, signal, sys, threading, time
import app
from app.store.reader import Reader
from core import Controller, Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Rollout(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_weights(self):
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def generate(self):
        if self.rank:
            threading.Event().wait()


with Controller.local(), app.serve(sys.argv[1]) as server:
    pool = RayResourcePool([3], name_prefix="gpus")
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Rollout), name_prefix="rollout")
    group.start_worker_aliveness_check(0.1)
    for _ in range(3):
        group.load_weights()
    group.generate()
    reader = Reader(server.db_path)
    while not (calls := reader.in_flight(1)) or len(calls[0].out) != 2:
        time.sleep(0.02)
    if sys.argv[2] == "abort":
        group.workers[2].kill("lost its node")
        threading.Event().wait(30)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def dead_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of two drivers, by what they died of; both ran at the same time."""
    folder = tmp_path_factory.mktemp("dead")
    (folder / "driver.py").write_text(_DRIVER, encoding="utf-8")
    signals = {"abort": signal.SIGABRT, "kill": signal.SIGKILL}
    drivers = {
        how: subprocess.Popen(
            [sys.executable, "driver.py", how, how],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for how in signals
    }
    for how, driver in drivers.items():
        said, _ = driver.communicate(timeout=120)
        assert driver.returncode == -signals[how], said
    return {how: next((folder / how).glob("*.db")) for how in signals}


@contextmanager
def shown(path: Path, browser: Browser, *, javascript: bool = True) -> Iterator[tuple[Watched, str]]:
    """Serve a file as ``podium view`` does, an hour later, and yield a browser that followed the URL."""
    reader = Reader(path, wall_ns=lambda: time.time_ns() + _AN_HOUR_NS)
    web = WebServer(ServerSettings())
    settings, tokens = web.bind(), Tokens.make(False)
    web.start(create_app(reader, None, settings, tokens=tokens))
    watched = watch(browser, javascript=javascript)
    try:
        watched.page.goto(web.url(tokens.read))
        yield watched, web.url().rstrip("/")
    finally:
        watched.page.context.close()
        web.stop()
        reader.close()


def test_the_page_of_an_aborted_driver_says_who_died_first_and_who_was_still_out(
    dead_runs: dict[str, Path], browser: Browser
) -> None:
    with shown(dead_runs["abort"], browser) as (watched, origin):
        page = watched.page
        assert page.locator(".bar [data-state-pill]").inner_text() == "died"
        page.locator(".pill-link").click()
        page.wait_for_url(f"{origin}/postmortem")
        assert "Caused by the death of rollout · rank 2" in page.locator(".verdict").inner_text()
        first = page.locator("#first-death").inner_text()
        assert "lost its node" in first
        assert "rank 0" in first
        assert "rank 1" in first
        in_flight = page.locator(".now-table tbody tr")
        assert in_flight.count() == 1
        assert "rollout.generate" in in_flight.inner_text()
        assert "rank 1" in in_flight.inner_text()
        ends = page.locator(".ranks-at-end tbody tr").all_inner_texts()
        assert "in rollout.generate" in ends[1]
        assert "dead in rollout.generate" in ends[2]
        assert "Fatal Python error: Aborted" in page.locator("pre.log").last.inner_text()
        watched.until("document.querySelectorAll('#last-minute .barlayer .point').length > 5", "the last minute drawn")
        assert violations(page) == []
        assert watched.complaints == []
        assert watched.strangers(origin) == []


def test_the_page_of_a_killed_driver_can_be_read_with_javascript_off(
    dead_runs: dict[str, Path], browser: Browser
) -> None:
    with shown(dead_runs["kill"], browser, javascript=False) as (watched, origin):
        page = watched.page
        page.goto(f"{origin}/postmortem")
        said = page.locator(".verdict").inner_text()
        assert "The driver died." in said
        assert "most likely SIGKILL" in said
        assert page.locator("#first-death").count() == 0
        (line,) = page.locator(".now-table tbody tr").all_inner_texts()
        assert "2 of 3 pending" in line
        assert len(page.locator(".ranks-at-end tbody tr").all()) == 3
