"""Schemas of responses that are not plain dataclasses: problems, plans and operations. For ``openapi.json`` only."""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import Any

from pydantic import BaseModel, create_model

from app.api.views import NOT_SHOWN
from web import rows


class FieldProblemDocument(BaseModel):
    """What is wrong with one part of a request."""

    where: str
    message: str


class ProblemDocument(BaseModel):
    """An error as RFC 9457 has it; ``type`` is stable, ``detail`` is for people."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[FieldProblemDocument] = []


class PoolChangeDocument(BaseModel):
    """What a plan does to a pool; ``before`` is empty for a new pool, ``after`` for one that ends."""

    pool: str
    before: list[int]
    after: list[int]
    generation: int


class GroupMoveDocument(BaseModel):
    """What a plan does to a group; ``how`` is unchanged, stateless, state or reconfigure."""

    group: str
    from_pool: str
    to_pool: str
    world_size_before: int
    world_size_after: int
    how: str


class PlanDocument(BaseModel):
    """What a command would do.

    ``in_flight`` are the calls that it waits for, ``lost_state`` is state that would be lost; ``downtime_s`` is an
    estimate of how long the driver is blocked.
    """

    kind: str
    pools: list[PoolChangeDocument]
    groups: list[GroupMoveDocument]
    prepared: bool
    not_prepared_reason: str
    in_flight: list[str]
    lost_state: list[str]
    downtime_s: float
    estimate_from: str


class ResultDocument(BaseModel):
    """What an operation that succeeded did, in words."""

    before: str
    after: str


class OperationErrorDocument(BaseModel):
    """Why an operation came to nothing, in the shape of a problem."""

    type: str
    title: str
    detail: str


def _document_of(row: type, name: str, doc: str, without: frozenset[str], **more: Any) -> type[BaseModel]:
    """Return the document with the fields of a row type but ``without``, and ``more``, each of a type."""
    hints = typing.get_type_hints(row)
    kinds = {one.name: hints[one.name] for one in fields(row) if one.name not in without} | more
    return create_model(name, __doc__=doc, **{key: (kind, ...) for key, kind in kinds.items()})  # type: ignore[no-any-return, call-overload]


OperationDocument = _document_of(
    rows.Operation,
    "OperationDocument",
    "A command on its way; once ``done``, either ``result`` or ``error`` is there. Times are ms since the run's start."
    "\n\n"
    "``state`` is pending, preparing, waiting_for_safe_point, running, succeeded, failed, cancelled or expired.",
    without=NOT_SHOWN,
    done=bool,
    created_at=str,
    plan=PlanDocument | None,
    result=ResultDocument | None,
    error=OperationErrorDocument | None,
)


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {"description": description, "content": {"application/problem+json": {"schema": schema}}}


# FastAPI collects the schemas of JSON answers only, and a problem is of another media type.
PROBLEM_SCHEMAS: dict[str, Any] = {
    kind.__name__: kind.model_json_schema(ref_template="#/components/schemas/{model}")
    for kind in (ProblemDocument, FieldProblemDocument)
}
PROBLEM_SCHEMAS["ProblemDocument"].pop("$defs", None)

PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: _problem("No valid token"),
    403: _problem("Cross-site request, or insufficient scope"),
    404: _problem("Not found"),
    422: _problem("Invalid request"),
    429: _problem("Too many requests"),
}
CONTROL_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    409: _problem("Conflict with the current state"),
    412: _problem("Generation conflict"),
    415: _problem("Unsupported media type"),
    428: _problem("Precondition required"),
    503: _problem("Busy, or the driver is exiting"),
}
