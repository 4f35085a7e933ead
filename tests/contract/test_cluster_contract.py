"""One suite for the ``Cluster`` Protocol, run over both clusters that core has."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from core.cluster import Cluster, Outcome, Placement, ReserveRequest, SpawnRequest
from core.cluster.fetching import fetch, is_ref
from core.cluster.local import LocalCluster
from core.cluster.ray_errors import Unread
from core.errors import PlacementError, UnknownNameError, WorkerDiedError, WorkerMethodError
from tests.cluster_actors import Awaiting, Echo, Rooted, Stillborn

Spawn = Callable[..., Any]


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.integration)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of 16 CPUs and 8 GPUs."""
    if request.param == "local":
        made = LocalCluster({"CPU": 16, "GPU": 8})
        yield made
        made.close()
    else:
        yield request.getfixturevalue("ray_runtime")[0].cluster


@pytest.fixture(scope="module")
def placement(cluster: Cluster) -> Iterator[Placement]:
    """Two slots of a CPU each."""
    reserved = cluster.reserve(ReserveRequest("shared", (2,), {"CPU": 2.0}), 20)
    yield reserved
    cluster.release(reserved)


@pytest.fixture(scope="module")
def spawn(cluster: Cluster, placement: Placement) -> Spawn:
    """Start an actor on a slot of the module's placement."""

    def start(name: str, slot: int = 0, actor_class: type = Echo, **more: Any) -> Any:
        return cluster.spawn(SpawnRequest(actor_class, name, placement, placement.slots[slot], **more))

    return start


@pytest.fixture(scope="module")
def actor(spawn: Spawn) -> Any:
    """An actor that lives as long as the module."""
    return spawn("echo")


