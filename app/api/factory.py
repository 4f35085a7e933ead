"""Makes the web application from its collaborators; nothing here is global, nothing is started."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from app.api.audit import AuditLog, NoAudit
from app.api.context import AppContext
from app.api.documents import PROBLEM_SCHEMAS
from app.api.guard import Guard
from app.api.idempotency import IdempotencyKeys
from app.api.limits import ReadPool, Recent, Seats
from app.api.problems import HtmlProblem, install_problem_handlers
from app.api.routes import control as control_routes
from app.api.routes import export, health, read, stream
from app.api.routes import pages as page_routes
from app.api.rules import Rules, allowed_hosts
from app.api.static import StaticFiles, find_plotly_js
from app.api.stream import TickHub
from app.api.tokens import Tokens
from app.settings import ServerSettings
from core.control.commands import ControlPlane
from core.version import VERSION
from web import pages
from web.source import RunSource

if TYPE_CHECKING:
    from core.health.in_flight import CallInFlight


class _Described(FastAPI):
    """The application with problems among the schemas of its document."""

    def openapi(self) -> dict[str, Any]:
        """Return the document of every route."""
        document = super().openapi()
        document["components"]["schemas"] |= PROBLEM_SCHEMAS
        return document


def create_app(
    source: RunSource,
    control: ControlPlane | None,
    settings: ServerSettings,
    *,
    tokens: Tokens | None = None,
    audit: AuditLog | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    is_over: Callable[[], bool] = bool,
    is_ending: Callable[[], bool] = bool,
    in_flight: Callable[[], tuple[CallInFlight, ...]] | None = None,
    metrics: Callable[[], bytes] | None = None,
    stacks: Callable[[int], Mapping[int, str]] | None = None,
    files: StaticFiles | None = None,
    behind_guard: bool = False,
) -> FastAPI:
    """Return the application that shows ``source`` and steers ``control``.

    ``settings.port`` must be the port that is bound, as the ``Host`` check includes it. ``now_ns`` is the driver clock,
    for audit entries. ``is_over`` says that the driver is done, so that there is nothing left to steer; ``is_ending``
    that it is about to be. ``in_flight`` returns the driver's calls in flight, ``metrics`` its counters,
    ``stacks`` where the ranks are that a call waits for; None where only the record is there to ask. With
    ``behind_guard`` another application passes requests on that its own guard has let in, and may share its ``files``.
    """
    if control is None:
        settings = replace(settings, control=False)
    limits = settings.limits
    tokens = tokens or Tokens.make(settings.control)
    reads = ReadPool(limits.n_readers, limits.n_readers_waiting)
    context = AppContext(
        source=source,
        control=control,
        settings=settings,
        tokens=tokens,
        reads=reads,
        commands=ReadPool(limits.n_commanders, limits.n_readers_waiting),
        loads=ReadPool(1, limits.n_strangers + limits.n_connections),
        hub=TickHub(source, control, reads, limits.tick_s),
        files=files or StaticFiles(pages.STATIC_DIR, find_plotly_js()),
        idempotency_keys=IdempotencyKeys(),
        seats=Seats(limits.n_streams),
        readiness=Recent(1.0),
        is_over=is_over,
        is_ending=is_ending,
        in_flight=in_flight,
        metrics=metrics,
        stacks=stacks,
    )
    app = _Described(
        title="Podium",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        # A redirect would name the Host and the scheme that we see, which behind a proxy are not the browser's.
        redirect_slashes=False,
        openapi_url="/openapi.json",
        servers=[{"url": settings.root_path}] if settings.root_path else None,
        **_telemetry_off(),
    )
    app.state.context = context
    for module in (health, read, control_routes, stream, export, page_routes):
        # Not include_router: newer FastAPI nests the routes then, and a walk over app.routes would see none of them.
        app.router.routes.extend(module.router.routes)
    html_problem = page_routes.html_problem(context.files, settings.root_path, settings.home)
    install_problem_handlers(app, html_problem)
    if not behind_guard:
        add_guard(app, settings, tokens, html_problem, audit, now_ns)
    return app


def add_guard(
    app: FastAPI,
    settings: ServerSettings,
    tokens: Tokens,
    html_problem: HtmlProblem,
    audit: AuditLog | None = None,
    now_ns: Callable[[], int] = time.time_ns,
) -> None:
    """Put the guard before every route of ``app``."""
    app.add_middleware(
        Guard,
        rules=_rules(settings, tokens),
        limits=settings.limits,
        audit=audit or NoAudit(),
        html_problem=html_problem,
        now_ns=now_ns,
    )


def _rules(settings: ServerSettings, tokens: Tokens) -> Rules:
    hosts = frozenset({"localhost"}) if settings.uds else allowed_hosts(settings.host, settings.port)
    further = frozenset(host.lower() for host in settings.allowed_hosts)
    return Rules(
        hosts=hosts | further,
        # A further name may stand for a proxy that speaks TLS; our own port never does.
        origins=frozenset({f"http://{host}" for host in hosts | further} | {f"https://{host}" for host in further}),
        cookie="podium_uds" if settings.uds else f"podium_{settings.port}",
        control=settings.control,
        tokens=tokens,
        open_paths=frozenset({"/metrics"} if settings.metrics_open else ()),
        root_path=settings.root_path,
    )


def hub_of(app: FastAPI) -> TickHub:
    """Return the app's live channel, so that who runs the app can end it."""
    context: AppContext = app.state.context
    return context.hub


def _telemetry_off() -> dict[str, Any]:
    """Return what keeps newer FastAPI from tracing our requests through a provider that Ray may have set."""
    if "telemetry" not in inspect.signature(FastAPI.__init__).parameters:
        return {}
    return {"telemetry": {"tracing": False, "metrics": False, "logs": False}}
