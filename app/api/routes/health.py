"""Is the server up? These say ok and nothing else, so they need no token."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.context import Context, no_query
from app.api.problems import Problem, ProblemError, not_found
from app.metrics import CONTENT_TYPE as METRICS_TYPE

router = APIRouter(tags=["health"])
_MAX_LAG_MS = 5000.0


@router.get("/livez", operation_id="get_livez")
async def livez() -> Response:
    """Say that the server's loop turns."""
    return Response("ok", media_type="text/plain")


@router.get("/healthz", operation_id="get_healthz")
async def healthz() -> Response:
    """Say the same, under the name that many look for."""
    return Response("ok", media_type="text/plain")


@router.get("/readyz", operation_id="get_readyz", responses={503: {"description": "The record cannot be read"}})
async def readyz(context: Context) -> Response:
    """Say that the run's record answers and is not far behind, as of at most a second ago."""

    async def is_ready() -> bool:
        try:
            return (await context.reads.ask(context.source.recorder)).writer_lag_ms <= _MAX_LAG_MS
        except Exception:
            return False

    if not await context.readiness.get(is_ready):
        raise ProblemError(_NOT_READY)
    return Response("ok", media_type="text/plain")


@router.get("/metrics", operation_id="get_metrics", tags=["metrics"], dependencies=[Depends(no_query)])
async def metrics(context: Context) -> Response:
    """Return what the driver did so far, for Prometheus; needs the read token unless the server was started open."""
    if context.metrics is None:
        raise ProblemError(not_found("metrics are only available while the driver is running"))
    return Response(await context.reads.ask(context.metrics), media_type=METRICS_TYPE)


_NOT_READY = Problem(503, "not-ready", "Not ready", "the recorder is behind", headers=(("Retry-After", "1"),))
