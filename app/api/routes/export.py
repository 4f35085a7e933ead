"""What can be taken along: ``GET /export/...``. Handlers translate, nothing more; GET changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response, StreamingResponse

from app.api.context import Context, no_query
from app.api.documents import PROBLEMS
from app.api.problems import Problem, ProblemError
from app.api.responses import json_response
from app.api.routes.read import CallsAsked, TimelineAsked, narrowed_to
from web.calls import CallPage
from web.export import csv_head, csv_lines, trace
from web.frame import Frame
from web.rendering import render_report
from web.rows import Run

router = APIRouter(prefix="/export", responses=PROBLEMS)
MOST_CALLS = 100_000
_CALLS_AT_ONCE = 1_000


@router.get("/calls.csv", operation_id="export_calls", tags=["export"], response_class=Response)
async def calls(context: Context, asked: Annotated[CallsAsked, Query()]) -> Response:
    """Send calls as CSV, newest first, at most 100,000 of them; ``cursor`` goes on below a call."""
    narrowed = narrowed_to(asked)

    async def page_below(cursor: int | None) -> CallPage:
        return await context.reads.ask(lambda: context.source.calls(_CALLS_AT_ONCE, cursor, narrowed))

    # The first page before the answer begins: what is wrong is then a problem and no broken file.
    first = await page_below(asked.cursor)

    async def lines() -> AsyncIterator[bytes]:
        page, n_left = first, MOST_CALLS
        yield csv_head().encode()
        while True:
            yield csv_lines(page.items[:n_left]).encode("utf-8", "replace")
            n_left -= len(page.items)
            if page.next_cursor is None or n_left <= 0:
                return
            page = await page_below(page.next_cursor)

    return StreamingResponse(lines(), headers=_attached("calls.csv"), media_type="text/csv; charset=utf-8")


@router.get("/trace.json", operation_id="export_trace", tags=["export"])
async def window(context: Context, asked: Annotated[TimelineAsked, Query()]) -> Response:
    """Send a window of the run as Chrome trace JSON, for ui.perfetto.dev or chrome://tracing."""

    def ask() -> Response:
        from_ms, to_ms = _within(context.source.run(), asked)
        found = context.source.spans(from_ms, to_ms)
        if found is None:
            detail = "this window has more than 20,000 spans, or pruned spans; use a shorter window (from, to)"
            raise ProblemError(Problem(422, "cannot-work", "Window too large", detail))
        return json_response(trace(found, context.source.run().name), headers=_attached("trace.json"))

    return await context.reads.ask(ask)


def _within(run: Run, asked: TimelineAsked) -> tuple[float | None, float | None]:
    """Return the window that is asked for without what lies before the run.

    Raises:
        ProblemError: Nothing of the run is in it.
    """
    from_ms, to_ms = asked.from_ms, asked.to_ms
    first_ms, last_ms = from_ms or 0.0, run.duration_ms if to_ms is None else to_ms
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        detail = f"to={to_ms:g} must be greater than from={from_ms:g} (milliseconds since the start of the run)"
    elif last_ms < 0 or first_ms > run.duration_ms:
        detail = f"window {first_ms:g} to {last_ms:g} ms is outside the run (0 to {run.duration_ms:,.0f} ms)"
    else:
        return None if from_ms is None else max(from_ms, 0.0), to_ms
    raise ProblemError(Problem(422, "cannot-work", "Window out of range", detail))


@router.get("/report.html", operation_id="export_report", tags=["export"], dependencies=[Depends(no_query)])
async def report(context: Context) -> Response:
    """Send the run's numbers as one HTML file that needs nothing else."""

    def ask() -> Response:
        text = render_report(context.source, Frame("report")).encode("utf-8", "replace")
        return Response(text, headers=_attached("report.html"), media_type="text/html")

    return await context.reads.ask(ask)


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="podium-{name}"'}
