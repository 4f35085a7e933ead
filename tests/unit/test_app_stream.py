from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from app.api.limits import ReadPool
from app.api.stream import Listener, News, Snapshot, TickHub, news_between
from app.settings import Limits
from tests.app_doubles import House, MemorySource, some_run
from tests.app_plane import MemoryPlane
from web import rows


def hub(source: MemorySource, plane: MemoryPlane | None = None, tick_s: float = 0.01) -> TickHub:
    return TickHub(source, plane, ReadPool(2, 8), tick_s)


async def until(events: AsyncIterator[News], name: str) -> News:
    async for one in events:
        if one.event == name:
            return one
    raise AssertionError(f"the stream ended without {name}")


def a_pool(name: str, state: str = "active") -> rows.Pool:
    """Return a pool of four processes."""
    return rows.Pool(name, state, 0, (4,), 4, ())


def test_a_tick_says_that_the_record_grew() -> None:
    before = Snapshot(1, some_run())
    now = Snapshot(2, some_run(duration_ms=61_000.0))
    assert news_between(before, now) == (News("tick", "tick", {"seq": 2, "until_ms": 61_000.0, "state": "running"}, 2),)
    assert news_between(now, replace(now, run=some_run(duration_ms=62_000.0))) == ()
    assert [one.event for one in news_between(now, replace(now, run=some_run(state="died")))] == ["tick"]


def test_only_what_changed_is_told() -> None:
    pools = (a_pool("a"), a_pool("b"))
    changed = (a_pool("a"), a_pool("b", "paused"))
    operations: tuple[dict[str, object], ...] = ({"id": "op-1", "state": "running"},)
    before = Snapshot(1, some_run(), pools, operations)
    found = news_between(before, replace(before, pools=changed, operations=({"id": "op-1", "state": "succeeded"},)))
    assert [(one.event, one.data) for one in found] == [
        ("pool", changed[1]),
        ("operation", {"id": "op-1", "state": "succeeded"}),
    ]


def test_a_pool_that_a_change_replaced_is_told_as_closed_once() -> None:
    whole = (a_pool("all", "changing"),)
    parts = (a_pool("a"), a_pool("b"))
    before = Snapshot(1, some_run(), whole)
    now = replace(before, pools=parts)
    assert [one.data for one in news_between(before, now)] == [*parts, replace(whole[0], state="closed")]
    assert news_between(now, now) == ()


def test_a_browser_that_is_slow_gets_the_newest_tick_only() -> None:
    async def read() -> tuple[News, ...]:
        listener = Listener()
        for seq in range(1000):
            listener.tell((News("tick", "tick", {"seq": seq}, seq),))
        listener.tell((News("pool", "pool a", {}, 999),))
        return await listener.read()

    unread = asyncio.run(read())
    assert [(one.event, one.seq) for one in unread] == [("tick", 999), ("pool", 999)]


def test_a_listener_hears_of_growth_and_of_the_end() -> None:
    async def listen() -> list[str]:
        source = MemorySource()
        one = hub(source)
        events = one.listen(None)
        first = await until(events, "tick")
        source.seq = 2
        second = await until(events, "tick")
        source.the_run = some_run(state="ended")
        third = await until(events, "tick")
        await until(events, "end")
        return [str(first.seq), str(second.seq), third.data["state"]]

    assert asyncio.run(listen()) == ["1", "2", "ended"]


def test_a_pools_change_is_told_from_the_live_plane() -> None:
    async def listen() -> Any:
        plane = MemoryPlane()
        events = hub(MemorySource(), plane).listen(None)
        await until(events, "tick")
        await until(events, "pool")
        await until(events, "pool")
        plane.by_name["pool"] = replace(plane.by_name["pool"], state="paused", generation=4)
        return (await until(events, "pool")).data

    pool = asyncio.run(listen())
    assert (pool.name, pool.state, pool.generation) == ("pool", "paused", 4)


