"""What ``openapi.json`` says of problems: the one shape of every error."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


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


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/problem+json": {"schema": _SCHEMA}}}


_SCHEMA = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
_SCHEMA["properties"]["errors"]["items"] = FieldProblemDocument.model_json_schema()
_SCHEMA.pop("$defs", None)

PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: _problem("No valid token"),
    403: _problem("Not from our own page, or not allowed with this token"),
    404: _problem("No such thing"),
    422: _problem("The request does not fit"),
    429: _problem("Too many requests"),
}
CONTROL_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    409: _problem("The present state forbids it"),
    412: _problem("Changed by somebody else since"),
    415: _problem("Only JSON is taken"),
}
