"""Deadlines: the driver waits no longer than it was told, says who is missing, and the ranks go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import core
from core import (
    DataProto,
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    get,
    register,
)
from core.errors import CallTimeoutError, RegistrationError, UsageError, WorkerMethodError
from core.events import CallFinished, Notice, RankFinished
from core.testing import RecordingObserver, local_controller
from tests.row_model import rows


class Gates:
    """One gate per test, which lets rank 1 go on."""

    gate = threading.Event()


class Late(Worker):
    """Rank 1 answers when the test lets it."""

    def _wait(self) -> int:
        if self.rank == 1:
            Gates.gate.wait(20)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def plain(self) -> int:
        """Wait, with no deadline of its own."""
        return self._wait()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, timeout_s=0.5)
    def hasty(self) -> int:
        """Wait, with a deadline of its own."""
        return self._wait()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, timeout_s=0)
    def patient(self) -> int:
        """Wait, whatever the group says."""
        return self._wait()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, timeout_s=0.05)
    def later(self, batch: DataProto) -> DataProto:
        """Wait, non-blocking, with a deadline of its own."""
        self._wait()
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def refs(self) -> int:
        """Wait, for references."""
        return self._wait()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def time_out(self) -> None:
        """Raise an error of the same kind as a deadline's."""
        raise TimeoutError("the user's own")


@pytest.fixture
def seen() -> Iterator[RecordingObserver]:
    Gates.gate.clear()
    with local_controller() as (_, observer):
        try:
            yield observer
        finally:
            Gates.gate.set()


def group(**more: float) -> RayWorkerGroup:
    """Return a group of two."""
    return RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs(Late), name_prefix="late", **more)  # type: ignore[arg-type]


def test_a_call_past_its_methods_deadline_names_the_missing_ranks_and_the_ranks_go_on(seen: RecordingObserver) -> None:
    late = group()
    with pytest.raises(CallTimeoutError) as caught:
        late.hasty()
    error = caught.value
    assert (error.group, error.method, error.missing_ranks, error.timeout_s) == ("late", "hasty", (1,), 0.5)
    assert "rank 1 (in hasty for 0." in str(error)
    assert "rank 0 answered" in str(error)
    (finished,) = seen.of(CallFinished)
    assert (finished.status, finished.error and finished.error.type) == ("error", "CallTimeoutError")
    threading.Timer(0.05, Gates.gate.set).start()
    assert late.plain() == [0, 1]
    (notice,) = seen.of(Notice)
    assert notice.text == "call 2 late.plain waits behind rank 1, still in call 1 hasty which was not answered in time"


def test_what_is_said_nearest_to_the_call_counts(seen: RecordingObserver) -> None:
    core.set_health(call_timeout_s=0.03)
    for late, limit_s in ((group(), 0.03), (group(call_timeout_s=0.04), 0.04)):
        with pytest.raises(CallTimeoutError) as caught:
            late.plain()
        assert caught.value.timeout_s == limit_s
    with core.deadline(0.02), pytest.raises(CallTimeoutError) as caught:
        group().patient()
    assert caught.value.timeout_s == 0.02
    Gates.gate.set()
    with core.deadline(0):
        assert group().hasty() == [0, 1]
    assert group(call_timeout_s=0).patient() == [0, 1]


def test_a_futures_get_has_the_methods_deadline_and_may_be_asked_again(seen: RecordingObserver) -> None:
    late = group()
    future = late.later(rows(4))
    seen.await_count(RankFinished, 1)
    with pytest.raises(CallTimeoutError) as caught:
        future.get()
    assert caught.value.missing_ranks == (1,)
    with core.deadline(0.02), pytest.raises(CallTimeoutError, match=r"within 0\.02 s"):
        future.get()
    Gates.gate.set()
    with core.deadline(20):
        assert len(future.get()) == 4


def test_references_are_waited_for_as_long_as_the_block_says(seen: RecordingObserver) -> None:
    late = group()
    refs = late.refs()
    seen.await_count(RankFinished, 1)
    with core.deadline(0.02), pytest.raises(CallTimeoutError, match=r"1 of 2 references had no value after 0\.02 s"):
        get(refs)
    Gates.gate.set()
    assert get(refs) == [0, 1]


def test_a_call_that_waits_behind_another_says_so_when_it_is_late(seen: RecordingObserver) -> None:
    late = group()
    late.refs()
    with core.deadline(0.05), pytest.raises(CallTimeoutError, match=r"rank 1 \(waiting behind call 1 for 0\."):
        late.plain()


def test_a_users_own_timeout_error_is_no_deadline(seen: RecordingObserver) -> None:
    with core.deadline(20), pytest.raises(WorkerMethodError, match="the user's own"):
        group().time_out()


def test_a_deadline_that_is_longer_than_anything_can_wait_is_none(seen: RecordingObserver) -> None:
    Gates.gate.set()
    core.set_health(call_timeout_s=float("inf"))
    for seconds in (float("inf"), 1e300, 1e10):
        with core.deadline(seconds):
            one = group()
            assert one.plain() == [0, 1]
            assert get(one.refs()) == [0, 1]
            assert len(one.later(rows(4)).get()) == 4
        assert group(call_timeout_s=seconds).plain() == [0, 1]
    assert group().plain() == [0, 1]


@pytest.mark.parametrize("wrong", [-1, float("nan")])
def test_deadlines_that_make_no_sense_are_refused(wrong: float) -> None:
    with pytest.raises(RegistrationError, match="must not be negative"):
        register(timeout_s=wrong)
    with pytest.raises(UsageError, match="must not be negative"), core.deadline(wrong):
        pass
    with pytest.raises(UsageError, match="call_timeout_s"):
        RayWorkerGroup([1], RayClassWithInitArgs(Late), call_timeout_s=wrong)
    with pytest.raises(UsageError, match="call_timeout_s"):
        core.set_health(call_timeout_s=wrong)
    with pytest.raises(UsageError, match="stall_s"):
        core.set_health(stall_s=wrong)
