"""docker-compose.yml brought up for real: trained, changed over REST, stopped, and viewed from its volume.

``make compose-test`` runs it. It takes minutes and needs a Docker engine; docs/docker.md says what can be chosen.
"""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator

import pytest
from arithmetic.resources import COMPOSE_STAGES

from app.client import Client, Operation, Pool
from tests.e2e.compose import Composition, compose_command, engine_missing, note

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3000),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make compose-test"),
]

PAGES = (
    "/",
    "/timeline",
    "/calls",
    "/heatmap",
    "/stragglers",
    "/data",
    "/pools",
    "/workers",
    "/operations",
    "/postmortem",
)
LEAST_ACCURACY = 0.6
"""The supervised start ends at 0.4; RL passes this after a few dozen steps."""
OPERATION_S = 420.0


@pytest.fixture(scope="module")
def composition() -> Iterator[Composition]:
    missing = engine_missing()
    if missing:
        note(f"nothing was tested: {missing}")
        pytest.skip(missing)
    note(f"testing {' '.join(compose_command())}")
    with Composition("--steps 100000") as made:
        made.build()
        yield made


def change(client: Client, command: str) -> Operation:
    """Ask over REST for what ``podium pools COMMAND`` would."""
    verb, *words = command.split()
    if verb == "merge":
        return client.merge(words[: words.index("--name")], words[-1], deadline_s=OPERATION_S)
    if verb == "resize":
        return client.resize(words[0], [int(word) for word in words[1:]], deadline_s=OPERATION_S)
    parts = [re.split("[=:]", word) for word in words[1:]]
    wanted = [(name, int(size), groups.split(",")) for name, size, groups in parts]
    return client.split(words[0], wanted, deadline_s=OPERATION_S)


def active(client: Client) -> list[Pool]:
    return [pool for pool in client.pools() if pool.state == "active"]


def nodes_of(client: Client) -> dict[str, set[str]]:
    """Return the nodes of each open pool's workers."""
    alive = [worker for worker in client.get("/api/v1/workers")["items"] if worker["state"] == "alive"]
    return {pool.name: {w["node"] for w in alive if w["group"] in pool.groups} for pool in active(client)}


def pages_answer(url: str) -> None:
    """Open every page as a browser would, with the cookie that the URL's token gives."""
    browser = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    )
    browser.open(url, timeout=60).read()
    origin = url.partition("/?")[0]
    for page in PAGES:
        with browser.open(origin + page, timeout=60) as answer:
            text = answer.read().decode()
            assert answer.status == 200
            assert "<title>" in text, page
    note(f"{len(PAGES)} pages answer at {origin}")


def wait_for_a_step(composition: Composition) -> None:
    """Wait until the driver made a step more than it has now."""
    n_steps = len(composition.accuracies())
    composition.until(lambda: len(composition.accuracies()) > n_steps, "one more step")


def test_the_demo_trains_and_its_pools_change_until_ctrl_c(composition: Composition) -> None:
    composition.up()
    url = composition.url()
    note("the dashboard is up")
    client = composition.client()
    composition.until(composition.accuracies, "the first RL step")
    assert len(composition.containers("worker")) == 2
    assert nodes_of(client)["trainers"].isdisjoint(nodes_of(client)["generators"])
    pages_answer(url)
    for stage in COMPOSE_STAGES[1:]:
        began_s = time.monotonic()
        done = client.wait(change(client, stage.after), timeout_s=OPERATION_S)
        took_s = time.monotonic() - began_s
        note(f"{stage.after}: {done.state} after {took_s:.0f} s, downtime {done.downtime_ms:.0f} ms")
        wait_for_a_step(composition)
        assert {pool.name: pool.process_on_nodes for pool in active(client)} == stage.pools
        n_nodes = {name: len(nodes) for name, nodes in nodes_of(client).items()}
        assert n_nodes == {name: len(sizes) for name, sizes in stage.pools.items()}
    pages_answer(url)
    composition.until(lambda: max(composition.accuracies()[-5:]) >= LEAST_ACCURACY, f"an accuracy of {LEAST_ACCURACY}")
    note(
        f"accuracy: {composition.accuracies()[0]:.2f} in the first step, {composition.accuracies()[-1]:.2f} in the last"
    )
    began_s = time.monotonic()
    composition.press_ctrl_c()
    note(
        f"`up` ended {time.monotonic() - began_s:.0f} s after Ctrl-C, the driver with {composition.exit_code('driver')}"
    )
    (run,) = composition.runs()
    note(f"{run['file']}: {run['state']}, {run['n_calls']} calls")
    assert run["state"] == "ended"


def test_a_second_up_makes_a_second_run_and_down_ends_it(composition: Composition) -> None:
    composition.up()
    composition.until(composition.accuracies, "an RL step of the second run")
    (driver,) = composition.containers("driver")
    composition.run("up", "-d", "--no-build")
    assert composition.containers("driver") == [driver], "a second `up` made another driver"
    wait_for_a_step(composition)
    began_s = time.monotonic()
    composition.run("down")
    note(f"`down` during training took {time.monotonic() - began_s:.0f} s")
    second, first = composition.runs()
    assert (first["state"], second["state"]) == ("ended", "ended")
    assert json.loads(composition.in_volume("podium", "db", "check", "--json", str(second["file"])))["faults"] == []


def test_a_run_is_viewed_from_the_volume(composition: Composition) -> None:
    run = composition.runs()[-1]
    with composition.view(str(run["file"])) as url:
        pages_answer(url)
        client = Client(url.partition("/?")[0], url.partition("token=")[2])
        (seen,) = client.get("/api/v1/runs")["items"]
        assert (seen["id"], seen["state"], seen["n_calls"]) == (run["id"], "ended", run["n_calls"])
    note(f"viewed {run['file']} from the volume")
