"""Every refusal and failure as an RFC 9457 problem, from one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.responses import as_json
from app.errors import ReaderError, RunFileError
from core.errors import (
    CallTimeoutError,
    ClusterUnreachableError,
    GenerationConflictError,
    LiveStateError,
    PlacementError,
    PodiumError,
    StateError,
    UnknownNameError,
    UsageError,
)

HtmlProblem = Callable[["Problem", str], str]
PROBLEM_JSON = "application/problem+json"
_MOST_SHOWN = 1e300


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What is wrong with one part of a request; ``where`` is such as "query.limit"."""

    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal or failure. ``slug`` is its kind for programs, ``headers`` go with the answer.

    ``more`` are further members of the document, such as the generation that a pool has now.
    """

    status: int
    slug: str
    title: str
    detail: str
    errors: tuple[FieldProblem, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    more: tuple[tuple[str, object], ...] = ()


class ProblemError(Exception):
    """Raised by a route to answer with ``problem``; goes no further than the server."""

    def __init__(self, problem: Problem) -> None:
        """Keep the problem."""
        super().__init__(problem.detail)
        self.problem = problem


_TITLES = {
    400: ("bad-request", "Bad request"),
    404: ("not-found", "Not found"),
    405: ("method-not-allowed", "Method not allowed"),
    406: ("not-acceptable", "Not acceptable"),
    413: ("too-large", "Too large"),
    415: ("not-json", "Unsupported media type"),
}

# First match wins, so the narrower type stands above the wider one.
_BY_TYPE: tuple[tuple[type[PodiumError], int, str, str], ...] = (
    (UnknownNameError, 404, "unknown-name", "Not found"),
    (GenerationConflictError, 412, "stale-generation", "Generation conflict"),
    (LiveStateError, 409, "state-would-be-lost", "Group state would be lost"),
    (StateError, 409, "state-forbids", "Conflict with the current state"),
    (RunFileError, 503, "unreadable-file", "Run file not readable"),
    (UsageError, 422, "cannot-work", "Invalid request"),
)


def not_found(what: str) -> Problem:
    """Return the problem of a thing that is not there."""
    return Problem(404, "not-found", "Not found", what)


def problem_of(error: Exception) -> Problem:
    """Translate any exception; one that nobody expected keeps its text to itself, as it may hold anything."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, ReaderError):
        retry = (("Retry-After", str(max(1, round(error.retry_after_s)))),)
        return Problem(503, "busy", "Run file busy", str(error), headers=retry)
    if isinstance(error, PlacementError):
        return _placement_problem(error)
    if isinstance(error, CallTimeoutError | ClusterUnreachableError):
        retry = (("Retry-After", "5"),)
        return Problem(503, "cluster-silent", "Cluster not responding", str(error), headers=retry)
    for kind, status, slug, title in _BY_TYPE:
        if isinstance(error, kind):
            return Problem(status, slug, title, str(error), more=_more(error))
    if isinstance(error, RequestValidationError):
        return _validation_problem(error)
    if isinstance(error, HTTPException):
        slug, title = _TITLES.get(error.status_code, ("refused", "Request refused"))
        headers = tuple((error.headers or {}).items())
        return Problem(error.status_code, slug, title, str(error.detail), headers=headers)
    return Problem(500, "failed", "Internal server error", "internal error; see the driver log for the traceback")


def _placement_problem(error: PlacementError) -> Problem:
    """Return 422 for what would not fit if everything were free, 409 for what may fit later."""
    more = (("needed", dict(error.needed)), ("available", dict(error.available)))
    if error.hopeless:
        return Problem(422, "cannot-fit", "Exceeds cluster resources", str(error), more=more)
    return Problem(409, "no-room", "Insufficient free resources", str(error), more=more)


def _more(error: PodiumError) -> tuple[tuple[str, object], ...]:
    match error:
        case GenerationConflictError():
            return (("expected_generation", error.expected), ("actual_generation", error.actual))
        case LiveStateError():
            return (("group", error.group), ("worker_class", error.worker_class))
        case _:
            return ()


def _validation_problem(error: RequestValidationError) -> Problem:
    found = tuple(FieldProblem(".".join(map(str, one["loc"])), _said(one)) for one in error.errors())
    detail = "; ".join(f"{one.where}: {one.message}" for one in found[:5])
    return Problem(422, "invalid-request", "Invalid request", detail, errors=found)


def _said(one: Mapping[str, Any]) -> str:
    """Return what is wrong with a field, and the number that was sent where it was one."""
    given, text = one.get("input"), str(one["msg"])
    # A whole number of thousands of digits is JSON too, and no float holds it.
    is_shown = isinstance(given, int | float) and abs(given) < _MOST_SHOWN
    return f"{text}, not {given:g}" if is_shown and "equal to" in text else text


def problem_body(problem: Problem, instance: str, request_id: str) -> bytes:
    """Return the JSON of ``problem``, met at the path ``instance``."""
    body: dict[str, object] = {
        "type": f"urn:podium:problem:{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": instance,
        "request_id": request_id,
    }
    if problem.errors:
        body["errors"] = problem.errors
    body |= dict(problem.more)
    return as_json(body)


def wants_page(accept: str, path: str) -> bool:
    """Return whether a problem is shown to a person: a browser asked, and not for the API."""
    return "text/html" in accept and not path.startswith("/api/")


def install_problem_handlers(app: FastAPI, html_problem: HtmlProblem) -> None:
    """Make every error of ``app``'s routes a problem, as a page for a browser that asked for one."""

    async def answer(request: Request, error: Exception) -> Response:
        problem, request_id = problem_of(error), str(request.scope.get("podium.request_id", ""))
        path, headers = request.url.path, dict(problem.headers)
        if wants_page(request.headers.get("accept", ""), path):
            page = html_problem(problem, request_id).encode("utf-8", "replace")
            return Response(page, status_code=problem.status, headers=headers, media_type="text/html")
        body = problem_body(problem, path, request_id)
        return Response(body, status_code=problem.status, headers=headers, media_type=PROBLEM_JSON)

    for kind in (ProblemError, PodiumError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)
