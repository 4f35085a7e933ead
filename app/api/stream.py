"""The live channel: one producer looks for news twice a second, every browser is notified of changes.

An event carries small state and never rows; the browser asks again for the window it shows. A browser that is too slow
misses ticks in between and gets the newest. Events:

``tick``       ``{"seq", "until_ms", "state"}``: the run's record grew up to ``until_ms``.
``pool``       a pool as in ``/api/v1/resource-pools/{name}``, when it changed; one that is gone is closed.
``operation``  an operation as in ``/api/v1/operations/{id}``, when it moved on.
``resync``     the browser was away: what it shows may be old, ask for everything again.
``ping``       nothing was recorded for a few seconds, and the stream works: a browser polls when it hears nothing.
``end``        nothing more will come, the run is over or the server stops: close the stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app.api.limits import ReadPool
from app.api.views import operation_view, pool_row
from core.control.commands import ControlPlane
from web.rows import Pool, Run
from web.source import RunSource

_log = logging.getLogger("podium.server")
_N_OPERATIONS = 20
# A browser polls after three of these without an event (SILENCE_MS in web/static/js/stream.js).
PING_S = 5.0
_OVER = frozenset({"ended", "failed", "died"})


@dataclass(frozen=True, slots=True)
class News:
    """One event for a browser. ``key`` names the unread news that it replaces."""

    event: str
    key: str
    data: Any
    seq: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the producer saw at one look."""

    seq: int
    run: Run
    pools: tuple[Pool, ...] = ()
    operations: tuple[dict[str, Any], ...] = ()


def news_between(before: Snapshot | None, now: Snapshot) -> tuple[News, ...]:
    """Return the news that brings a browser from ``before`` to ``now``."""
    found: list[News] = []
    if before is None or (before.seq, before.run.state) != (now.seq, now.run.state):
        tick = {"seq": now.seq, "until_ms": now.run.duration_ms, "state": now.run.state}
        found.append(News("tick", "tick", tick, now.seq))
    pools = {pool.name: pool for pool in before.pools} if before else {}
    for pool in (*now.pools, *_gone(before, now)):
        if pools.get(pool.name) != pool:
            found.append(News("pool", f"pool {pool.name}", pool, now.seq))
    operations = {one["id"]: one for one in (before or now).operations}
    for one in now.operations:
        if operations.get(one["id"]) != one:
            found.append(News("operation", f"operation {one['id']}", one, now.seq))
    return tuple(found)


def _gone(before: Snapshot | None, now: Snapshot) -> tuple[Pool, ...]:
    """Return the pools that are no longer there, as closed: the control plane knows only those that are not."""
    names = {pool.name for pool in now.pools}
    return tuple(replace(pool, state="closed") for pool in (before.pools if before else ()) if pool.name not in names)


class Listener:
    """One browser's unread news: a later tick takes the place of an earlier one."""

    def __init__(self) -> None:
        """Start with nothing to read."""
        self._unread: dict[str, News] = {}
        self._something = asyncio.Event()

    def tell(self, news: tuple[News, ...]) -> None:
        """Add news; never waits."""
        for one in news:
            self._unread.pop(one.key, None)
            self._unread[one.key] = one
        self._something.set()

    async def read(self) -> tuple[News, ...]:
        """Wait for news and return all that is unread."""
        await self._something.wait()
        self._something.clear()
        unread = tuple(self._unread.values())
        self._unread.clear()
        return unread


class TickHub:
    """The one producer for all browsers; it works only while somebody listens.

    Everything but ``stop`` runs on the server's loop.
    """

    def __init__(
        self,
        source: RunSource,
        control: ControlPlane | None,
        reads: ReadPool,
        tick_s: float,
        ping_s: float = PING_S,
    ) -> None:
        """Look at ``source`` and, where there is one, ``control`` every ``tick_s`` seconds; ping when all is quiet."""
        self._source = source
        self._control = control
        self._reads = reads
        self._tick_s = tick_s
        self._ping_s = ping_s
        self._listeners: set[Listener] = set()
        self._producer: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._last: Snapshot | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    @property
    def n_listeners(self) -> int:
        """Return how many browsers listen."""
        return len(self._listeners)

    def stop(self) -> None:
        """End every stream; may be called from any thread, and twice."""
        self._stopped = True
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._begin_end)

    async def listen(self, last_seq: int | None) -> AsyncIterator[News]:
        """Yield news until the run is over or the server stops; ``last_seq`` is what the browser saw before."""
        self._loop = asyncio.get_running_loop()
        listener = Listener()
        self._listeners.add(listener)
        try:
            now = await self._reads.ask(partial(self._look, None))
            if last_seq is not None and last_seq != now.seq:
                yield News("resync", "resync", {"seq": now.seq}, now.seq)
            for one in news_between(None, now):
                yield one
            if self._stopped or now.run.state in _OVER:
                yield _end(now)
                return
            self._start_producer(now)
            while True:
                for one in await listener.read():
                    yield one
                    if one.event == "end":
                        return
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._producer is not None:
                self._producer.cancel()
                self._producer = None

    def _start_producer(self, now: Snapshot) -> None:
        if self._producer is None:
            self._last = now
            self._producer = asyncio.get_running_loop().create_task(self._produce())

    async def _produce(self) -> None:
        n_quiet = 0
        while True:
            await asyncio.sleep(self._tick_s)
            try:
                before = self._last
                now = await self._reads.ask(partial(self._look, before))
            except Exception:
                _log.warning("the live view failed to read the run", exc_info=True)
                continue
            self._last = now
            news = news_between(before, now)
            n_quiet = 0 if news else n_quiet + 1
            if n_quiet * self._tick_s >= self._ping_s:
                n_quiet = 0
                news = (News("ping", "ping", {}, now.seq),)
            self._tell(news)
            if now.run.state in _OVER:
                self._tell((_end(now),))

    def _look(self, before: Snapshot | None) -> Snapshot:
        """Look once, on a reading thread; while nothing was recorded this costs one small query."""
        seq = self._source.sequence()
        pools = self._pools(before, seq)
        if before is not None and before.seq == seq:
            # The run's time goes on while nothing is recorded, and a driver that died records nothing either.
            return replace(before, run=self._source.run(), pools=pools)
        run = self._source.run()
        operations = tuple(operation_view(one, run) for one in self._source.operations(_N_OPERATIONS, None))
        return Snapshot(seq, run, pools, operations)

    def _pools(self, before: Snapshot | None, seq: int) -> tuple[Pool, ...]:
        if self._control is not None:
            return tuple(pool_row(pool) for pool in self._control.pools())
        if before is not None and before.seq == seq:
            return before.pools
        return self._source.pools()

    def _tell(self, news: tuple[News, ...]) -> None:
        if news:
            for listener in self._listeners:
                listener.tell(news)

    def _begin_end(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._tell_end())

    async def _tell_end(self) -> None:
        """Look a last time, as the run's own end may be news, and close every stream whatever comes of it."""
        before = self._last
        news: tuple[News, ...] = (News("end", "end", {"state": ""}, 0),)
        try:
            now = await self._reads.ask(partial(self._look, before))
            news = (*news_between(before, now), _end(now))
        except Exception:
            _log.debug("the live view ended without a final update", exc_info=True)
        self._tell(news)


def _end(now: Snapshot) -> News:
    return News("end", "end", {"state": now.run.state}, now.seq)
