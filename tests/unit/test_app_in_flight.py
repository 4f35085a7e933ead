"""Calls in flight, worker groups and audit entries over REST, without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.errors import UnknownNameError
from core.health import in_flight
from tests.app_doubles import House, MemorySource, answer, check_problem, get, post
from tests.app_plane import STARTED_NS
from web.rows import AuditEntry, CallInFlight, Group, RankOut

RECORDED = CallInFlight(7, "rollout", "pool", "generate", True, 100.0, 900.0, 2, (RankOut(0, 900.0),), is_stalled=True)


class Flying(MemorySource):
    def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
        return (RECORDED,)


def test_the_drivers_own_memory_says_what_is_in_flight_and_the_record_where_it_lives() -> None:
    out = (in_flight.RankOut(0, 1.25), in_flight.RankOut(5, 0.5))
    call = in_flight.CallInFlight(
        7, "rollout", "pool", "generate", 1, True, STARTED_NS + 2_000_000_000, 1.5, out, (1, 2)
    )
    house = House(Flying())
    has = house.app.state.context
    house.app.state.context = replace(has, in_flight=lambda: (call,))
    (shown,) = get("/api/v1/now", house).json()["items"]
    assert (shown["id"], shown["started_ms"], shown["running_ms"], shown["n_ranks"]) == (7, 2000.0, 1500.0, 4)
    assert shown["out"] == [
        {"rank": 0, "out_ms": 1250.0, "node": "node-a", "pid": 11},
        {"rank": 5, "out_ms": 500.0, "node": "", "pid": 0},
    ]
    assert shown["is_stalled"] is True
    house.app.state.context = replace(has, in_flight=tuple)
    assert get("/api/v1/now", house).json() == {"items": [], "next_cursor": None}


def test_a_file_says_what_was_in_flight() -> None:
    house = House(Flying(), plane=None)
    assert [one["id"] for one in get("/api/v1/now", house).json()["items"]] == [7]


def test_groups_stand_where_the_live_plane_says() -> None:
    class Moved(MemorySource):
        def groups(self) -> tuple[Group, ...]:
            closed = Group("old", "pool", "demo.Old", 2, 0, (), 1.0, closed_ms=5.0)
            return (*super().groups(), closed)

    house = House(Moved())
    post(house, "/api/v1/worker-groups/rollout/move", {"pool": "judges"}, **{"If-Match": "*"})
    post(house, "/api/v1/resource-pools/judges/resize", {"process_on_nodes": [3]}, **{"If-Match": "*"})
    first, second = get("/api/v1/worker-groups", house).json()["items"]
    assert (first["name"], first["pool"], first["world_size"], first["methods"]) == (
        "rollout",
        "judges",
        3,
        ["generate"],
    )
    assert (second["name"], second["pool"], second["closed_ms"]) == ("old", "pool", 5.0)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_audit_entries_are_paged_by_key(limit: int) -> None:
    class Audited(MemorySource):
        def audit_entries(self, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
            ids = [one for one in range(6, 0, -1) if cursor is None or one < cursor]
            return tuple(
                AuditEntry(one, 1.0, "control", "", "", "", "POST", "/", 3, "ok", "", "") for one in ids[:limit]
            )

    house, seen, cursor = House(Audited()), [], ""
    while True:
        page = get(f"/api/v1/audit-entries?limit={limit}{cursor}", house).json()
        seen += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [6, 5, 4, 3, 2, 1]
    check_problem(get("/api/v1/audit-entries?actor=x", house), 422, "invalid-request")


def test_the_stacks_of_the_ranks_that_a_call_waits_for_are_asked_for() -> None:
    def dump(call_id: int) -> dict[int, str]:
        if call_id != 7:
            raise UnknownNameError(f"no call {call_id} is in flight", name=str(call_id))
        return {3: "in all_reduce", 0: "in load"}

    house = House()
    check_problem(post(house, "/api/v1/calls/7/stacks"), 404, "not-found")
    house.app.state.context = replace(house.app.state.context, stacks=dump)
    found = post(house, "/api/v1/calls/7/stacks").json()
    assert found["items"] == [{"rank": 0, "text": "in load"}, {"rank": 3, "text": "in all_reduce"}]
    check_problem(post(house, "/api/v1/calls/8/stacks"), 404, "unknown-name")
    check_problem(post(house, "/api/v1/calls/7/stacks", {"pid": "1"}), 422, "invalid-request")
    refused = answer(house, "POST", "/api/v1/calls/7/stacks", token=house.tokens.read, json={})
    check_problem(refused, 403, "scope")
    assert house.audit.entries[2].target == "/api/v1/calls/7/stacks"