def test_stopping_ends_every_stream_from_another_thread_and_twice() -> None:
    async def listen() -> list[str]:
        source = MemorySource()
        one = hub(source, tick_s=60.0)

        async def last() -> str:
            seen = [news.event async for news in one.listen(None)]
            return seen[-1]

        tasks = [asyncio.create_task(last()) for _ in range(3)]
        while one.n_listeners < 3 or one._producer is None:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(one.stop)
        await asyncio.to_thread(one.stop)
        ends = await asyncio.wait_for(asyncio.gather(*tasks), 2.0)
        assert one.n_listeners == 0
        late = [news.event async for news in one.listen(None)]
        return [*ends, late[-1]]

    assert asyncio.run(listen()) == ["end"] * 4


def test_a_browser_that_was_away_is_told_to_ask_again() -> None:
    async def first(last_seq: int | None) -> str:
        return (await anext(hub(MemorySource(seq=5)).listen(last_seq))).event

    assert asyncio.run(first(4)) == "resync"
    assert asyncio.run(first(5)) == "tick"
    assert asyncio.run(first(None)) == "tick"


def test_nobody_looks_while_nobody_listens() -> None:
    async def listen() -> int:
        source = MemorySource()
        one = hub(source)
        events = one.listen(None)
        await until(events, "tick")
        await events.aclose()  # type: ignore[attr-defined]
        assert one.n_listeners == 0
        source.seq = -5
        looks = []
        source.sequence = lambda: looks.append(1) or 1  # type: ignore[method-assign, func-returns-value]
        await asyncio.sleep(0.05)
        return len(looks)

    assert asyncio.run(listen()) == 0


def test_a_stream_without_news_pings_so_that_a_browser_knows_that_it_works() -> None:
    async def listen() -> list[str]:
        source = MemorySource(ops=[])
        events = TickHub(source, None, ReadPool(2, 8), tick_s=0.01, ping_s=0.03).listen(None)
        await until(events, "pool")
        first = await anext(events)
        source.seq += 1
        return [first.event, *[(await until(events, name)).event for name in ("tick", "ping")]]

    assert asyncio.run(listen()) == ["ping", "tick", "ping"]


def test_one_look_that_fails_does_not_end_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    class Shaky(MemorySource):
        fails: int = 0

        def sequence(self) -> int:
            if self.fails:
                self.fails -= 1
                raise OSError("gone for a moment")
            return self.seq

    async def listen() -> int:
        source = Shaky()
        events = hub(source).listen(None)
        await until(events, "tick")
        source.fails, source.seq = 1, 7
        return (await until(events, "tick")).seq

    assert asyncio.run(listen()) == 7
    assert "failed to read the run" in caplog.text


Request = Callable[[], Awaitable[Any]]


def test_the_streams_text_is_as_browsers_read_it_and_ends_for_a_run_that_is_over() -> None:
    known = rows.Operation("op-1", "pause", "pool", "failed", "x", 1.0, 2.0, "", "", "")
    house = House(MemorySource(the_run=some_run(state="died"), seq=9, ops=[known]), plane=None)

    async def read() -> tuple[str, str, str]:
        async with house.visitor() as client:
            response = await client.get("/api/v1/stream", headers={"Last-Event-ID": "3"})
            return response.text, response.headers["content-type"], response.headers["cache-control"]

    text, kind, cache = asyncio.run(read())
    assert kind.startswith("text/event-stream")
    assert cache == "no-store"
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    assert [block["event"] for block in blocks] == ["resync", "tick", "pool", "end"]
    assert json.loads(blocks[1]["data"]) == {"seq": 9, "until_ms": 60_000.0, "state": "died"}
    assert {block["id"] for block in blocks} == {"9"}


def test_one_stream_too_many_is_told_to_come_back() -> None:
    house = House(MemorySource(the_run=some_run(state="ended")), limits=Limits(n_streams=0))

    async def read() -> tuple[int, str]:
        async with house.visitor() as client:
            response = await client.get("/api/v1/stream")
            return response.status_code, response.json()["type"]

    assert asyncio.run(read()) == (503, "urn:podium:problem:too-many-streams")


def test_a_stream_gives_its_seat_back() -> None:
    house = House(MemorySource(the_run=some_run(state="ended")), limits=Limits(n_streams=1))

    async def read() -> list[int]:
        async with house.visitor() as client:
            return [(await client.get("/api/v1/stream")).status_code for _ in range(4)]

    assert asyncio.run(read()) == [200] * 4
    assert house.app.state.context.seats.n_taken == 0
