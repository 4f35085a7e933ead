"""A worker's death in a group on the local cluster: told once, on file before anything else, then the policy."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, create_colocated_worker_cls, get
from core.errors import DeathKind, WorkerDiedError
from core.events import CallFinished, Event, Notice, RankState, WorkerEnded
from core.group import deadline, deaths
from core.group.worker_group import state_of
from core.health import investigator
from core.health.in_flight import calls_in_flight
from core.health.monitor import monitor_of
from core.testing import RecordingObserver, local_controller
from tests.group_workers import Held, Rows, Waiting


@pytest.fixture
def seen() -> Iterator[RecordingObserver]:
    Held.gate.clear()
    with local_controller() as (_, observer):
        try:
            yield observer
        finally:
            Held.gate.set()


def group(**more: Any) -> RayWorkerGroup:
    """Return a group of three."""
    return RayWorkerGroup(RayResourcePool([3]), RayClassWithInitArgs(Waiting), name_prefix="g", **more)


def test_a_death_in_a_call_is_told_once_with_the_call_and_what_the_others_did(
    seen: RecordingObserver, capfd: pytest.CaptureFixture[str]
) -> None:
    one = group()
    threading.Timer(0.1, lambda: one.workers[1].kill("was killed by the test")).start()
    with pytest.raises(WorkerDiedError) as caught:
        one.nap(1.0)
    (event,) = seen.of(WorkerEnded)
    assert event.report is not None
    assert (event.method, event.call_id, event.report.role, event.report.policy) == ("nap", 1, "Waiting", "raise")
    assert [(state.rank, state.state) for state in event.report.others] == [(0, "in nap"), (2, "in nap")]
    assert str(caught.value).endswith(
        f"died in nap: {event.reason}; at that moment: ranks 0, 2 in nap for {event.report.others[0].seconds:.1f} s"
    )
    assert (caught.value.rank, caught.value.how) == (1, "worker gWaiting_0:1 was killed by the test")
    (call,) = seen.of(CallFinished)
    assert (call.status, call.error and call.error.rank) == ("died", 1)
    said = capfd.readouterr().err
    assert said.startswith("podium: worker gWaiting_0:1 (rank 1 of g, pid ")
    assert "  in        call 1 nap\n  others    ranks 0, 2 in nap for 0." in said


def test_a_call_after_a_death_is_refused_with_its_cause_and_recorded(seen: RecordingObserver) -> None:
    one = group()
    one.workers[1].kill()
    seen.await_count(WorkerEnded, 1)
    with pytest.raises(WorkerDiedError, match=r"died between calls: .*; echo was asked of no rank") as caught:
        one.echo(1)
    assert (caught.value.rank, caught.value.method) == (1, "echo")
    assert seen.last_call().status == "died"
    assert one.echo_zero(5) == (0, 5)


def test_the_futures_get_tells_of_the_death_too(seen: RecordingObserver) -> None:
    one = group()
    refs = one.wait_later()
    one.workers[2].kill()
    with pytest.raises(WorkerDiedError):
        get(refs)
    (event,) = seen.await_count(WorkerEnded, 1)
    assert (event.rank, event.method, event.call_id) == (2, "wait_later", 1)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_call_does_not_wait_for_the_cluster_to_tell_of_a_death_that_is_on_file(
    seen: RecordingObserver, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    monkeypatch.setattr(deadline, "_BEAT_S", 0.02)
    monkeypatch.setattr(deaths, "_OVERDUE_S", 0.05)
    monkeypatch.setattr(investigator, "_WORDS_S", 0.02)
    one = group()

    def hear() -> None:
        while not any(out.rank == 2 for call in calls_in_flight(state_of(one).runtime) for out in call.out):
            time.sleep(0.005)
        # Its node is gone, of which this cluster knows nothing: the worker never answers, nor does an error.
        state_of(one).workers_for("wait").deaths.hear(1, None)

    def call() -> None:
        if blocking:
            one.wait()
        else:
            one.wait_with_rows(DataProto.from_dict({"x": torch.ones(3)})).get()

    threading.Thread(target=hear).start()
    with pytest.raises(WorkerDiedError, match="rank 1 of g") as caught:
        call()
    assert caught.value.rank == 1
    (death,) = seen.of(WorkerEnded)
    assert (death.rank, death.method) == (1, "wait" if blocking else "wait_with_rows")
    Held.gate.set()
    (finished,) = seen.await_count(CallFinished, 1)
    assert finished.status == ("died" if blocking else "ok")


def test_workers_that_another_group_let_go_have_not_died(seen: RecordingObserver) -> None:
    roles = {"a": RayClassWithInitArgs(Rows), "b": RayClassWithInitArgs(Rows)}
    parent = RayWorkerGroup(RayResourcePool([2]), create_colocated_worker_cls(roles), on_death="abort")
    views = parent.spawn(roles)
    parent.close()
    for view in views.values():
        with pytest.raises(WorkerDiedError, match="is gone, echo has no answer from it"):
            view.echo(1)
    assert not [event for event in seen.of(WorkerEnded) if event.died]


class _File:
    """An observer whose file is only sure of what was flushed."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.queued: list[Event] = []
        self.on_file: list[Event] = []

    def observe(self, event: Event) -> None:
        """Queue."""
        self.queued.append(event)

    def flush(self, timeout_s: float) -> None:
        """Write."""
        del timeout_s
        self.on_file = list(self.queued)


