"""How a command gets from a request to the control plane: preconditions, a dry run, one operation per key, refusals."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from starlette.responses import Response

from app.api.bodies import ControlRequest
from app.api.context import AppContext, Context, Controller
from app.api.problems import FieldProblem, Problem, ProblemError, problem_of
from app.api.responses import json_response
from app.api.rules import READ_ONLY_HINT, Visitor
from app.api.views import brief_operation, operation_row, operation_view, plan_document
from core.control.commands import (
    Command,
    ControlPlane,
    Merge,
    Operation,
    OperationState,
    Plan,
    expected_generations,
)
from core.errors import (
    GenerationConflictError,
    LiveStateError,
    PodiumError,
    StateError,
    UnknownNameError,
    UsageError,
)
from web.rendering import render_plan

IfMatch = Annotated[str | None, Header(description='ETag of the pool, for example "g3"', max_length=100)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Requests with the same key and body are one operation",
        pattern=r"^[\x21-\x7e]{1,128}$",
    ),
]
DryRun = Annotated[bool, Query(description="Return the plan without applying it")]
_RETRY = (("Retry-After", "1"),)


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, of whom, and what the request's head says of it."""

    request: Request
    context: AppContext
    who: Visitor
    if_match: str | None
    key: str | None
    dry_run: bool


def asking(
    request: Request,
    context: Context,
    who: Controller,
    if_match: IfMatch = None,
    key: Key = None,
    dry_run: DryRun = False,
) -> Asking:
    """Return what the head of a command says.

    Raises:
        ProblemError: A query parameter that no command takes.
    """
    for name in request.query_params:
        if name != "dry_run":
            raise ProblemError(unfit(f"query.{name[:40]}: unknown query parameter; only dry_run is supported"))
    return Asking(request, context, who, if_match, key, dry_run)


Asked = Annotated[Asking, Depends(asking)]


async def submit(asked: Asking, command: Command, body: ControlRequest | None) -> Response:
    """Return 202 with the operation that ``command`` became, or 200 with its plan for a dry run.

    Raises:
        ProblemError: The request contradicts itself, names no generation where it must, or the plane refused.
    """
    command = _as_said(command, body, asked)
    plane = plane_of(asked.context)
    if asked.dry_run:
        asked.request.scope["podium.note"] = "dry run"
        return await asked.context.commands.ask(lambda: _plan_answer(_planned(plane, command), asked.request))

    def do() -> Response:
        # Read first: once the plane has taken the command there must be nothing left that can fail.
        run = asked.context.source.run()
        keys = asked.context.idempotency_keys
        operation_id = keys.run_once(asked.key or "", repr(command), lambda: _taken(plane, command).id)
        # For the audit entry that the guard makes of the answer.
        asked.request.scope["podium.operation"] = operation_id
        location = f"{asked.context.settings.root_path}/api/v1/operations/{operation_id}"
        return json_response(
            operation_view(operation_row(plane.operation(operation_id), run), run), 202, {"Location": location}
        )

    return await asked.context.commands.ask(do)


def _plan_answer(plan: Plan, request: Request) -> Response:
    """Return a plan as JSON, or as a part of a page for the dialog of our own pages."""
    document = plan_document(plan)
    if "text/html" in request.headers.get("accept", ""):
        return Response(render_plan(document).encode("utf-8", "replace"), media_type="text/html")
    return json_response(document)


def plane_of(context: AppContext) -> ControlPlane:
    """Return the plane of a run that can be steered.

    Raises:
        ProblemError: The run is over or about to be, or it is read-only.
    """
    if context.is_over():
        detail = "the driver has ended; the run can no longer be changed"
        raise ProblemError(Problem(409, "run-over", "Run ended", detail))
    if context.is_ending():
        detail = "the driver is exiting and accepts no more commands"
        raise ProblemError(Problem(503, "ending", "Driver exiting", detail, headers=_RETRY))
    if not context.controllable or context.control is None:
        raise ProblemError(Problem(403, "read-only", "Read-only", READ_ONLY_HINT))
    return context.control


def unfit(detail: str, where: str = "") -> Problem:
    """Return the problem of a request that contradicts itself."""
    errors = (FieldProblem(where, detail),) if where else ()
    return Problem(422, "invalid-request", "Invalid request", detail, errors=errors)


