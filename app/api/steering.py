"""Steering a running driver: ``POST /api/v1/resource-pools/{name}/pause`` and its kin.

Each answers 202 with the operation it became; the driver carries it out at its next safe point. ``If-Match`` or
``expected_generation`` refuse the command if somebody changed the pool since; both may be left out, as pausing and
resuming lose nothing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.api.answers import json_answer
from app.api.collaborators import Collaborators, Controller, With, no_query
from app.api.documents import CONTROL_PROBLEMS
from app.api.problems import Problem, ProblemError
from app.api.reading import find_operation
from app.api.rules import READ_ONLY_HINT
from app.api.views import operation_view
from core.control.commands import Command, ControlPlane, Pause, Resume

router = APIRouter(prefix="/api/v1", responses=CONTROL_PROBLEMS, dependencies=[Depends(no_query)])
_MAX_DEADLINE_S = 24 * 3600.0

PoolName = Annotated[str, Path(max_length=200)]
IfMatch = Annotated[str | None, Header(description='The pool\'s ETag, such as "g3"', max_length=100)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[\x21-\x7e]{1,128}$")]


class ControlRequest(BaseModel):
    """What may be said with a command; an empty body says nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"expected_generation": 3}]})

    expected_generation: int | None = Field(None, ge=0, le=2**53)
    deadline_s: float | None = Field(None, gt=0, le=_MAX_DEADLINE_S, allow_inf_nan=False)


Said = Annotated[ControlRequest | None, Body()]


@router.post("/resource-pools/{name:path}/pause", operation_id="pause_pool", tags=["resource pools"], status_code=202)
async def pause_pool(
    request: Request,
    has: With,
    who: Controller,
    name: PoolName,
    body: Said = None,
    if_match: IfMatch = None,
    key: Key = None,
) -> Response:
    """Let no new call on the pool's groups start; a running call finishes."""
    return await _submit(request, has, _as_said(Pause(name, who.name), body, if_match), key)


@router.post("/resource-pools/{name:path}/resume", operation_id="resume_pool", tags=["resource pools"], status_code=202)
async def resume_pool(
    request: Request,
    has: With,
    who: Controller,
    name: PoolName,
    body: Said = None,
    if_match: IfMatch = None,
    key: Key = None,
) -> Response:
    """Let the pool's groups go on."""
    return await _submit(request, has, _as_said(Resume(name, who.name), body, if_match), key)


@router.post("/operations/{operation_id}/cancel", operation_id="cancel_operation", tags=["operations"])
async def cancel_operation(
    has: With, who: Controller, operation_id: Annotated[str, Path(max_length=200)], body: dict[str, str] | None = None
) -> Response:
    """Take back an operation that is not running yet."""
    if body:
        raise ProblemError(_unfit("body: cancel takes none"))
    plane = _plane(has)
    return await has.reads.ask(lambda: json_answer(operation_view(plane.cancel(operation_id), has.source.run())))


def _as_said(command: Command, body: ControlRequest | None, if_match: str | None) -> Command:
    """Return ``command`` with the generation and the deadline that the request names."""
    expected = _agreed(body.expected_generation if body else None, if_match)
    deadline_s = body.deadline_s if body else None
    return replace(
        command,
        expected_generation=expected,
        deadline_s=command.deadline_s if deadline_s is None else deadline_s,
    )


def _agreed(in_body: int | None, if_match: str | None) -> int | None:
    """Return the generation that header and body name."""
    if if_match is None or if_match.strip() == "*":
        return in_body
    found = re.fullmatch(r'"g(\d{1,15})"', if_match.strip())
    if found is None:
        raise ProblemError(_unfit('header.if-match: a pool\'s ETag looks like "g3", with its quotes'))
    if in_body is not None and in_body != int(found[1]):
        raise ProblemError(_unfit(f"If-Match says generation {found[1]}, the body says {in_body}"))
    return int(found[1])


def _unfit(detail: str) -> Problem:
    return Problem(422, "invalid-request", "The request does not fit", detail)


async def _submit(request: Request, has: Collaborators, command: Command, key: str | None) -> Response:
    plane = _plane(has)

    def do() -> Response:
        operation_id = has.remembered.once(key or "", repr(command), lambda: plane.submit(command).id)
        # For the audit entry that the guard makes of the answer.
        request.scope["podium.operation"] = operation_id
        view = operation_view(find_operation(has, operation_id), has.source.run())
        return json_answer(view, 202, {"Location": f"/api/v1/operations/{operation_id}"})

    return await has.reads.ask(do)


def _plane(has: Collaborators) -> ControlPlane:
    if has.is_over():
        detail = "the driver has ended; nothing is left to steer"
        raise ProblemError(Problem(409, "run-over", "The run is over", detail))
    if not has.controllable or has.control is None:
        raise ProblemError(Problem(403, "read-only", "Read-only", READ_ONLY_HINT))
    return has.control
