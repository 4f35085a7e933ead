"""Steering a running driver: pause, resume, resize, split and merge its pools, move a group, cancel.

Each answers 202 with the operation it became; the driver carries it out at its next safe point. ``?dry_run=true``
answers 200 with the plan instead. Handlers translate, nothing more: ``submit`` has the rules.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path
from starlette.responses import Response

from app.api.bodies import MAX_NAME, ControlRequest, MergeRequest, MoveRequest, ResizeRequest, SplitRequest
from app.api.context import Context, Controller, no_query, require_control
from app.api.documents import CONTROL_PROBLEMS, OperationDocument, PlanDocument
from app.api.problems import ProblemError, not_found
from app.api.responses import json_response, page
from app.api.routes.submit import Asked, plane_of, submit, unfit
from app.api.views import operation_row, operation_view
from core.control.commands import Merge, Move, Part, Pause, Resize, Resume, Split

router = APIRouter(prefix="/api/v1", responses=CONTROL_PROBLEMS, dependencies=[Depends(require_control)])

PoolName = Annotated[str, Path(max_length=MAX_NAME)]
GroupName = Annotated[str, Path(max_length=MAX_NAME)]
Said = Annotated[ControlRequest | None, Body()]
_COMMAND: dict[str, Any] = {
    "status_code": 202,
    "responses": {
        202: {"model": OperationDocument, "description": "Accepted; Location is the URL of the operation"},
        200: {"model": PlanDocument, "description": "The plan, for a dry run"},
    },
}


@router.post("/resource-pools/merge", operation_id="merge_pools", tags=["resource pools"], **_COMMAND)
async def merge_pools(asked: Asked, body: MergeRequest) -> Response:
    """Merge pools into one; all groups run on all of its slots."""
    generations = tuple(body.expected_generations.items())
    command = Merge(tuple(body.pools), body.name, asked.who.name, expected_generations=generations)
    return await submit(asked, command, body)


@router.post("/resource-pools/{name:path}/pause", operation_id="pause_pool", tags=["resource pools"], **_COMMAND)
async def pause_pool(asked: Asked, name: PoolName, body: Said = None) -> Response:
    """Pause a pool: new calls on its groups wait, running calls finish."""
    return await submit(asked, Pause(name, asked.who.name), body)


@router.post("/resource-pools/{name:path}/resume", operation_id="resume_pool", tags=["resource pools"], **_COMMAND)
async def resume_pool(asked: Asked, name: PoolName, body: Said = None) -> Response:
    """Resume a paused pool."""
    return await submit(asked, Resume(name, asked.who.name), body)


@router.post("/resource-pools/{name:path}/resize", operation_id="resize_pool", tags=["resource pools"], **_COMMAND)
async def resize_pool(asked: Asked, name: PoolName, body: ResizeRequest) -> Response:
    """Change the processes per node of a pool; its groups are rebuilt."""
    return await submit(asked, Resize(name, asked.who.name, tuple(body.process_on_nodes)), body)


@router.post("/resource-pools/{name:path}/split", operation_id="split_pool", tags=["resource pools"], **_COMMAND)
async def split_pool(asked: Asked, name: PoolName, body: SplitRequest) -> Response:
    """Split a pool into several; each group is assigned to one of them."""
    parts = tuple(Part(part.name, part.size, tuple(part.groups)) for part in body.parts)
    return await submit(asked, Split(name, asked.who.name, parts), body)


@router.post("/worker-groups/{name:path}/move", operation_id="move_group", tags=["worker groups"], **_COMMAND)
async def move_group(asked: Asked, name: GroupName, body: MoveRequest) -> Response:
    """Move a group, and groups that share its processes, to another pool."""
    return await submit(asked, Move(name, body.pool, asked.who.name), body)


@router.post(
    "/operations/{operation_id}/cancel",
    operation_id="cancel_operation",
    tags=["operations"],
    dependencies=[Depends(no_query)],
    responses={200: {"model": OperationDocument}},
)
async def cancel_operation(
    context: Context,
    _who: Controller,
    operation_id: Annotated[str, Path(max_length=MAX_NAME)],
    body: dict[str, str] | None = None,
) -> Response:
    """Cancel an operation that is not running yet."""
    if body:
        raise ProblemError(unfit("body: must be empty", "body"))
    plane = plane_of(context)

    def cancel() -> Response:
        run = context.source.run()
        return json_response(operation_view(operation_row(plane.cancel(operation_id), run), run))

    return await context.commands.ask(cancel)


@router.post(
    "/calls/{call_id}/stacks",
    operation_id="dump_stacks",
    tags=["calls"],
    dependencies=[Depends(no_query)],
    responses={200: {"description": "Stacks as text, one item per pending rank"}},
)
async def dump_stacks(
    context: Context,
    _who: Controller,
    call_id: Annotated[int, Path(ge=1, le=2**53)],
    body: dict[str, str] | None = None,
) -> Response:
    """Return the stacks of the pending ranks of a call. Takes seconds and may send a signal to each rank."""
    if body:
        raise ProblemError(unfit("body: must be empty", "body"))
    plane_of(context)
    if context.stacks is None:
        raise ProblemError(not_found("the workers of this run are not reachable from this server"))
    dump = context.stacks

    def ask() -> Response:
        return json_response(page([{"rank": rank, "text": text} for rank, text in sorted(dump(call_id).items())], None))

    return await context.commands.ask(ask)