def refusal(error: PodiumError, plane: ControlPlane, command: Command) -> Problem:
    """Return the problem of a command that the plane refused, with what the asker needs to go on."""
    problem = problem_of(error)
    match error:
        case UsageError():
            return replace(problem, errors=(FieldProblem("body", str(error)),))
        case UnknownNameError():
            ended = _last_change(plane, {error.name}) if error.name in expected_generations(command) else None
            return problem if ended is None else _gone(error.name, ended, expected_generations(command)[error.name])
        case GenerationConflictError():
            last = _last_change(plane, set(expected_generations(command)))
            more = (*problem.more, ("last_change", None if last is None else brief_operation(last)))
            return replace(problem, headers=(("ETag", f'"g{error.actual}"'),), more=more)
        case LiveStateError():
            return problem
        case StateError():
            under_way = next((one for one in plane.operations() if not one.state.done), None)
            if under_way is not None:
                return replace(problem, more=(*problem.more, ("operation", brief_operation(under_way))))
    return problem


def _planned(plane: ControlPlane, command: Command) -> Plan:
    try:
        return plane.plan(command)
    except PodiumError as error:
        raise ProblemError(refusal(error, plane, command)) from error


def _taken(plane: ControlPlane, command: Command) -> Operation:
    try:
        return plane.submit(command)
    except PodiumError as error:
        raise ProblemError(refusal(error, plane, command)) from error


def _last_change(plane: ControlPlane, pools: set[str]) -> Operation | None:
    """Return the newest operation that gave one of the pools other slots or ended it, or is about to."""
    for operation in reversed(plane.operations()):
        touched = {change.pool for change in operation.plan.pools} if operation.plan is not None else set()
        counts = operation.state is OperationState.SUCCEEDED or not operation.state.done
        if counts and operation.kind not in {"pause", "resume"} and pools & touched:
            return operation
    return None


def _gone(pool: str, last: Operation, expected: int) -> Problem:
    """Return the problem of a pool that was there when the asker looked."""
    detail = f"pool {pool} no longer exists: {last.kind} by {last.who} ({last.id}: {last.before} -> {last.after})"
    more = (("expected_generation", expected), ("actual_generation", None), ("last_change", brief_operation(last)))
    return Problem(412, "stale-generation", "Generation conflict", detail, more=more)


def _as_said(command: Command, body: ControlRequest | None, asked: Asking) -> Command:
    """Return ``command`` with the generation and the deadline that the request names.

    A change of slots needs a generation, so that nobody undoes what they have not seen. ``If-Match: *`` says that any
    will do; a pause loses nothing, and a dry run changes nothing.
    """
    expected = _agreed(body.expected_generation if body else None, asked.if_match)
    named = asked.if_match is not None or expected is not None
    if isinstance(command, Merge):
        named = named or bool(command.expected_generations)
        strange = sorted({name for name, _ in command.expected_generations} - set(command.pools))
        if strange:
            detail = f"expected_generations contains {strange[0]!r}, which is not one of the pools to merge"
            raise ProblemError(unfit(detail, "body.expected_generations"))
    if not named and not asked.dry_run and command.changes_slots:
        raise ProblemError(_NEEDS_GENERATION)
    deadline_s = body.deadline_s if body else None
    return replace(
        command,
        expected_generation=expected,
        deadline_s=command.deadline_s if deadline_s is None else deadline_s,
    )


_NEEDS_GENERATION = Problem(
    428,
    "generation-needed",
    "Precondition required",
    "send the ETag of the pool as If-Match, or expected_generation in the body (expected_generations for a merge); "
    "If-Match: * applies the change to any generation",
)


def _agreed(in_body: int | None, if_match: str | None) -> int | None:
    """Return the generation that header and body name."""
    if if_match is None or if_match.strip() == "*":
        return in_body
    found = re.fullmatch(r'"g(\d{1,15})"', if_match.strip())
    if found is None:
        raise ProblemError(unfit('header.if-match: expected an ETag such as "g3", with quotes', "header.if-match"))
    if in_body is not None and in_body != int(found[1]):
        detail = f"If-Match names generation {found[1]}, but the body names {in_body}"
        raise ProblemError(unfit(detail, "header.if-match"))
    return int(found[1])
