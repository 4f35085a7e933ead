"""A run, a control plane and an audit log that live in memory, for tests of the app's HTTP side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from fastapi import FastAPI

from app.api import Tokens, create_app
from app.settings import Limits, ServerSettings
from app.store.facts import AuditFacts
from tests.app_plane import STARTED_NS, MemoryPlane
from web import calls, rows
from web import source as web
from web.latency import LatencyMap, MethodLatency, RankMap
from web.rank_runs import MethodRuns
from web.rows import AuditEntry, CallInFlight, Death, Group, PoolGeneration
from web.steps import StepsSum

PORT = 4321
HOST = f"127.0.0.1:{PORT}"
URL = f"http://{HOST}"
STARTED_AT = "2026-01-02T03:04:05.678+00:00"


def some_run(**changes: object) -> rows.Run:
    """Return a running run of 60 s with 25 calls."""
    run = rows.Run(
        id="run-1",
        name="arithmetic",
        script="driver.py",
        state="running",
        started_at=STARTED_AT,
        duration_ms=60_000.0,
        host="node-a",
        pid=1,
        podium_version="0.1.0",
        python_version="3.11",
        ray_version="2.60",
        n_calls=25,
        n_failed_calls=0,
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def some_call(call_id: int, method: str = "generate", status: str = "ok") -> rows.CallRow:
    """Return one call of the group "rollout"."""
    return rows.CallRow(
        id=call_id,
        group="rollout",
        pool="pool",
        method=method,
        dispatch_mode="DP_COMPUTE_PROTO",
        execute_mode="ALL",
        blocking=True,
        step=1,
        status=status,
        started_ms=call_id * 100.0,
        duration_ms=50.0,
        rows=10,
        padding_rows=2,
        bytes_out=1000,
        bytes_in=2000,
    )


@dataclass
class MemorySource:
    """A run whose record is lists; ``seq`` grows when a test says so."""

    the_run: rows.Run = field(default_factory=some_run)
    call_rows: list[rows.CallRow] = field(default_factory=lambda: [some_call(i) for i in range(25, 0, -1)])
    the_pools: list[rows.Pool] = field(default_factory=lambda: [rows.Pool("pool", "active", 1, (2,), 2, ("rollout",))])
    ops: list[rows.Operation] = field(default_factory=list)
    the_events: list[rows.EventRow] = field(
        default_factory=lambda: [rows.EventRow(i, i * 10.0, "info", "notice", f"line {i}") for i in range(5, 0, -1)]
    )
    seq: int = 1
    lag_ms: float = 1.0

    def run(self) -> rows.Run:
        return self.the_run

    def recorder(self) -> rows.RecorderState:
        return rows.RecorderState(100, 0, None, self.lag_ms, 4096)

    def overview(self) -> web.Overview:
        return web.Overview(
            run=self.run(),
            recorder=self.recorder(),
            steps=(rows.Step(1, 3, 0.0, 20_000.0, (("reward", float("nan")),)),),
            methods=(),
            ranks=(),
            pools=self.pools(),
            workers=self.workers(),
            events=tuple(self.the_events),
            calls_per_s=0.4,
        )

    def timeline(self, from_ms: float | None, to_ms: float | None, px: int) -> web.Timeline:
        lane = web.Lane(0, "pool", "rollout", 0, "node-a", 11)
        begin, end = from_ms or 0.0, to_ms if to_ms is not None else self.the_run.duration_ms
        bars = web.Bars([0], [1], [0], [100.0], [150.0], [1.0], ["ok"])
        return web.Timeline(begin, end, self.the_run.duration_ms, "bars", (lane,), ("rollout.generate",), bars)

    def spans(self, from_ms: float | None, to_ms: float | None) -> web.Timeline | None:
        return None if to_ms is None else self.timeline(from_ms, to_ms, 100)

    def call(self, call_id: int) -> calls.CallDetail | None:
        for row in self.call_rows:
            if row.id == call_id:
                span = rows.RankSpan(0, "node-a", 100.0, 101.0, 149.0, 150.0, 0.1, "ok", 6, 6, 500, 1000)
                return calls.CallDetail(
                    row, 1, 0.0, 1.0, 1.0, 46.0, 1.0, 1.0, None, (6, 6), 10, (span,), 0, 48.0, 48.0, None, None
                )
        return None

    def calls(self, limit: int, cursor: int | None, narrowed: calls.CallFilter) -> calls.CallPage:
        found = [
            row
            for row in self.call_rows
            if (cursor is None or row.id < cursor)
            and narrowed.method in {"", row.method}
            and narrowed.group in {"", row.group}
            and narrowed.status in {"", row.status}
            and narrowed.step in {None, row.step}
        ]
        return calls.CallPage(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    def pools(self) -> tuple[rows.Pool, ...]:
        return tuple(self.the_pools)

    def workers(self) -> tuple[rows.Worker, ...]:
        return (rows.Worker("rollout", "pool", 0, 0, "w0", 11, "node-a", "a1", "0", "alive", 5.0, None),)

    def events(self, limit: int, cursor: int | None) -> tuple[rows.EventRow, ...]:
        return tuple([one for one in self.the_events if cursor is None or one.id < cursor][:limit])

    def operations(self, limit: int, cursor: str | None) -> tuple[rows.Operation, ...]:
        ids = [one.id for one in self.ops]
        begin = ids.index(cursor) + 1 if cursor in ids else 0
        return tuple(self.ops[begin : begin + limit])

    def groups(self) -> tuple[Group, ...]:
        return (Group("rollout", "pool", "demo.Rollout", 2, 2, ("generate",), 1.0),)

    def deaths(self) -> tuple[Death, ...]:
        return ()

    def crash_text(self) -> str:
        return ""

    def in_flight(self, limit: int) -> tuple[CallInFlight, ...]:
        return ()

    def pool_generations(self) -> tuple[PoolGeneration, ...]:
        return ()

    def audit_entries(self, limit: int, cursor: int | None) -> tuple[AuditEntry, ...]:
        return ()

    def gaps(self) -> tuple[rows.Gap, ...]:
        return ()

    def latencies(self, from_ms: float | None, to_ms: float | None) -> tuple[MethodLatency, ...]:
        return ()

    def latency_map(
        self, group: str, method: str, from_ms: float | None, to_ms: float | None, px: int
    ) -> LatencyMap | None:
        return None

    def rank_map(self, group: str, from_ms: float | None, to_ms: float | None, px: int) -> RankMap | None:
        return None

    def steps_between(self, first: int, last: int) -> StepsSum:
        return StepsSum(first, last, 0, False, ())

    def rank_runs(self) -> tuple[MethodRuns, ...]:
        return ()

    def config(self) -> tuple[rows.ConfigValue, ...]:
        return (rows.ConfigValue("lr", "0.1"),)

    def sequence(self) -> int:
        return self.seq

    def close(self) -> None:
        self.seq = -1


@dataclass
class MemoryAudit:
    """Keeps audit entries in a list."""

    entries: list[AuditFacts] = field(default_factory=list)

    def audit(self, entry: AuditFacts) -> bool:
        self.entries.append(entry)
        return True


@dataclass
class House:
    """An app with everything it was made from."""

    source: MemorySource = field(default_factory=MemorySource)
    plane: MemoryPlane | None = field(default_factory=MemoryPlane)
    audit: MemoryAudit = field(default_factory=MemoryAudit)
    control: bool = True
    limits: Limits = field(default_factory=lambda: Limits(requests_per_s=1000.0, n_burst=1000))
    root_path: str = ""
    metrics_open: bool = False
    tokens: Tokens = field(init=False)
    app: FastAPI = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = Tokens.make(self.control)
        settings = ServerSettings(
            port=PORT,
            control=self.control,
            limits=self.limits,
            root_path=self.root_path,
            metrics_open=self.metrics_open,
        )
        self.app = create_app(
            self.source, self.plane, settings, tokens=self.tokens, audit=self.audit, now_ns=lambda: STARTED_NS
        )

    def visitor(self, token: str | None = None, **headers: str) -> httpx.AsyncClient:
        """Return a client that sends the read token (another, or with "" none) and ``headers``."""
        token = self.tokens.read if token is None else token
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app), base_url=URL, headers={**bearer, **headers}
        )

    def controller(self, **headers: str) -> httpx.AsyncClient:
        """Return a client with the control token."""
        return self.visitor(self.tokens.control, **headers)


def answer(house: House, method: str, path: str, **request: Any) -> httpx.Response:
    """Send one request with the control token (or the headers given)."""
    token = request.pop("token", house.tokens.control)

    async def send() -> httpx.Response:
        async with house.visitor(token) as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())


def get(path: str, house: House | None = None, **request: Any) -> httpx.Response:
    return answer(house or House(), "GET", path, **request)


def post(house: House, path: str, body: object = None, **headers: str) -> httpx.Response:
    return answer(house, "POST", path, json={} if body is None else body, headers=headers)


def check_problem(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["type"] == f"urn:podium:problem:{slug}"
    assert problem["status"] == status
    assert problem["instance"] == response.request.url.path
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem["title"]
    return problem
