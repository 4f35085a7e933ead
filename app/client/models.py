"""The server's answers as values: pools and operations, and refusals as errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from core.errors import PodiumError
from web import rows
from web.rows import Pool


@dataclass(eq=False)
class ClientError(PodiumError):
    """A request to a running driver's server failed."""


@dataclass(eq=False)
class UnreachableError(ClientError):
    """Nobody answers at ``url``, or it is not Podium that does."""

    url: str = ""


@dataclass(eq=False)
class RefusedError(ClientError):
    """The server answered with a problem.

    ``status`` is of HTTP, ``kind`` is stable and for programs, such as "stale-generation"; ``errors`` are pairs of a
    place in the request and what is wrong there, ``more`` holds what else the problem says.
    """

    status: int = 0
    kind: str = ""
    title: str = ""
    detail: str = ""
    request_id: str = ""
    errors: tuple[tuple[str, str], ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class NotAuthorisedError(RefusedError):
    """There is no token, it is wrong, or it may only read; or the run is read-only."""


@dataclass(eq=False)
class StaleGenerationError(RefusedError):
    """Somebody else changed it first; ``last_change`` says who did what, as far as the server knows."""

    @property
    def actual_generation(self) -> int | None:
        """Return the generation that the pool has now."""
        return self.more.get("actual_generation")

    @property
    def last_change(self) -> Mapping[str, Any]:
        """Return the operation that came first: id, kind, pool, who, state, before, after; empty when unknown."""
        return self.more.get("last_change") or {}


@dataclass(eq=False)
class ConflictError(RefusedError):
    """The present state forbids it; later, or after another step, it may work."""


@dataclass(eq=False)
class NotFoundError(RefusedError):
    """There is no such pool, group or operation."""


@dataclass(eq=False)
class InvalidRequestError(RefusedError):
    """It can never work, or the request does not fit."""


@dataclass(eq=False)
class BusyError(RefusedError):
    """Too many requests, or the driver is ending; ``retry_after_s`` is when to come back."""

    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Operation(rows.Operation):
    """An operation as the server shows it; ``document`` is the whole JSON, ``created_at`` is ISO 8601.

    ``state`` is pending, preparing, waiting_for_safe_point, running, succeeded, failed, cancelled or expired. ``error``
    says why it failed, empty otherwise.
    """

    created_at: str = ""
    document: Mapping[str, Any] = field(repr=False, compare=False, default_factory=dict)


@dataclass(eq=False)
class OperationFailedError(ClientError):
    """The operation is done and came to nothing: it failed, expired or was cancelled."""

    operation: Operation | None = None


@dataclass(eq=False)
class StillRunningError(ClientError, TimeoutError):
    """The operation was not done in time; it goes on."""

    operation: Operation | None = None
    timeout_s: float = 0.0


PROBLEM = "urn:podium:problem:"
_KNOWN = frozenset({"type", "title", "status", "detail", "instance", "request_id", "errors"})
_BY_STATUS: dict[int, type[RefusedError]] = {
    401: NotAuthorisedError,
    404: NotFoundError,
    409: ConflictError,
    412: StaleGenerationError,
    422: InvalidRequestError,
    428: InvalidRequestError,
    429: BusyError,
    503: BusyError,
}


def refusal_of(status: int, problem: Mapping[str, Any], retry_after_s: float) -> RefusedError:
    """Return the error that a problem document is."""
    kind = str(problem["type"]).removeprefix(PROBLEM)
    title, detail = str(problem.get("title", "")), str(problem.get("detail", ""))
    made = NotAuthorisedError if kind == "scope" else _BY_STATUS.get(status, RefusedError)
    later = {"retry_after_s": retry_after_s} if made is BusyError else {}
    return made(
        f"{title}: {detail}{_words(problem.get('last_change'))}",
        status=status,
        kind=kind,
        title=title,
        detail=detail,
        request_id=str(problem.get("request_id", "")),
        errors=tuple((str(one["where"]), str(one["message"])) for one in problem.get("errors", [])),
        more={name: value for name, value in problem.items() if name not in _KNOWN},
        **later,
    )


def pool_of(document: Mapping[str, Any]) -> Pool:
    """Return the pool that a document is."""
    return Pool(**{one.name: _frozen(document[one.name]) for one in fields(Pool)})


def operation_of(document: Mapping[str, Any]) -> Operation:
    """Return the operation that a document is."""
    shown = {one.name: document[one.name] for one in fields(Operation) if one.name in document}
    error = document["error"]["detail"] if document["error"] else ""
    return Operation(**shown | {"error": error}, document=document)


def _words(last_change: Mapping[str, Any] | None) -> str:
    if not last_change:
        return ""
    return " (last change: {kind} by {who}, {before} to {after}, operation {id})".format(**last_change)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
