"""Resize, split, merge and move over REST, without a socket: what is taken, planned and refused, and why."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.api.idempotency import IdempotencyKeys
from app.api.problems import ProblemError
from core.control.commands import Command, Operation, OperationState, PoolSnapshot
from core.errors import CallTimeoutError
from tests.app_doubles import House, answer, check_problem, get, post
from tests.app_plane import MemoryPlane
from web import rows

POOLS = "/api/v1/resource-pools"
RESIZE, SPLIT, MERGE = f"{POOLS}/pool/resize", f"{POOLS}/pool/split", f"{POOLS}/merge"
MOVE = "/api/v1/worker-groups/rollout/move"
PARTS = [{"name": "train", "size": 1, "groups": ["rollout"]}, {"name": "rest", "size": 1}]

# Each change with a body that works on a fresh house.
CHANGES: list[tuple[str, dict[str, Any], str]] = [
    (RESIZE, {"process_on_nodes": [1, 3]}, "resize"),
    (SPLIT, {"parts": PARTS}, "split"),
    (MERGE, {"pools": ["pool", "judges"], "name": "all"}, "merge"),
    (MOVE, {"pool": "judges"}, "move"),
]


def plane_of(house: House) -> MemoryPlane:
    assert house.plane is not None
    return house.plane


def sizes(house: House) -> dict[str, tuple[int, ...]]:
    return {pool.name: pool.process_on_nodes for pool in plane_of(house).pools()}


def test_a_resize_is_an_operation_with_its_plan() -> None:
    house = House()
    response = post(house, RESIZE, {"process_on_nodes": [1, 3], "expected_generation": 3})
    operation = response.json()
    assert (response.status_code, response.headers["location"]) == (202, f"/api/v1/operations/{operation['id']}")
    assert (operation["kind"], operation["state"], operation["done"]) == ("resize", "succeeded", True)
    assert operation["plan"]["pools"] == [{"pool": "pool", "before": [2], "after": [1, 3], "generation": 4}]
    assert operation["plan"]["groups"][0]["world_size_after"] == 4
    assert operation["result"] == {"before": "pool [2]", "after": "pool [1, 3]"}
    assert operation["error"] is None
    assert get(response.headers["location"], house).json() == operation
    assert sizes(house)["pool"] == (1, 3)


def test_a_split_a_move_and_a_merge_follow_each_other() -> None:
    house = House()
    assert post(house, SPLIT, {"parts": PARTS}, **{"If-Match": '"g3"'}).status_code == 202
    assert sizes(house) == {"judges": (2,), "train": (1,), "rest": (1,)}
    assert post(house, MOVE, {"pool": "rest", "expected_generation": 4}).status_code == 202
    assert plane_of(house).pool("rest").groups == ("rollout",)
    body = {"pools": ["train", "rest"], "name": "all", "expected_generations": {"train": 5, "rest": 5}}
    merged = post(house, MERGE, body).json()
    assert (merged["kind"], merged["pool"], merged["done"]) == ("merge", "train", True)
    assert sizes(house) == {"judges": (2,), "all": (1, 1)}


@pytest.mark.parametrize(("path", "body", "kind"), CHANGES)
def test_a_dry_run_returns_the_plan_and_changes_nothing(path: str, body: dict[str, Any], kind: str) -> None:
    house = House()
    before = plane_of(house).pools()
    response = post(house, f"{path}?dry_run=true", body, **{"Idempotency-Key": "k"})
    assert response.status_code == 200
    plan = response.json()
    assert plan["kind"] == kind
    assert {"pools", "groups", "prepared", "in_flight", "lost_state", "downtime_s", "estimate_from"} <= set(plan)
    assert (plane_of(house).pools(), plane_of(house).by_id) == (before, {})
    assert [(one.outcome, one.detail) for one in house.audit.entries] == [("asked", ""), ("accepted", "200 dry run")]


def test_a_dry_run_refuses_what_the_command_would() -> None:
    house = House()
    check_problem(post(house, f"{RESIZE}?dry_run=true", {"process_on_nodes": [99]}), 422, "cannot-fit")
    check_problem(
        post(house, f"{RESIZE}?dry_run=1", {"process_on_nodes": [1], "expected_generation": 2}), 412, "stale-generation"
    )
    check_problem(post(house, f"{RESIZE}?dryrun=true", {"process_on_nodes": [1]}), 422, "invalid-request")
    check_problem(post(house, f"{RESIZE}?dry_run=perhaps", {"process_on_nodes": [1]}), 422, "invalid-request")


@pytest.mark.parametrize(("path", "body", "_kind"), CHANGES)
def test_a_change_needs_the_generation_that_was_seen(path: str, body: dict[str, Any], _kind: str) -> None:
    house = House()
    before = plane_of(house).pools()
    problem = check_problem(post(house, path, body), 428, "generation-needed")
    assert "If-Match" in problem["detail"]
    assert plane_of(house).pools() == before
    for named in ({"If-Match": '"g3"'}, {"If-Match": "*"}):
        assert post(House(), path, body, **named).status_code == 202
    assert post(House(), path, {**body, "expected_generation": 3}).status_code == 202


def test_who_comes_second_sees_who_changed_what() -> None:
    house = House()
    assert post(house, RESIZE, {"process_on_nodes": [4], "expected_generation": 3}).status_code == 202
    refused = post(house, RESIZE, {"process_on_nodes": [1], "expected_generation": 3})
    problem = check_problem(refused, 412, "stale-generation")
    assert (problem["expected_generation"], problem["actual_generation"]) == (3, 4)
    assert refused.headers["etag"] == '"g4"'
    last = problem["last_change"]
    assert (last["kind"], last["who"], last["before"], last["after"]) == ("resize", "control", "pool [2]", "pool [4]")
    assert sizes(house)["pool"] == (4,)


def test_a_pool_that_somebody_split_meanwhile_is_gone_and_it_says_into_what() -> None:
    house = House()
    assert post(house, SPLIT, {"parts": PARTS, "expected_generation": 3}).status_code == 202
    for path, body in (
        (RESIZE, {"process_on_nodes": [1], "expected_generation": 3}),
        (MERGE, {"pools": ["judges", "pool"], "name": "all", "expected_generations": {"pool": 3, "judges": 3}}),
    ):
        problem = check_problem(post(house, path, body), 412, "stale-generation")
        assert (problem["actual_generation"], problem["last_change"]["after"]) == (None, "train [1], rest [1]")
        assert "split by control" in problem["detail"]
    check_problem(post(house, RESIZE, {"process_on_nodes": [1]}, **{"If-Match": "*"}), 404, "unknown-name")


def test_a_cluster_that_does_not_answer_is_no_error_of_ours() -> None:
    class Silent(MemoryPlane):
        def submit(self, command: Command) -> Operation:
            raise CallTimeoutError("timed out after 20 s querying the cluster for free resources", timeout_s=20.0)

    response = post(House(plane=Silent()), RESIZE, {"process_on_nodes": [1]}, **{"If-Match": "*"})
    check_problem(response, 503, "cluster-silent")
    assert response.headers["retry-after"] == "5"


def test_every_pool_of_a_merge_can_be_stale() -> None:
    house = House()
    body = {"pools": ["pool", "judges"], "name": "all", "expected_generations": {"pool": 3, "judges": 2}}
    problem = check_problem(post(house, MERGE, body), 412, "stale-generation")
    assert (problem["expected_generation"], problem["actual_generation"]) == (2, 3)
    body["expected_generations"] = {"pool": 3, "jugdes": 3}
    assert "jugdes" in check_problem(post(house, MERGE, body), 422, "invalid-request")["detail"]
    assert set(sizes(house)) == {"pool", "judges"}


def test_a_double_click_is_one_operation() -> None:
    house = House()
    body, key = {"process_on_nodes": [4], "expected_generation": 3}, {"Idempotency-Key": "click"}
    first, again = post(house, RESIZE, body, **key), post(house, RESIZE, body, **key)
    assert first.json() == again.json()
    assert len(plane_of(house).by_id) == 1
    check_problem(post(house, RESIZE, {**body, "process_on_nodes": [3]}, **key), 422, "key-reused")
    assert sizes(house)["pool"] == (4,)


def test_a_key_whose_request_was_refused_can_be_used_again() -> None:
    house, key = House(), {"Idempotency-Key": "k"}
    body = {"process_on_nodes": [4], "expected_generation": 2}
    check_problem(post(house, RESIZE, body, **key), 412, "stale-generation")
    assert post(house, RESIZE, {**body, "expected_generation": 3}, **key).status_code == 202


def test_the_same_key_while_its_request_is_worked_on_is_a_conflict() -> None:
    class Slow(MemoryPlane):
        began, may_go_on = threading.Event(), threading.Event()

        def submit(self, command: Command) -> Operation:
            self.began.set()
            assert self.may_go_on.wait(10)
            return super().submit(command)

    async def two() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        async with house.controller(**{"Idempotency-Key": "k"}) as client:
            body = {"process_on_nodes": [4], "expected_generation": 3}
            first = asyncio.create_task(client.post(RESIZE, json=body))
            await asyncio.to_thread(Slow.began.wait, 10)
            second = await client.post(RESIZE, json=body)
            Slow.may_go_on.set()
            return await first, second, await client.post(RESIZE, json=body)

    house = House(plane=Slow())
    first, second, third = asyncio.run(two())
    check_problem(second, 409, "key-in-flight")
    assert second.headers["retry-after"] == "1"
    assert first.status_code == 202
    assert first.json()["id"] == third.json()["id"]


def test_keys_are_forgotten_after_a_day() -> None:
    now = [0.0]
    idempotency_keys = IdempotencyKeys(lambda: now[0])
    made = iter(["op-1", "op-2"])
    assert idempotency_keys.run_once("k", "a", lambda: next(made)) == "op-1"
    now[0] = 23 * 3600.0
    assert idempotency_keys.run_once("k", "a", lambda: next(made)) == "op-1"
    with pytest.raises(ProblemError):
        idempotency_keys.run_once("k", "b", lambda: next(made))
    now[0] = 25 * 3600.0
    assert idempotency_keys.run_once("k", "b", lambda: next(made)) == "op-2"


# Bad input


BAD_SHAPES: list[tuple[str, Any, str]] = [
    (RESIZE, {}, "process_on_nodes"),
    (RESIZE, {"process_on_nodes": []}, "process_on_nodes"),
    (RESIZE, {"process_on_nodes": [0]}, "greater than or equal to 1, not 0"),
    (RESIZE, {"process_on_nodes": [-2]}, "greater than or equal to 1, not -2"),
    (RESIZE, {"process_on_nodes": [2.5]}, "process_on_nodes.0"),
    (RESIZE, {"process_on_nodes": ["2"]}, "process_on_nodes.0"),
    (RESIZE, {"process_on_nodes": [True]}, "process_on_nodes.0"),
    (RESIZE, {"process_on_nodes": 2}, "process_on_nodes"),
    (RESIZE, {"process_on_nodes": [2], "size": 3}, "size"),
    (RESIZE, {"process_on_nodes": [1] * 1001}, "process_on_nodes"),
    (RESIZE, {"process_on_nodes": [2], "deadline_s": -1}, "deadline_s"),
    (RESIZE, {"process_on_nodes": [2], "deadline_s": 1e9}, "deadline_s"),
    (SPLIT, {"parts": []}, "parts"),
    (SPLIT, {"parts": [{"name": "", "size": 2}]}, "parts.0.name"),
    (SPLIT, {"parts": [{"name": "a\nb", "size": 2}]}, "parts.0.name"),
    (SPLIT, {"parts": [{"name": "x" * 201, "size": 2}]}, "parts.0.name"),
    (SPLIT, {"parts": [{"name": "a", "size": 0}]}, "parts.0.size"),
    (SPLIT, {"parts": [{"name": "a", "size": 2, "groups": "rollout"}]}, "parts.0.groups"),
    (SPLIT, {"parts": [{"name": "a", "size": 2, "colour": "red"}]}, "parts.0.colour"),
    (MERGE, {"pools": ["pool", "judges"]}, "name"),
    (MERGE, {"pools": [], "name": "all"}, "pools"),
    (MERGE, {"pools": ["pool", 3], "name": "all"}, "pools.1"),
    (MERGE, {"pools": ["pool", "judges"], "name": "all", "expected_generations": {"pool": -1}}, "expected_generations"),
    (MERGE, {"pools": ["pool", "judges"], "name": "all", "expected_generations": 3}, "expected_generations"),
    (MOVE, {}, "pool"),
    (MOVE, {"pool": None}, "pool"),
    (MOVE, [], "body"),
]


@pytest.mark.parametrize(("path", "body", "named"), BAD_SHAPES)
def test_a_body_that_does_not_fit_names_the_field_and_changes_nothing(path: str, body: Any, named: str) -> None:
    house = House()
    before = plane_of(house).pools()
    problem = check_problem(post(house, path, body, **{"If-Match": '"g3"'}), 422, "invalid-request")
    assert named in problem["detail"]
    assert named.split(",")[0].split(" ")[0] in str(problem["errors"])
    assert plane_of(house).pools() == before


CANNOT_WORK: list[tuple[str, Any, int, str, str]] = [
    (SPLIT, {"parts": [{"name": "a", "size": 3, "groups": ["rollout"]}]}, 422, "cannot-work", "3 slots"),
    (SPLIT, {"parts": [{"name": "judges", "size": 2, "groups": ["rollout"]}]}, 422, "cannot-work", "exists already"),
    (SPLIT, {"parts": [{"name": "a", "size": 2}]}, 422, "cannot-work", "'rollout' has no home"),
    (MERGE, {"pools": ["pool", "pool"], "name": "all"}, 422, "cannot-work", "with itself"),
    (MERGE, {"pools": ["pool", "none"], "name": "all"}, 404, "unknown-name", "'none'"),
    (MOVE, {"pool": "none"}, 404, "unknown-name", "'none'"),
    ("/api/v1/worker-groups/none/move", {"pool": "judges"}, 404, "unknown-name", "'none'"),
    (f"{POOLS}/none/resize", {"process_on_nodes": [2]}, 404, "unknown-name", "'none'"),
    (RESIZE, {"process_on_nodes": [17]}, 422, "cannot-fit", "16 slots"),
    (RESIZE, {"process_on_nodes": [16]}, 409, "no-room", "16 slots"),
]


@pytest.mark.parametrize(("path", "body", "status", "slug", "named"), CANNOT_WORK)
def test_what_cannot_work_names_the_thing_and_changes_nothing(
    path: str, body: Any, status: int, slug: str, named: str
) -> None:
    house = House()
    before = plane_of(house).pools()
    problem = check_problem(post(house, path, body, **{"If-Match": "*"}), status, slug)
    assert named in problem["detail"]
    assert plane_of(house).pools() == before
    if slug == "cannot-work":
        assert problem["errors"] == [{"where": "body", "message": problem["detail"]}]
    if status == 422 and slug == "cannot-fit":
        assert problem["needed"] == {"CPU": 19.0}


def test_a_group_whose_state_would_be_lost_is_named_with_the_way_out() -> None:
    house = House()
    plane_of(house).stateful.add("rollout")
    problem = check_problem(
        post(house, RESIZE, {"process_on_nodes": [4]}, **{"If-Match": "*"}), 409, "state-would-be-lost"
    )
    assert (problem["group"], problem["worker_class"]) == ("rollout", "Rollout")
    assert "save_state" in problem["detail"]


def test_an_operation_under_way_is_named() -> None:
    house = House()
    plane_of(house).hold = True
    first = post(house, RESIZE, {"process_on_nodes": [4], "expected_generation": 3}).json()
    assert (first["state"], first["done"], first["result"], first["error"]) == (
        "waiting_for_safe_point",
        False,
        None,
        None,
    )
    assert first["progress"] == "waits for the driver's next call"
    problem = check_problem(post(house, SPLIT, {"parts": PARTS}, **{"If-Match": "*"}), 409, "state-forbids")
    assert problem["operation"]["id"] == first["id"]
    cancelled = post(house, f"/api/v1/operations/{first['id']}/cancel").json()
    assert (cancelled["state"], cancelled["error"]["type"]) == ("cancelled", "urn:podium:problem:operation-cancelled")


def test_the_deadline_is_the_commands() -> None:
    seen: list[Command] = []

    class Watched(MemoryPlane):
        def submit(self, command: Command) -> Operation:
            seen.append(command)
            return super().submit(command)

    for path, body, _ in CHANGES:
        assert post(House(plane=Watched()), path, {**body, "deadline_s": 7}, **{"If-Match": "*"}).status_code == 202
    assert [command.deadline_s for command in seen] == [7] * 4
    post(House(plane=Watched()), RESIZE, {"process_on_nodes": [1]}, **{"If-Match": "*"})
    assert seen[-1].deadline_s == 120.0


def test_a_driver_that_is_ending_asks_to_come_back() -> None:
    house = House()
    house.app.state.context = replace(house.app.state.context, is_ending=lambda: True)
    for path, body, _ in CHANGES:
        response = post(house, path, body, **{"If-Match": "*"})
        check_problem(response, 503, "ending")
        assert response.headers["retry-after"] == "1"
    assert get("/api/v1/session", house).json()["may_control"] is False


def test_a_name_with_a_slash_is_steered() -> None:
    house = House()
    plane_of(house).by_name["team/a"] = PoolSnapshot("team/a", "active", 1, (2,), 2, ("roles/actor",), 0)
    assert post(house, f"{POOLS}/team%2Fa/resize", {"process_on_nodes": [1]}, **{"If-Match": '"g1"'}).status_code == 202
    moved = post(house, "/api/v1/worker-groups/roles%2Factor/move", {"pool": "judges"}, **{"If-Match": '"g3"'})
    assert moved.status_code == 202
    assert plane_of(house).pool("judges").groups == ("judge", "roles/actor")


def test_a_connection_that_ends_within_the_body_is_no_command() -> None:
    house, sent = House(), []

    async def ask() -> None:
        messages = iter([{"type": "http.request", "body": b"{}", "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        names = {
            "host": "127.0.0.1:4321",
            "authorization": f"Bearer {house.tokens.control}",
            "content-type": "application/json",
            "content-length": "200",
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": f"{POOLS}/pool/pause",
            "raw_path": b"",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in names.items()],
            "client": ("127.0.0.1", 1),
        }
        await house.app(scope, receive, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 400
    assert plane_of(house).pool("pool").state == "active"
    assert [(one.outcome, one.detail) for one in house.audit.entries] == [("refused", "400 incomplete")]


def test_a_refused_change_is_audited_with_its_generation() -> None:
    house = House()
    post(house, RESIZE, {"process_on_nodes": [4], "expected_generation": 2})
    post(house, RESIZE, {"process_on_nodes": [4]})
    found = [(one.outcome, one.detail, one.expected_generation) for one in house.audit.entries]
    assert found == [("asked", "", 2), ("refused", "412", 2), ("asked", "", None), ("refused", "428", None)]


def test_the_list_of_operations_is_whole_however_far_the_record_is_behind() -> None:
    def ids(limit: int) -> list[str]:
        found: list[str] = []
        cursor = ""
        while True:
            page = get(f"/api/v1/operations?limit={limit}{cursor}", house).json()
            found += [one["id"] for one in page["items"]]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    house = House()
    made = [post(house, RESIZE, {"process_on_nodes": [2]}, **{"If-Match": "*"}).json()["id"] for _ in range(5)]
    for n_recorded in range(6):
        house.source.ops = [
            rows.Operation(one, "resize", "pool", "running", "control", 1500.0, 1600.0, "", "", "")
            for one in reversed(made[:n_recorded])
        ]
        for limit in (1, 2, 3, 5, 9):
            assert ids(limit) == made[::-1]
    assert get("/api/v1/operations", house).json()["items"][-1]["state"] == "succeeded"


def test_an_error_while_planning_is_no_usage_error(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryPlane):
        def submit(self, command: Command) -> Operation:
            raise KeyError("hunter2")

    response = answer(House(plane=Broken()), "POST", RESIZE, json={"process_on_nodes": [1]}, headers={"If-Match": "*"})
    check_problem(response, 500, "failed")
    assert "hunter2" not in response.text


def test_states_of_operations_are_told_apart() -> None:
    house = House()
    operation = plane_of(house)
    for state, text in ((OperationState.EXPIRED, "too late"), (OperationState.FAILED, "no room")):
        made = post(house, RESIZE, {"process_on_nodes": [2]}, **{"If-Match": "*"}).json()
        operation.by_id[made["id"]] = replace(operation.by_id[made["id"]], state=state, error=text)
        shown = get(f"/api/v1/operations/{made['id']}", house).json()
        assert (shown["done"], shown["result"]) == (True, None)
        assert shown["error"]["type"] == f"urn:podium:problem:operation-{state.value}"
        assert shown["error"]["detail"] == text


def test_an_error_of_megabytes_is_cut_while_the_driver_runs_as_afterwards() -> None:
    house = House()
    made = post(house, RESIZE, {"process_on_nodes": [2]}, **{"If-Match": "*"}).json()
    by_id, long = plane_of(house).by_id, "x" * 2_000_000
    by_id[made["id"]] = replace(by_id[made["id"]], state=OperationState.FAILED, error=long, progress=long)
    response = get(f"/api/v1/operations/{made['id']}", house)
    assert response.json()["error"]["detail"].endswith("(1,984,000 more characters were cut)")
    assert len(response.content) < 30_000


def test_a_number_that_no_float_holds_is_a_body_that_does_not_fit() -> None:
    body = {"process_on_nodes": [1], "expected_generation": 10**400}
    assert "expected_generation" in check_problem(post(House(), RESIZE, body), 422, "invalid-request")["detail"]
