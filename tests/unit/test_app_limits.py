from __future__ import annotations

import asyncio
import threading

import pytest

from app.api.idempotency import IdempotencyKeys
from app.api.limits import RateLimiter, ReadPool, Seats
from app.api.problems import ProblemError


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_allowed_once_and_then_the_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(per_s=20.0, n_burst=40, clock_s=clock)
    assert sum(limiter.take("read") for _ in range(100)) == 40
    clock.now_s += 1.0
    assert sum(limiter.take("read") for _ in range(100)) == 20


def test_one_visitors_flood_leaves_the_other_alone() -> None:
    limiter = RateLimiter(per_s=1.0, n_burst=5, clock_s=Clock())
    while limiter.take("refused"):
        pass
    assert limiter.take("read")


def test_seats_are_given_back() -> None:
    seats = Seats(2)
    assert [seats.take(), seats.take(), seats.take()] == [True, True, False]
    seats.give_back()
    assert seats.take()


def test_the_read_pool_turns_away_those_who_would_wait_too_long() -> None:
    gate = threading.Event()

    async def crowd() -> list[object]:
        pool = ReadPool(n_threads=1, n_waiting=2)
        asked = [asyncio.create_task(pool.ask(lambda: gate.wait(5))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError) as refused:
            await pool.ask(lambda: True)
        gate.set()
        return [refused.value.problem.status, refused.value.problem.headers, *await asyncio.gather(*asked)]

    assert asyncio.run(crowd()) == [503, (("Retry-After", "1"),), True, True, True]


def test_one_key_does_one_deed() -> None:
    idempotency_keys, done = IdempotencyKeys(), []

    def submit() -> str:
        done.append(1)
        return f"op-{len(done)}"

    assert [idempotency_keys.run_once("k", "same", submit) for _ in range(3)] == ["op-1"] * 3
    assert idempotency_keys.run_once("", "same", submit) == "op-2"
    assert idempotency_keys.run_once("", "same", submit) == "op-3"


def test_one_key_for_two_requests_is_refused() -> None:
    idempotency_keys = IdempotencyKeys()
    idempotency_keys.run_once("k", "pause a", lambda: "op-1")
    with pytest.raises(ProblemError) as refused:
        idempotency_keys.run_once("k", "pause b", lambda: "op-2")
    assert refused.value.problem.status == 422


def test_a_deed_that_failed_can_be_tried_again_under_its_key() -> None:
    idempotency_keys = IdempotencyKeys()

    def fails() -> str:
        raise LookupError

    with pytest.raises(LookupError):
        idempotency_keys.run_once("k", "x", fails)
    assert idempotency_keys.run_once("k", "x", lambda: "op-1") == "op-1"


def test_keys_are_forgotten_after_a_day_and_beyond_a_thousand() -> None:
    clock = Clock()
    idempotency_keys = IdempotencyKeys(clock)
    idempotency_keys.run_once("old", "x", lambda: "op-1")
    clock.now_s += 25 * 3600
    assert idempotency_keys.run_once("old", "x", lambda: "op-2") == "op-2"
    for number in range(1000):
        idempotency_keys.run_once(str(number), "x", lambda: "op-3")
    assert idempotency_keys.run_once("old", "x", lambda: "op-4") == "op-4"
