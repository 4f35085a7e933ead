"""Questions about the run: ``GET /api/v1/...``. Handlers translate, nothing more; GET changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.api import in_flight, operations
from app.api.context import AppContext, Context, Who, check_run, no_query
from app.api.documents import PROBLEMS, OperationDocument
from app.api.problems import ProblemError, not_found
from app.api.responses import json_response, page
from app.api.tokens import Scope
from app.api.views import operation_view, pool_row
from web import calls, rows, source
from web.rows import Group

router = APIRouter(prefix="/api/v1", responses=PROBLEMS)
_NO_QUERY = [Depends(no_query)]
_FAR_MS = 1e12
_MAX_ID = 2**53

RunId = Annotated[str, Path(description="The run's id, or 'current'", max_length=200)]


class _Asked(BaseModel):
    """Query parameters; one that we do not know is refused, as a misspelt filter would otherwise show everything."""

    model_config = ConfigDict(extra="forbid")


class CallsAsked(_Asked):
    """What the list of calls is narrowed to."""

    limit: int = Field(100, ge=1, le=1000)
    cursor: int | None = Field(None, ge=0, le=_MAX_ID)
    group: str = Field("", max_length=200)
    method: str = Field("", max_length=200)
    status: Literal["", "running", "ok", "error", "died", "cancelled"] = ""
    step: int | None = Field(None, ge=0, le=_MAX_ID)
    min_ms: float | None = Field(None, ge=0, le=_FAR_MS, allow_inf_nan=False, description="Minimum duration in ms")
    above_p95: bool = Field(False, description="Slower than the p95 of its method over the whole run")
    padding_above: float | None = Field(
        None, ge=0, le=100, allow_inf_nan=False, description="Minimum padding in percent of the rows sent"
    )


def narrowed_to(asked: CallsAsked) -> calls.CallFilter:
    """Return the filter that a query asks for."""
    padding = None if asked.padding_above is None else asked.padding_above / 100
    return calls.CallFilter(asked.group, asked.method, asked.status, asked.step, asked.min_ms, asked.above_p95, padding)


class EventsAsked(_Asked):
    """Which page of the events."""

    limit: int = Field(100, ge=1, le=1000)
    cursor: int | None = Field(None, ge=0, le=_MAX_ID)


class AuditAsked(_Asked):
    """Which page of the audit entries."""

    limit: int = Field(100, ge=1, le=1000)
    cursor: int | None = Field(None, ge=0, le=_MAX_ID)


class OperationsAsked(_Asked):
    """Which page of the operations."""

    limit: int = Field(100, ge=1, le=1000)
    cursor: str | None = Field(None, max_length=200)


class TimelineAsked(_Asked):
    """Which window, in ms since the run's start, for a figure how many pixels wide."""

    from_ms: float | None = Field(None, alias="from", ge=-_FAR_MS, le=_FAR_MS, allow_inf_nan=False)
    to_ms: float | None = Field(None, alias="to", ge=-_FAR_MS, le=_FAR_MS, allow_inf_nan=False)
    px: int = Field(1200, ge=100, le=10_000)


@router.get("/session", operation_id="get_session", tags=["session"], dependencies=_NO_QUERY)
async def get_session(context: Context, who: Who) -> Response:
    """Say what this visitor may do, and the X-CSRF value that its scripts need for it."""
    may_control = context.controllable and who.scope is Scope.CONTROL
    return json_response(
        {"scope": who.scope.value, "may_control": may_control, "csrf": context.tokens.csrf if may_control else None}
    )


@router.get("/runs", operation_id="list_runs", tags=["runs"], dependencies=_NO_QUERY)
async def list_runs(context: Context) -> Response:
    """List the runs of this server: the one it shows."""
    run = await context.reads.ask(context.source.run)
    return json_response(page([replace(run, controllable=context.controllable)], None))


@router.get(
    "/runs/{run_id}",
    operation_id="get_run",
    tags=["runs"],
    dependencies=_NO_QUERY,
    responses={200: {"model": rows.Run}},
)
async def get_run(context: Context, run_id: RunId) -> Response:
    """Return the run itself."""
    run = await context.reads.ask(context.source.run)
    check_run(run, run_id)
    return json_response(replace(run, controllable=context.controllable))


@router.get(
    "/runs/{run_id}/overview",
    operation_id="get_overview",
    tags=["runs"],
    dependencies=_NO_QUERY,
    responses={200: {"model": source.Overview}},
)
async def get_overview(context: Context, run_id: RunId) -> Response:
    """Return the first page's numbers."""

    def ask() -> Response:
        overview = context.source.overview()
        check_run(overview.run, run_id)
        return json_response(replace(overview, run=replace(overview.run, controllable=context.controllable)))

    return await context.reads.ask(ask)


@router.get(
    "/runs/{run_id}/timeline",
    operation_id="get_timeline",
    tags=["runs"],
    responses={200: {"model": source.Timeline}},
)
async def get_timeline(context: Context, run_id: RunId, asked: Annotated[TimelineAsked, Query()]) -> Response:
    """Return a window of the run as parallel columns: bars while they can be told apart, heat otherwise."""

    def ask() -> Response:
        check_run(context.source.run(), run_id)
        return json_response(context.source.timeline(asked.from_ms, asked.to_ms, asked.px))

    return await context.reads.ask(ask)


@router.get("/calls", operation_id="list_calls", tags=["calls"], responses={200: {"model": calls.CallPage}})
async def list_calls(context: Context, asked: Annotated[CallsAsked, Query()]) -> Response:
    """List calls, newest first."""
    narrowed = narrowed_to(asked)
    return await context.reads.ask(lambda: json_response(context.source.calls(asked.limit, asked.cursor, narrowed)))


