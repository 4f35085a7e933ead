"""The gate of a pool: who passes, who waits, and which moves are legal."""

from __future__ import annotations

import threading
import time

import pytest

from core.errors import PoolClosedError, StateError
from core.pool import LEGAL_MOVES, Gate, PoolState


def gate() -> tuple[Gate, list[tuple[PoolState, str]]]:
    """Return a gate and the moves it tells of."""
    moves: list[tuple[PoolState, str]] = []
    return Gate("pool", lambda state, reason: moves.append((state, reason))), moves


def waiting_call(at: Gate, done: list[object]) -> threading.Thread:
    """Start a call that waits at the gate, and return when it does."""

    def call() -> None:
        try:
            done.append(at.enter())
        except PoolClosedError as error:
            done.append(error)

    n_before = at.n_waiting
    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + 5
    while at.n_waiting == n_before and time.monotonic() < deadline:
        time.sleep(0.001)
    return thread


def test_an_active_gate_lets_calls_through_at_once_and_counts_them() -> None:
    at, moves = gate()
    assert at.enter()
    assert at.enter()
    assert at.n_in_flight == 2
    at.leave()
    assert at.n_in_flight == 1
    assert moves == []


def test_a_pause_with_nothing_in_flight_is_done_at_once() -> None:
    at, moves = gate()
    assert at.pause() is PoolState.PAUSED
    assert moves == [(PoolState.PAUSED, "")]


def test_a_pause_is_done_when_the_last_call_in_flight_leaves() -> None:
    at, moves = gate()
    at.enter()
    at.enter()
    assert at.pause() is PoolState.PAUSING
    at.leave()
    assert at.state is PoolState.PAUSING
    at.leave()
    assert at.state is PoolState.PAUSED
    assert [state for state, _ in moves] == [PoolState.PAUSING, PoolState.PAUSED]


def test_a_call_waits_at_a_paused_gate_until_it_opens() -> None:
    at, _ = gate()
    at.pause()
    done: list[object] = []
    thread = waiting_call(at, done)
    assert done == []
    at.resume()
    thread.join(5)
    assert done == [True]
    assert (at.n_waiting, at.n_in_flight) == (0, 1)


def test_a_resume_before_the_drain_is_over_takes_the_pause_back() -> None:
    at, _ = gate()
    at.enter()
    at.pause()
    at.resume()
    at.leave()
    assert at.state is PoolState.ACTIVE


@pytest.mark.parametrize("state", [PoolState.CLOSED, PoolState.FAILED])
def test_a_call_that_waits_when_the_pool_ends_gets_the_reason(state: PoolState) -> None:
    at, _ = gate()
    at.pause()
    done: list[object] = []
    thread = waiting_call(at, done)
    assert at.end(state, "node 3 is gone")
    thread.join(5)
    assert isinstance(done[0], PoolClosedError)
    assert "node 3 is gone" in str(done[0])
    assert done[0].state == state.value
    assert at.n_waiting == 0
    with pytest.raises(PoolClosedError):
        at.enter()


def test_a_pool_ends_once() -> None:
    at, moves = gate()
    assert at.end(PoolState.CLOSED)
    assert not at.end(PoolState.CLOSED)
    assert not at.end(PoolState.FAILED)
    assert moves == [(PoolState.CLOSED, "")]


def test_a_failed_pool_can_still_be_closed() -> None:
    at, _ = gate()
    at.end(PoolState.FAILED, "lost")
    assert at.end(PoolState.CLOSED)


def test_moves_that_the_table_forbids_are_refused_and_change_nothing() -> None:
    at, moves = gate()
    with pytest.raises(StateError, match="pool pool is active, it cannot be resumed now"):
        at.resume()
    at.pause()
    with pytest.raises(StateError) as caught:
        at.pause()
    assert caught.value.state == "paused"
    assert [state for state, _ in moves] == [PoolState.PAUSED]


def test_waiting_for_a_change_ends_with_the_change_or_the_time() -> None:
    at, _ = gate()
    assert at.await_change({PoolState.ACTIVE}, 0.01) is PoolState.ACTIVE
    at.enter()
    at.pause()
    at.leave()
    assert at.await_change({PoolState.PAUSING}, 5) is PoolState.PAUSED


def test_every_state_can_be_left_for_closed_but_closed_itself() -> None:
    assert set(LEGAL_MOVES) == set(PoolState)
    assert LEGAL_MOVES[PoolState.CLOSED] == frozenset()
    for state in set(PoolState) - {PoolState.CLOSED}:
        assert PoolState.CLOSED in LEGAL_MOVES[state]


def test_many_threads_leave_a_true_count() -> None:
    at, _ = gate()

    def calls() -> None:
        for _ in range(200):
            at.enter()
            at.leave()

    threads = [threading.Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert at.n_in_flight == 0
    assert at.pause() is PoolState.PAUSED
