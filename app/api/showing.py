"""The dashboard's pages and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from app.api.collaborators import Collaborators, Who, With
from app.api.problems import HtmlProblem, Problem, ProblemError, not_found
from app.api.rules import READ_ONLY_HINT, STATIC_PREFIX, Visitor
from app.api.static import StaticFiles
from app.api.tokens import Scope
from web import heatmap, operations, padding, pages, pool_map, postmortem, stragglers, workers
from web.frame import Frame

router = APIRouter(include_in_schema=False)
_MAX_ID = 2**53
_FOR_A_YEAR = "public, max-age=31536000, immutable"
_ASK_AGAIN = "public, no-cache"
_READ_TOKEN_HINT = "This browser came with the read token; open the URL with the control token to steer."


@router.get("/")
async def overview(has: With, who: Who, request: Request) -> Response:
    """Show the run at a glance."""
    return await _page(has, request, who, "overview", lambda frame: pages.render_overview(has.source, frame))


@router.get("/timeline")
async def timeline(has: With, who: Who, request: Request) -> Response:
    """Show a lane per rank."""
    return await _page(has, request, who, "timeline", lambda frame: pages.render_timeline(has.source, frame))


@router.get("/calls")
async def calls(has: With, who: Who, request: Request) -> Response:
    """Show the list of calls."""
    return await _page(has, request, who, "calls", lambda frame: pages.render_calls(has.source, frame))


@router.get("/calls/{call_id}")
async def call(has: With, who: Who, request: Request, call_id: Annotated[int, Path(ge=1, le=_MAX_ID)]) -> Response:
    """Show one call with its ranks."""

    def render(frame: Frame) -> str:
        found = pages.render_call(has.source, frame, call_id)
        if found is None:
            raise ProblemError(not_found(f"this run has no call {call_id}, or it was pruned"))
        return found

    return await _page(has, request, who, "call", render)


@router.get("/heatmap")
async def latency(has: With, who: Who, request: Request) -> Response:
    """Show how long each method's calls take, and how that moves."""
    return await _page(has, request, who, "heatmap", lambda frame: heatmap.render_heatmap(has.source, frame))


@router.get("/stragglers")
async def slow_ranks(has: With, who: Who, request: Request) -> Response:
    """Show which ranks the others wait for."""
    return await _page(has, request, who, "stragglers", lambda frame: stragglers.render_stragglers(has.source, frame))


@router.get("/data")
async def rows_and_bytes(has: With, who: Who, request: Request) -> Response:
    """Show what calls carried: rows, padding, bytes."""
    return await _page(has, request, who, "data", lambda frame: padding.render_data(has.source, frame))


@router.get("/pools")
async def pools(has: With, who: Who, request: Request) -> Response:
    """Show every slot with who is on it, and change the pools."""
    return await _page(has, request, who, "pools", lambda frame: pool_map.render_pools(has.source, frame))


@router.get("/workers")
async def worker_lanes(has: With, who: Who, request: Request) -> Response:
    """Show a line per rank with every process that it has had."""
    return await _page(has, request, who, "workers", lambda frame: workers.render_workers(has.source, frame))


@router.get("/operations")
async def operation_list(has: With, who: Who, request: Request) -> Response:
    """Show what was asked of the pools, and every attempt from outside."""
    return await _page(has, request, who, "operations", lambda frame: operations.render_operations(has.source, frame))


@router.get("/postmortem")
async def post_mortem(has: With, who: Who, request: Request) -> Response:
    """Show what became of the run: who died of what, and what was in flight."""
    return await _page(has, request, who, "postmortem", lambda frame: postmortem.render_postmortem(has.source, frame))


@router.get("/static/{name:path}")
async def static(has: With, request: Request, name: str) -> Response:
    """Send a file of the package, compressed where that pays."""
    found = await has.reads.ask(lambda: has.files.get(name))
    if found is None:
        raise ProblemError(not_found("there is no such file"))
    immutable = has.files.is_immutable(name, request.query_params.get("v", ""))
    headers = {"Cache-Control": _FOR_A_YEAR if immutable else _ASK_AGAIN, "ETag": found.etag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    if found.gzipped and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.gzipped, headers=headers, media_type=found.media_type)
    return Response(found.body, headers=headers, media_type=found.media_type)


def html_problem(files: StaticFiles, root_path: str = "") -> HtmlProblem:
    """Return what makes a page of a problem; it asks nothing of the run."""
    plotly = plotly_url(files, root_path)
    frame = Frame(page="problem", asset_version=files.version, plotly_url=plotly, root=root_path)

    def render(problem: Problem, request_id: str) -> str:
        return pages.render_problem(frame, problem.status, problem.title, problem.detail, request_id)

    return render


def plotly_url(files: StaticFiles, root_path: str) -> str:
    """Return where the browser finds plotly.js, empty when it is not installed."""
    return f"{root_path}{STATIC_PREFIX}{files.plotly_name}" if files.plotly_name else ""


async def _page(
    has: Collaborators, request: Request, who: Visitor, page: str, render: Callable[[Frame], str]
) -> Response:
    params = dict(request.query_params)

    def draw() -> Response:
        frame = _frame(has, who, page, params, live=has.source.run().state == "running")
        # Half of a surrogate pair in a name of the user's is text too, though no UTF-8 can carry it.
        return Response(render(frame).encode("utf-8", "replace"), media_type="text/html")

    return await has.reads.ask(draw)


def _frame(has: Collaborators, who: Visitor, page: str, params: dict[str, str], live: bool) -> Frame:
    may_control = has.controllable and who.scope is Scope.CONTROL
    return Frame(
        page=page,
        params=params,
        live=live,
        controllable=may_control,
        csrf=has.tokens.csrf if may_control else "",
        asset_version=has.files.version,
        plotly_url=plotly_url(has.files, has.settings.root_path),
        root=has.settings.root_path,
        control_hint=_hint(has, may_control, live),
    )


def _hint(has: Collaborators, may_control: bool, live: bool) -> str:
    if may_control:
        return ""
    if has.is_over() or not live:
        return "The run is over."
    if has.is_ending():
        return "The driver is ending."
    return _READ_TOKEN_HINT if has.controllable else READ_ONLY_HINT[0].upper() + READ_ONLY_HINT[1:] + "."
