"""Steering a running driver: a route for each command of ``web.commands``, cancelling, stacks.

A command answers 202 with its operation; the driver executes it at its next safe point. ``?dry_run=true`` answers 200
with the plan instead. Handlers translate, nothing more: ``submit`` has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Path
from starlette.responses import Response

from app.api.bodies import MAX_NAME, ControlRequest, command_of, request_model
from app.api.context import Context, Controller, no_query, require_control
from app.api.documents import CONTROL_PROBLEMS, OperationDocument, PlanDocument
from app.api.problems import ProblemError, not_found
from app.api.responses import json_response, page
from app.api.routes.submit import Asked, Asking, plane_of, submit, unfit
from app.api.views import operation_row, operation_view
from web.commands import COMMANDS, CommandDefinition

router = APIRouter(prefix="/api/v1", responses=CONTROL_PROBLEMS, dependencies=[Depends(require_control)])

_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {"model": OperationDocument, "description": "Accepted; Location is the URL of the operation"},
    200: {"model": PlanDocument, "description": "The plan, for a dry run"},
}


def _endpoint(definition: CommandDefinition) -> Callable[..., Awaitable[Response]]:
    """Return the function that answers the route of a command; FastAPI reads what it takes from its signature."""
    model = request_model(definition)

    async def endpoint(asked: Asking, body: ControlRequest | None = None, name: str = "") -> Response:
        command = command_of(definition, body, asked.who.name, **dict.fromkeys(definition.in_path, name))
        return await submit(asked, command, body)

    keyword = Parameter.KEYWORD_ONLY
    parameters = [Parameter("asked", keyword, annotation=Asked)]
    if definition.in_path:
        parameters.append(Parameter("name", keyword, annotation=Annotated[str, Path(max_length=MAX_NAME)]))
    if definition.in_body:
        parameters.append(Parameter("body", keyword, annotation=model))
    else:
        parameters.append(Parameter("body", keyword, annotation=Annotated[model | None, Body()], default=None))
    endpoint.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return endpoint


for _definition in COMMANDS:
    _subject = "_".join(_definition.in_path) or "pools"
    router.add_api_route(
        re.sub(r"{\w+}", "{name:path}", _definition.path),
        _endpoint(_definition),
        methods=["POST"],
        name=f"{_definition.kind}_{_subject}",
        operation_id=f"{_definition.kind}_{_subject}",
        tags=["worker groups" if _subject == "group" else "resource pools"],
        description=_definition.summary,
        status_code=202,
        responses=_ANSWERS,
    )


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