@router.get(
    "/calls/{call_id}",
    operation_id="get_call",
    tags=["calls"],
    dependencies=_NO_QUERY,
    responses={200: {"model": calls.CallDetail}},
)
async def get_call(context: Context, call_id: Annotated[int, Path(ge=1, le=_MAX_ID)]) -> Response:
    """Return one call with its ranks."""

    def ask() -> Response:
        found = context.source.call(call_id)
        if found is None:
            raise ProblemError(not_found(f"call {call_id} does not exist in this run, or was pruned"))
        return json_response(found)

    return await context.reads.ask(ask)


@router.get("/workers", operation_id="list_workers", tags=["workers"], dependencies=_NO_QUERY)
async def list_workers(context: Context) -> Response:
    """List every worker the run had."""
    return await context.reads.ask(lambda: json_response(page(context.source.workers(), None)))


@router.get("/events", operation_id="list_events", tags=["events"])
async def list_events(context: Context, asked: Annotated[EventsAsked, Query()]) -> Response:
    """List what happened, newest first."""

    def ask() -> Response:
        found = context.source.events(asked.limit, asked.cursor)
        return json_response(page(found, found[-1].id if len(found) == asked.limit else None))

    return await context.reads.ask(ask)


@router.get("/now", operation_id="get_now", tags=["calls"], dependencies=_NO_QUERY)
async def get_now(context: Context) -> Response:
    """List the calls in flight, the oldest first, with the ranks that have not answered and for how long."""
    return await context.reads.ask(lambda: json_response(page(in_flight.calls_now(context), None)))


@router.get("/worker-groups", operation_id="list_groups", tags=["worker groups"], dependencies=_NO_QUERY)
async def list_groups(context: Context) -> Response:
    """List every worker group the run had."""
    return await context.reads.ask(lambda: json_response(page(_groups(context), None)))


@router.get("/config", operation_id="list_config", tags=["runs"], dependencies=_NO_QUERY)
async def list_config(context: Context) -> Response:
    """List the values of its configuration that the driver chose to show, by name."""
    return await context.reads.ask(lambda: json_response(page(context.source.config(), None)))


@router.get("/audit-entries", operation_id="list_audit_entries", tags=["operations"])
async def list_audit_entries(context: Context, asked: Annotated[AuditAsked, Query()]) -> Response:
    """List attempts to change something, also refused ones, newest first."""

    def ask() -> Response:
        found = context.source.audit_entries(asked.limit, asked.cursor)
        return json_response(page(found, found[-1].id if len(found) == asked.limit else None))

    return await context.reads.ask(ask)


@router.get(
    "/operations",
    operation_id="list_operations",
    tags=["operations"],
    responses={200: {"description": "A page of operations as of `/operations/{operation_id}`"}},
)
async def list_operations(context: Context, asked: Annotated[OperationsAsked, Query()]) -> Response:
    """List control operations, newest first."""

    def ask() -> Response:
        found = operations.list_operations(context, asked.limit, asked.cursor)
        run = context.source.run()
        items = [operation_view(one, run) for one in found]
        return json_response(page(items, found[-1].id if len(found) == asked.limit else None))

    return await context.reads.ask(ask)


@router.get(
    "/operations/{operation_id}",
    operation_id="get_operation",
    tags=["operations"],
    dependencies=_NO_QUERY,
    responses={200: {"model": OperationDocument}},
)
async def get_operation(context: Context, operation_id: Annotated[str, Path(max_length=200)]) -> Response:
    """Return one operation as it stands."""

    def ask() -> Response:
        return json_response(operation_view(operations.find_operation(context, operation_id), context.source.run()))

    return await context.reads.ask(ask)


@router.get("/resource-pools", operation_id="list_pools", tags=["resource pools"], dependencies=_NO_QUERY)
async def list_pools(context: Context) -> Response:
    """List the pools, as they stand now where the driver runs."""
    return await context.reads.ask(lambda: json_response(page(_pools(context), None)))


@router.get(
    "/resource-pools/{name:path}",
    operation_id="get_pool",
    tags=["resource pools"],
    dependencies=_NO_QUERY,
    responses={200: {"model": rows.Pool}},
)
async def get_pool(context: Context, name: Annotated[str, Path(max_length=200)]) -> Response:
    """Return one pool; its ``ETag`` names its generation, for ``If-Match``."""

    def ask() -> Response:
        pool = find_pool(context, name)
        return json_response(pool, headers={"ETag": f'"g{pool.generation}"'})

    return await context.reads.ask(ask)


def find_pool(context: AppContext, name: str) -> rows.Pool:
    """Return a pool from the live plane, else from the record.

    Raises:
        ProblemError: There is no pool of that name.
        UnknownNameError: The live plane has none.
    """
    if context.control is not None:
        return pool_row(context.control.pool(name))
    for pool in context.source.pools():
        if pool.name == name:
            return pool
    raise ProblemError(not_found(f"no resource pool {name!r} in this run"))


def _pools(context: AppContext) -> tuple[rows.Pool, ...]:
    if context.control is None:
        return context.source.pools()
    return tuple(pool_row(pool) for pool in context.control.pools())


def _groups(context: AppContext) -> list[Group]:
    """Return the groups, those that stand where the live plane says they are: the record is a moment behind."""
    live = {name: pool for pool in (context.control.pools() if context.control else ()) for name in pool.groups}
    return [
        replace(group, pool=live[group.name].name, world_size=live[group.name].world_size)
        if group.name in live and group.closed_ms is None
        else group
        for group in context.source.groups()
    ]