def result(cluster: Cluster, actor: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Run a method and return its value."""
    return cluster.fetch([cluster.submit(actor, method, args, kwargs).result], 60)[0]


def keep_finding(cluster: Cluster, name: str, timeout_s: float = 20) -> None:
    """Look for an actor that was killed until the cluster knows that it is gone, and raise what it then raises."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        cluster.find(name)
        time.sleep(0.05)


def test_it_says_what_it_is(cluster: Cluster) -> None:
    assert cluster.kind.split()[0] in {"local", "ray"}


def test_slots_come_in_rank_order_with_node_and_local_index(cluster: Cluster) -> None:
    placement = cluster.reserve(ReserveRequest("p", (1, 3), {"CPU": 1.0}), 20)
    assert [slot.index for slot in placement.slots] == [0, 1, 2, 3]
    assert [slot.node_index for slot in placement.slots] == [0, 1, 1, 1]
    assert [slot.local_index for slot in placement.slots] == [0, 0, 1, 2]
    assert all(slot.node for slot in placement.slots)
    cluster.release(placement)
    cluster.release(placement)


def test_what_does_not_fit_is_an_error_with_the_numbers_and_nothing_stays_held(cluster: Cluster) -> None:
    with pytest.raises(PlacementError) as caught:
        cluster.reserve(ReserveRequest("big", (4,), {"CPU": 5.0}), 2)
    assert caught.value.needed == (("CPU", 20.0),)
    assert (caught.value.pool, caught.value.n_bundles, caught.value.bundle) == ("big", 4, (("CPU", 5.0),))
    assert 0 < dict(caught.value.available)["CPU"] <= 16
    assert caught.value.hopeless
    cluster.release(cluster.reserve(ReserveRequest("fits", (4,), {"CPU": 3.0}), 20))


def test_slots_that_were_given_back_can_be_taken_again(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.release(cluster.reserve(ReserveRequest("all", (7,), {"CPU": 2.0, "GPU": 1.0}), 20))


def test_what_is_to_be_given_back_counts_as_free_in_a_shortage(cluster: Cluster) -> None:
    request = ReserveRequest("large", (5,), {"CPU": 2.0})
    held = cluster.reserve(request, 20)
    try:
        assert cluster.shortage(request) is not None
        assert cluster.shortage(request, held.native) is None
    finally:
        cluster.release(held)


def test_slots_can_be_asked_for_on_the_node_of_others(cluster: Cluster, placement: Placement) -> None:
    node = placement.slots[0].node
    beside = ReserveRequest("beside", (1,), {"CPU": 1.0}, node=node)
    assert cluster.shortage(beside) is None
    reserved = cluster.reserve(beside, 20)
    assert [slot.node for slot in reserved.slots] == [node]
    cluster.release(reserved)


def test_a_method_gives_a_result_and_a_receipt(cluster: Cluster, actor: Any) -> None:
    submitted = cluster.submit(actor, "_podium_echo", (1, "a"), {"key": [2]})
    assert cluster.fetch([submitted.result, submitted.receipt], 60) == [((1, "a"), {"key": [2]}), b"receipt"]


def test_asking_gives_one_object(cluster: Cluster, actor: Any) -> None:
    (answer,) = cluster.fetch([cluster.ask(actor, "_podium_answer_echo", (1,), {"key": 2})], 60)
    assert list(answer) == [((1,), {"key": 2}), b"receipt"]


def test_calls_on_one_actor_keep_their_order(cluster: Cluster, spawn: Spawn) -> None:
    fresh = spawn("ordered", 1)
    for number in range(50):
        cluster.submit(fresh, "_podium_echo", (number,), {})
    assert [args[0] for args, _ in result(cluster, fresh, "_podium_seen")] == list(range(50))
    cluster.kill(fresh)


def test_references_among_the_arguments_arrive_as_their_values(cluster: Cluster, actor: Any) -> None:
    value = {"weights": np.arange(5)}
    ref = cluster.put(value)
    args, kwargs = result(cluster, actor, "_podium_echo", ref, other=ref)
    assert args[0]["weights"].tolist() == kwargs["other"]["weights"].tolist() == [0, 1, 2, 3, 4]
    upstream = cluster.submit(actor, "_podium_echo", (7,), {}).result
    assert result(cluster, actor, "_podium_echo", upstream)[0][0] == ((7,), {})


def test_references_deep_in_an_argument_stay_references_and_alive(cluster: Cluster, actor: Any) -> None:
    args, _ = result(cluster, actor, "_podium_echo", [cluster.put("deep")])
    assert cluster.is_ref(args[0][0])
    assert cluster.fetch(args[0], 60) == ["deep"]


def test_what_a_method_changes_does_not_reach_the_caller(cluster: Cluster, actor: Any) -> None:
    value = [1]
    assert result(cluster, actor, "_podium_change", value) == [1, 99]
    assert value == [1]


def test_two_fetches_give_equal_values(cluster: Cluster) -> None:
    ref = cluster.put([1, 2])
    assert cluster.fetch([ref], 60) == cluster.fetch([ref], 60) == [[1, 2]]


def test_values_come_in_the_order_they_were_asked_for(cluster: Cluster) -> None:
    refs = [cluster.put(number) for number in range(10)]
    assert cluster.fetch(refs[::-1], 60) == list(range(9, -1, -1))
    assert cluster.fetch([], 60) == []


def test_an_error_keeps_its_type_fields_and_cause(cluster: Cluster, actor: Any) -> None:
    submitted = cluster.submit(actor, "_podium_fail", (), {})
    for ref in (submitted.result, submitted.receipt):
        with pytest.raises(WorkerMethodError) as caught:
            cluster.fetch([ref], 60)
        error = caught.value
        assert (error.message, error.group, error.rank, error.method) == ("it went wrong", "g", 3, "m")
        assert isinstance(error.__cause__, KeyError)
    assert result(cluster, actor, "_podium_echo") == ((), {})


def test_what_cannot_be_unpickled_is_told_with_the_side_and_the_code_that_raised(cluster: Cluster, actor: Any) -> None:
    for arguments in ((Rooted(),), (cluster.put(Rooted()),)):
        with pytest.raises(
            Unread, match=r"KeyError: 'cannot live here', in .*__setstate__ \(cluster_actors.py"
        ) as caught:
            result(cluster, actor, "_podium_echo", *arguments)
        assert caught.value.on_worker
    submitted = cluster.submit(actor, "_podium_rooted", (), {})
    with pytest.raises(Unread, match=r"in Rooted.__setstate__ \(cluster_actors.py") as caught:
        cluster.fetch([submitted.result], 60)
    assert (type(caught.value.cause), caught.value.on_worker) == (KeyError, False)
    assert cluster.fetch([submitted.receipt], 60) == [b"receipt"]
    told: queue.Queue[Outcome] = queue.Queue()
    cluster.on_ready(submitted.result, told.put)
    assert isinstance(told.get(timeout=30).error, Unread)


def test_the_first_error_ends_a_fetch_while_others_still_run(cluster: Cluster, spawn: Spawn, actor: Any) -> None:
    sleeper = spawn("sleeper", 1)
    result(cluster, sleeper, "_podium_echo")
    slow = cluster.submit(sleeper, "_podium_sleep", (20.0,), {}).result
    began = time.monotonic()
    with pytest.raises(WorkerMethodError):
        cluster.fetch([slow, cluster.submit(actor, "_podium_fail", (), {}).result], 60)
    assert time.monotonic() - began < 10
    cluster.kill(sleeper)


def test_a_fetch_that_takes_too_long_is_a_timeout(cluster: Cluster, actor: Any) -> None:
    ref = cluster.submit(actor, "_podium_sleep", (0.6,), {}).result
    with pytest.raises(TimeoutError):
        cluster.fetch([ref], 0.1)
    assert isinstance(cluster.fetch([ref], 60)[0], int)


def test_waiting_tells_ready_from_pending(cluster: Cluster, actor: Any) -> None:
    ready, slow = cluster.put(1), cluster.submit(actor, "_podium_sleep", (0.8,), {}).result
    assert cluster.wait([ready, slow], 1, 10) == ([ready], [slow])
    assert cluster.wait([slow], 1, 0.01) == ([], [slow])
    done, pending = cluster.wait([slow, ready], 2, 30)
    assert set(map(id, done)) == {id(ready), id(slow)}
    assert pending == []
    assert cluster.wait([], 1, 10) == ([], [])


def test_waiting_for_more_than_there_are_is_waiting_for_all(cluster: Cluster) -> None:
    ref = cluster.put(1)
    assert cluster.wait([ref], 5, 10) == ([ref], [])


def test_every_reference_is_told_ready_once_whatever_it_came_to(cluster: Cluster, actor: Any) -> None:
    refs = [
        cluster.put(1),
        cluster.ask(actor, "_podium_answer_echo", (), {}),
        cluster.submit(actor, "_podium_fail", (), {}).result,
    ]
    told = [place for places in cluster.as_ready(refs) for place in places]
    assert sorted(told) == [0, 1, 2]


def test_a_callback_gets_the_value_or_the_error(cluster: Cluster, actor: Any) -> None:
    outcomes: list[Outcome] = []
    both = threading.Event()

    def take(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 2:
            both.set()

    cluster.on_ready(cluster.submit(actor, "_podium_echo", (5,), {}).receipt, take)
    cluster.on_ready(cluster.submit(actor, "_podium_fail", (), {}).receipt, take)
    assert both.wait(30)
    good, bad = sorted(outcomes, key=lambda outcome: outcome.error is not None)
    assert (good.value, good.error) == (b"receipt", None)
    assert isinstance(bad.error, WorkerMethodError)
    assert bad.error.rank == 3


def test_references_are_known_as_such_on_either_side(cluster: Cluster) -> None:
    ref = cluster.put(3)
    assert cluster.is_ref(ref)
    assert is_ref(ref)
    for other in (3, "ref", None, [ref]):
        assert not cluster.is_ref(other)
        assert not is_ref(other)
    assert fetch([ref]) == [3]


def test_an_actors_environment_is_its_own(cluster: Cluster, spawn: Spawn, actor: Any) -> None:
    told = spawn("told", 1, env={"PODIUM_CONTRACT": "yes"})
    result(cluster, told, "_podium_adopt", "PODIUM_RANK", "1")
    assert result(cluster, told, "_podium_environ", "PODIUM_RANK") == "1"
    assert result(cluster, told, "_podium_environ", "PODIUM_CONTRACT") == "yes"
    assert result(cluster, actor, "_podium_environ", "PODIUM_RANK") is None
    assert result(cluster, actor, "_podium_environ", "PODIUM_CONTRACT") is None
    cluster.kill(told)


def test_a_coroutine_is_awaited(cluster: Cluster, spawn: Spawn) -> None:
    awaiting = spawn("awaiting", 1, Awaiting)
    assert result(cluster, awaiting, "_podium_async", 4) == 5
    cluster.kill(awaiting)


def test_actors_have_ids_of_their_own(cluster: Cluster, spawn: Spawn, actor: Any) -> None:
    other = spawn("other", 1)
    assert cluster.actor_id(actor)
    assert cluster.actor_id(actor) != cluster.actor_id(other)
    cluster.kill(other)


def test_an_actor_is_found_by_its_name_while_it_lives(cluster: Cluster, spawn: Spawn) -> None:
    sought = spawn("sought", 1)
    result(cluster, sought, "_podium_echo", "first")
    found = cluster.find("sought")
    cluster.adopt_actor(found)
    assert cluster.actor_id(found) == cluster.actor_id(sought)
    assert result(cluster, found, "_podium_seen")[0] == (("first",), {})
    cluster.kill(found)
    with pytest.raises(UnknownNameError, match="sought"):
        keep_finding(cluster, "sought")


def test_an_actor_without_a_name_is_built_with_arguments_beside_another(
    cluster: Cluster, placement: Placement, actor: Any
) -> None:
    beside = cluster.spawn(
        SpawnRequest(Echo, "", beside=actor, args=([1],), kwargs={"more": cluster.put("stored")}, num_cpus=0)
    )
    assert result(cluster, beside, "_podium_seen") == [1, "stored"]
    assert cluster.node_of(beside) == cluster.node_of(actor) == placement.slots[0].node
    cluster.kill(beside)
    with pytest.raises(WorkerDiedError):
        cluster.node_of(beside)


def test_an_actor_can_be_wanted_on_the_node_of_an_address(cluster: Cluster, placement: Placement) -> None:
    node = placement.slots[0].node
    there = cluster.spawn(SpawnRequest(Echo, "", node=node, args=([1],)))
    assert result(cluster, there, "_podium_seen") == [1]
    assert cluster.node_of(there) == node
    cluster.kill(there)


def test_a_killed_actor_fails_what_it_runs_what_waits_and_what_comes_later(cluster: Cluster, spawn: Spawn) -> None:
    doomed = spawn("doomed", 1)
    result(cluster, doomed, "_podium_echo")
    running = cluster.submit(doomed, "_podium_sleep", (20.0,), {}).result
    waiting = cluster.submit(doomed, "_podium_echo", (), {}).result
    began = time.monotonic()
    cluster.kill(doomed)
    cluster.kill(doomed)
    later = cluster.submit(doomed, "_podium_echo", (), {}).result
    for ref in (running, waiting, later):
        with pytest.raises(WorkerDiedError):
            cluster.fetch([ref], 30)
    assert time.monotonic() - began < 18


def test_an_actor_that_does_not_come_up_fails_its_calls(cluster: Cluster, spawn: Spawn) -> None:
    stillborn = spawn("stillborn", 1, Stillborn)
    with pytest.raises(WorkerDiedError, match="no such file"):
        result(cluster, stillborn, "_podium_echo")
    cluster.kill(stillborn)


def test_what_is_not_there_by_a_deadline_ends_the_wait(cluster: Cluster, actor: Any) -> None:
    ready, slow = cluster.put(1), cluster.submit(actor, "_podium_sleep", (0.6,), {}).result
    steps = cluster.as_ready([slow, ready], 0.2)
    assert next(steps) == [1]
    with pytest.raises(TimeoutError):
        next(steps)
    assert [place for places in cluster.as_ready([slow], 30) for place in places] == [0]


def test_a_function_runs_on_the_node_that_is_named(cluster: Cluster, placement: Placement) -> None:
    assert cluster.is_up()
    assert cluster.run_on(placement.slots[0].node, os.path.basename, ("a/b",), 60) == "b"
    with pytest.raises(UnknownNameError, match="no node"):
        cluster.run_on("10.255.255.1", os.path.basename, ("a/b",), 5)


def test_a_cluster_that_can_tell_of_a_death_by_itself_does(cluster: Cluster, spawn: Spawn) -> None:
    mortal = spawn("mortal", 1)
    result(cluster, mortal, "_podium_echo")
    told: list[WorkerDiedError] = []
    heard = threading.Event()

    def hear(error: WorkerDiedError) -> None:
        told.append(error)
        heard.set()

    tells = cluster.on_death(mortal, hear)
    assert not cluster.was_ended(mortal)
    cluster.kill(mortal)
    assert cluster.was_ended(mortal)
    assert heard.wait(5 if tells else 0) is tells
    assert [error.worker for error in told] == (["mortal"] if tells else [])


def test_the_store_says_what_it_holds_of_what_it_cannot_hold(cluster: Cluster) -> None:
    assert cluster.store_room(1_000_000) is None
    room = cluster.store_room(10**15)
    if cluster.kind == "local":
        assert room is None
        room = LocalCluster({"object_store_memory": 5e6}).store_room(5_000_001)
    assert room is not None
    assert 0 <= room.free_bytes <= room.capacity_bytes < 10**15
