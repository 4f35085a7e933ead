"""A real server steers a real driver on the local cluster: the first wins, a click is one deed, a bad wish nothing."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import app
from app.client import (
    Client,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    Operation,
    OperationFailedError,
    RefusedError,
    StaleGenerationError,
)
from app.client.transport import send
from app.server import RunServer
from app.store.reader import Reader
from core import Controller, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, get
from tests.live_workers import Faults, Plain, Stateless

pytestmark = pytest.mark.integration


@dataclass
class Driver:
    """A driver of two groups on one pool of four, on a machine with room for six processes."""

    server: RunServer
    client: Client
    controller: Controller
    actor: RayWorkerGroup
    rollout: RayWorkerGroup

    def settle(self, operation: Operation) -> Operation:
        """Make calls, as a driver does, until the operation is done."""
        over = threading.Event()
        watcher = threading.Thread(target=self._await, args=(operation, over), daemon=True)
        watcher.start()
        while not over.wait(0.002):
            self.controller.checkpoint()
        watcher.join(5)
        return self.client.operation(operation.id)

    def _await(self, operation: Operation, over: threading.Event) -> None:
        try:
            for _ in self.client.watch(operation, timeout_s=20):
                pass
        finally:
            over.set()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    Faults.gate.clear()
    with (
        Controller.local({"CPU": 12.0, "GPU": 6.0}) as controller,
        app.serve(tmp_path / "runs", control=True, uds=tmp_path / "podium.sock") as server,
        RayResourcePool([4], max_colocate_count=2, name_prefix="all") as pool,
    ):
        actor, rollout = (
            RayWorkerGroup(pool, RayClassWithInitArgs(Stateless), name_prefix=name) for name in ("actor", "rollout")
        )
        yield Driver(server, Client(server.address, server.control_token), controller, actor, rollout)
        Faults.gate.set()


def eventually(true: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 10
    while not true() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return true()


def post(driver: Driver, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
    """Send one POST without the client, to see the answer as it is."""
    said = {"Authorization": f"Bearer {driver.server.control_token}", "Content-Type": "application/json", **headers}
    answer = send(driver.server.address, "POST", path, json.dumps(body).encode(), said, 30)
    return answer.status, json.loads(answer.body)


PARTS = [("train", 2, ["actor"]), ("sample", 2, ["rollout"])]


def test_a_split_a_move_and_a_merge_over_rest_and_the_groups_follow(driver: Driver) -> None:
    plan = driver.client.plan_split("all", PARTS)
    assert [(one["group"], one["to_pool"], one["world_size_after"]) for one in plan["groups"]] == [
        ("actor", "train", 2),
        ("rollout", "sample", 2),
    ]
    done = driver.settle(driver.client.split("all", PARTS))
    assert (done.state, done.before, done.after) == ("succeeded", "all [4]", "train [2], sample [2]")
    assert done.document["result"] == {"before": done.before, "after": done.after}
    assert (driver.actor.world_size, driver.rollout.place()) == (2, [(0, 2), (1, 2)])
    assert driver.settle(driver.client.move("actor", "sample")).succeeded
    merged = driver.settle(driver.client.merge(["train", "sample"], "all"))
    assert (merged.state, merged.error) == ("succeeded", "")
    assert driver.actor.place() == [(rank, 4) for rank in range(4)]
    grown = driver.settle(driver.client.resize("all", [3, 3]))
    assert (grown.succeeded, driver.rollout.world_size) == (True, 6)
    assert [one.kind for one in driver.client.operations()] == ["resize", "merge", "move", "split"]
    groups = driver.client.get("/api/v1/worker-groups")["items"]
    assert [(one["name"], one["pool"], one["world_size"]) for one in groups] == [
        ("actor", "all", 6),
        ("rollout", "all", 6),
    ]


def test_h12_a_resize_while_a_call_runs_is_one_audit_entry_with_before_and_after(driver: Driver) -> None:
    refs = driver.actor.wait_later()
    (flying,) = driver.client.get("/api/v1/now")["items"]
    assert (flying["method"], [one["rank"] for one in flying["out"]]) == ("wait_later", [0, 1, 2, 3])
    operation = driver.client.resize("all", [2])
    assert eventually(lambda: driver.client.operation(operation.id).state == "waiting_for_safe_point")
    assert "wait_later" in str(driver.client.operation(operation.id).plan)
    threading.Timer(0.1, Faults.gate.set).start()
    done = driver.settle(operation)
    assert get(refs) == [0, 1, 2, 3]
    assert (done.before, done.after, driver.actor.place()) == ("4", "2", [(0, 2), (1, 2)])
    driver.server.finish()
    reader = Reader(driver.server.db_path)
    try:
        ended = [one for one in reader.audit_entries(100, None) if one.detail == "before 4, after 2"]
        (recorded,) = reader.operations(10, None)
    finally:
        reader.close()
    assert [(one.actor, one.action, one.target, one.operation_id) for one in ended] == [
        ("control", "resize", "all", operation.id)
    ]
    assert (recorded.state, recorded.before, recorded.after) == ("succeeded", "4", "2")


def test_of_two_at_once_one_wins_and_the_other_sees_who_changed_what(driver: Driver) -> None:
    at_the_start = threading.Barrier(2)

    def ask(sizes: list[int]) -> Operation | RefusedError:
        at_the_start.wait(10)
        try:
            return driver.client.resize("all", sizes, generation=1)
        except RefusedError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, ([2], [3])))
    (won,) = [one for one in answers if isinstance(one, Operation)]
    (lost,) = [one for one in answers if isinstance(one, RefusedError)]
    # Too late in any case: at once or, where the winner was quick, after it.
    assert isinstance(lost, StaleGenerationError)
    assert (lost.last_change["id"], lost.last_change["who"]) == (won.id, "control")
    assert driver.settle(won).succeeded
    with pytest.raises(StaleGenerationError) as stale:
        driver.client.resize("all", [3], generation=1)
    assert stale.value.actual_generation == 2
    assert {name: stale.value.last_change[name] for name in ("id", "kind", "who")} == {
        "id": won.id,
        "kind": "resize",
        "who": "control",
    }
    assert [int(stale.value.last_change["after"])] == won.document["plan"]["pools"][0]["after"]


def test_who_split_a_pool_is_told_to_who_still_meant_the_whole(driver: Driver) -> None:
    assert driver.settle(driver.client.split("all", PARTS)).succeeded
    with pytest.raises(StaleGenerationError, match="pool all no longer exists: split by control") as gone:
        driver.client.resize("all", [2], generation=1)
    assert gone.value.last_change["after"] == "train [2], sample [2]"


def test_a_double_click_is_one_operation(driver: Driver) -> None:
    click = {"Idempotency-Key": "click", "If-Match": '"g1"'}

    def ask(_: int) -> tuple[int, dict[str, Any]]:
        return post(driver, "/api/v1/resource-pools/all/resize", {"process_on_nodes": [2]}, **click)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    taken = {body["id"] for status, body in answers if status == 202}
    assert len(taken) == 1
    assert {body["type"] for status, body in answers if status != 202} <= {"urn:podium:problem:key-in-flight"}
    assert ask(4)[1]["id"] in taken
    assert len(driver.client.operations()) == 1
    assert driver.settle(driver.client.operations()[0]).succeeded


def test_a_client_that_is_gone_mid_request_changes_nothing_and_one_that_waited_not_for_the_answer_does(
    driver: Driver,
) -> None:
    body = json.dumps({"process_on_nodes": [2], "expected_generation": 1}).encode()

    def say(n_bytes: int) -> None:
        connection = http.client.HTTPConnection("localhost", timeout=10)
        connection.sock = _open(driver)
        connection.putrequest("POST", "/api/v1/resource-pools/all/resize")
        for name, value in (
            ("Authorization", f"Bearer {driver.server.control_token}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ):
            connection.putheader(name, value)
        connection.endheaders(body[:n_bytes])
        connection.close()

    say(len(body) - 1)
    assert eventually(lambda: "400 incomplete" in str(driver.client.get("/api/v1/audit-entries")))
    assert driver.client.operations() == ()
    say(len(body))
    assert eventually(lambda: len(driver.client.operations()) == 1)
    assert driver.settle(driver.client.operations()[0]).after == "2"


def _open(driver: Driver) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(driver.server.address.removeprefix("unix:"))
    return sock


def test_an_operation_that_waits_is_cancelled_or_runs_out_of_time(driver: Driver) -> None:
    waiting = driver.client.resize("all", [2])
    assert eventually(lambda: driver.client.operation(waiting.id).state == "waiting_for_safe_point")
    assert driver.client.cancel(waiting).state == "cancelled"
    late = driver.client.resize("all", [2], deadline_s=0.3)
    with pytest.raises(OperationFailedError, match="expired"):
        driver.client.wait(late, timeout_s=20)
    assert driver.actor.place() == [(rank, 4) for rank in range(4)]


def test_bad_wishes_name_the_thing_and_the_numbers_and_change_nothing(driver: Driver) -> None:
    client, before = driver.client, driver.client.pools()
    with RayResourcePool([1], max_colocate_count=1, name_prefix="other") as other:
        keeper = RayWorkerGroup(other, RayClassWithInitArgs(Plain), name_prefix="keeper")
        both = ["actor", "rollout"]
        unfit, absent, conflict = (InvalidRequestError, 422), (NotFoundError, 404), (ConflictError, 409)
        wishes: list[tuple[tuple[type[RefusedError], int], tuple[str, ...], Callable[[], object]]] = [
            (unfit, ("5", "4", "all"), lambda: client.split("all", [("a", 2, both), ("b", 3, [])])),
            (unfit, ("all", "1"), lambda: client.split("all", [("a", 4, both)])),
            (unfit, ("not 0",), lambda: client.split("all", [("a", 0, []), ("b", 4, both)])),
            (unfit, ("not -2",), lambda: client.resize("all", [-2])),
            (unfit, ("rollout",), lambda: client.split("all", [("a", 2, ["actor"]), ("b", 2, [])])),
            (unfit, ("actor",), lambda: client.split("all", [("a", 2, both), ("b", 2, ["actor"])])),
            (unfit, ("'a'",), lambda: client.split("all", [("a", 2, both), ("a", 2, [])])),
            (unfit, ("other",), lambda: client.split("all", [("a", 2, both), ("other", 2, [])])),
            (unfit, ("all",), lambda: client.merge(["all", "all"], "one")),
            (unfit, ("all",), lambda: client.merge(["all"], "one")),
            (unfit, ("99",), lambda: client.resize("all", [99])),
            (unfit, ("actor", "all"), lambda: client.move("actor", "all")),
            (absent, ("critic",), lambda: client.split("all", [("a", 2, both), ("b", 2, ["critic"])])),
            (absent, ("critic",), lambda: client.move("critic", "other")),
            (absent, ("none",), lambda: client.resize("none", [2])),
            (absent, ("none",), lambda: client.merge(["all", "none"], "one")),
            (conflict, ("6",), lambda: client.resize("all", [6])),
            (conflict, ("keeper", "save_state"), lambda: client.resize("other", [2])),
        ]
        for (kind, status), named, wish in wishes:
            with pytest.raises(kind) as refused:
                wish()
            said = str(refused.value)
            assert (refused.value.status, [one for one in named if one not in said]) == (status, []), said
        assert client.operations() == ()
        assert keeper.place() == [(0, 1)]
    assert client.pools() == before
    assert driver.actor.place() == [(rank, 4) for rank in range(4)]


def test_a_driver_that_ends_takes_no_more_commands(driver: Driver) -> None:
    driver.server.end()
    status, problem = post(driver, "/api/v1/resource-pools/all/pause", {})
    assert (status, problem["type"]) == (503, "urn:podium:problem:ending")
    driver.server.finish()
    status, problem = post(driver, "/api/v1/resource-pools/all/pause", {})
    assert (status, problem["type"]) == (409, "urn:podium:problem:run-over")