def test_the_driver_is_ended_for_workers_that_die_together_once_all_are_on_file(
    seen: RecordingObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ends = _File(), threading.Event()
    on_file_then: list[Event] = []

    def end() -> None:
        on_file_then.extend(file.on_file)
        ends.set()

    monkeypatch.setattr(investigator, "end_driver", end)
    one = group(on_death="abort")
    state_of(one).runtime.bus.subscribe(file, file.flush)
    for rank in (0, 2):
        one.workers[rank].kill()
    assert ends.wait(10)
    died = [event for event in on_file_then if isinstance(event, WorkerEnded) and event.died]
    assert sorted(event.rank for event in died) == [0, 2]
    notices = [event.text for event in on_file_then if isinstance(event, Notice)]
    assert len(notices) == 2
    assert all("abort: the driver is ended by SIGABRT" in text for text in notices)
    assert RankState(1, "idle") in [state for event in died if event.report for state in event.report.others]


def test_a_death_that_the_cluster_tells_without_a_name_is_explained_all_the_same(seen: RecordingObserver) -> None:
    one = group()
    one.workers[1].kill()
    seen.await_count(WorkerEnded, 1)
    assert state_of(one).live is not None
    told = state_of(one).workers_for("nap").deaths.explained(WorkerDiedError("the node ran low on memory"), "nap")
    assert (told.rank, told.group, told.worker) == (1, "g", "gWaiting_0:1")


UNREACHABLE = WorkerDiedError(
    "The actor 4f is unavailable: Socket closed. The task may or may not have been executed on the actor.",
    kind=DeathKind.UNREACHABLE,
)


@pytest.fixture
def cut_off(seen: RecordingObserver, monkeypatch: pytest.MonkeyPatch) -> RayWorkerGroup:
    """A group whose ranks are busy, and whose rank 1 the cluster could not reach, as the watch and a call report it."""
    monkeypatch.setattr(investigator, "_ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(deaths, "_OUTCOME_S", 0.05)
    one = group()
    one.wait_later()
    live = state_of(one).workers_for("wait_later")
    watch = monitor_of(live.runtime)._watch
    watch._report(watch._tracked[live.process(1).key], UNREACHABLE)
    live.deaths.hear(1, UNREACHABLE, "wait_later", 1)
    return one


def explained(one: RayWorkerGroup, left_s: float = math.inf) -> WorkerDiedError:
    return state_of(one).workers_for("wait_later").deaths.explained(UNREACHABLE, "wait_later", left_s)


def test_a_worker_that_cannot_be_reached_has_died_once_the_cluster_says_so(
    seen: RecordingObserver, cut_off: RayWorkerGroup
) -> None:
    told: list[WorkerDiedError] = []
    calling = threading.Thread(target=lambda: told.append(explained(cut_off)))
    calling.start()
    calling.join(0.2)
    assert calling.is_alive()
    assert not seen.of(WorkerEnded)
    cut_off.workers[1].kill("has died because its node has died")
    calling.join(10)
    (death,) = seen.of(WorkerEnded)
    assert (death.rank, death.died, death.method) == (1, True, "wait_later")
    assert "its node has died" in death.reason
    assert (told[0].rank, told[0].how) == (1, death.reason)


def test_a_worker_that_can_be_reached_again_has_not_died_and_is_watched_as_before(
    seen: RecordingObserver, cut_off: RayWorkerGroup
) -> None:
    Held.gate.set()
    error = explained(cut_off)
    assert str(error).startswith(
        f"rank 1 of g, pid {error.pid}, node 127.0.0.1 (worker gWaiting_0:1) could not be reached"
    )
    assert "in wait_later: The actor 4f is unavailable: Socket closed. Whether wait_later ran there is not" in str(
        error
    )
    assert (error.rank, error.group, error.method, error.kind) == (1, "g", "wait_later", DeathKind.UNREACHABLE)
    assert not seen.of(WorkerEnded)
    assert cut_off.echo(1) == [1, 1, 1]
    cut_off.workers[1].kill()
    (death,) = seen.await_count(WorkerEnded, 1)
    assert death.rank == 1


def test_the_wait_for_what_became_of_a_worker_ends_with_the_deadline_of_the_call(cut_off: RayWorkerGroup) -> None:
    assert explained(cut_off, 0.1).kind is DeathKind.UNREACHABLE
    assert state_of(cut_off).workers_for("echo").deaths.is_open(1)
