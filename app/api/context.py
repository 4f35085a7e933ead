"""What the routes work with; handed in by the factory, found by each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from app.api.idempotency import IdempotencyKeys
from app.api.limits import ReadPool, Recent, Seats
from app.api.problems import Problem, ProblemError, not_found
from app.api.rules import READ_ONLY_HINT, Visitor
from app.api.static import StaticFiles
from app.api.stream import TickHub
from app.api.tokens import Tokens
from app.settings import ServerSettings
from core.control.commands import ControlPlane
from web.rows import Run
from web.source import RunSource

if TYPE_CHECKING:
    from core.health.in_flight import CallInFlight


@dataclass(frozen=True, slots=True)
class AppContext:
    """Everything a route may need.

    ``control`` is None for a run that cannot be steered; ``is_over`` says that the driver is done while we still serve,
    ``is_ending`` that it is about to be. ``in_flight`` returns its calls in flight, ``metrics`` its counters and
    ``stacks`` where the ranks are that a call waits for; all None for a run that is only a file. ``reads`` puts
    questions to the file, ``commands`` asks the plane, ``loads`` reads files of the package.
    """

    source: RunSource
    control: ControlPlane | None
    settings: ServerSettings
    tokens: Tokens
    reads: ReadPool
    commands: ReadPool
    loads: ReadPool
    hub: TickHub
    files: StaticFiles
    idempotency_keys: IdempotencyKeys
    seats: Seats
    readiness: Recent[bool]
    is_over: Callable[[], bool]
    is_ending: Callable[[], bool]
    in_flight: Callable[[], tuple[CallInFlight, ...]] | None = None
    metrics: Callable[[], bytes] | None = None
    stacks: Callable[[int], Mapping[int, str]] | None = None

    @property
    def controllable(self) -> bool:
        """Whether anybody at all may steer this run."""
        may = self.settings.control and self.control is not None
        return may and not self.is_over() and not self.is_ending()


def context_of(request: Request) -> AppContext:
    """Return what the app was made with."""
    return cast(AppContext, request.app.state.context)


def visitor(request: Request) -> Visitor:
    """Return who asks, as the guard found."""
    return cast(Visitor, request.scope["podium.visitor"])


def require_control(request: Request) -> Visitor:
    """Return who asks, if the guard let them steer; every route that changes something depends on it.

    Raises:
        ProblemError: They may not.
    """
    found = visitor(request)
    if not found.may_control:
        raise ProblemError(Problem(403, "read-only", "Read-only", READ_ONLY_HINT))
    return found


def no_query(request: Request) -> None:
    """Refuse query parameters on a route that has none.

    Raises:
        ProblemError: There is one.
    """
    for name in request.query_params:
        detail = f"query.{name[:40]}: unknown query parameter; this route has none"
        raise ProblemError(Problem(422, "invalid-request", "Invalid request", detail))


def check_run(run: Run, run_id: str) -> None:
    """Refuse a run that is not the one this server shows.

    Raises:
        ProblemError: ``run_id`` is neither its id nor "current".
    """
    if run_id not in {"current", run.id}:
        raise ProblemError(not_found(f"no run {run_id!r}; this server has one run, {run.id!r} (or 'current')"))


Context = Annotated[AppContext, Depends(context_of)]
Who = Annotated[Visitor, Depends(visitor)]
Controller = Annotated[Visitor, Depends(require_control)]
