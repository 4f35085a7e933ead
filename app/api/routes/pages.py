"""The dashboard's pages and files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from app.api.context import AppContext, Context, Who, context_of
from app.api.in_flight import calls_now
from app.api.limits import ReadPool
from app.api.problems import HtmlProblem, Problem, ProblemError, not_found
from app.api.rules import READ_ONLY_HINT, STATIC_PREFIX, Visitor
from app.api.static import StaticFiles
from app.api.tokens import Scope
from web.frame import Frame
from web.registry import PAGES
from web.rendering import render_call, render_frame, render_page, render_problem

router = APIRouter(include_in_schema=False)
_MAX_ID = 2**53
_FOR_A_YEAR = "public, max-age=31536000, immutable"
_ASK_AGAIN = "public, no-cache"
# A page that follows the run asks for its parts only.
_VARY = {"Vary": "X-Podium-Parts"}
_READ_TOKEN_HINT = "Read-only token. Open the URL with the control token to control this run."


@router.get("/calls/{call_id}")
async def call(
    context: Context, who: Who, request: Request, call_id: Annotated[int, Path(ge=1, le=_MAX_ID)]
) -> Response:
    """Show one call with its ranks."""

    def render(frame: Frame) -> str:
        found = render_call(context.source, frame, call_id)
        if found is None:
            raise ProblemError(not_found(f"call {call_id} does not exist in this run, or was pruned"))
        return found

    return await _page(context, request, who, "call", render)


@router.get("/static/{name:path}")
async def static(context: Context, request: Request, name: str) -> Response:
    """Send a file of the package, compressed where that pays."""
    return await send_static(context.files, context.loads, request, name)


async def send_static(files: StaticFiles, loads: ReadPool, request: Request, name: str) -> Response:
    """Return the answer to a request for the file called ``name``; ``loads`` reads it when it is first asked for.

    Raises:
        ProblemError: There is no such file.
    """
    found = files.loaded(name)
    if found is None and files.is_there(name):
        # Not among the questions to the record: no token is needed here, and whoever has one would have to wait behind.
        found = await loads.ask(lambda: files.get(name))
    if found is None:
        raise ProblemError(not_found("there is no such file"))
    immutable = files.is_immutable(name, request.query_params.get("v", ""))
    headers = {"Cache-Control": _FOR_A_YEAR if immutable else _ASK_AGAIN, "ETag": found.etag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    if found.gzipped and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.gzipped, headers=headers, media_type=found.media_type)
    return Response(found.body, headers=headers, media_type=found.media_type)


@router.get("/frame")
async def frame(context: Context, who: Who, request: Request) -> Response:
    """Show what is around every page and changes: the state of the run and the recorder strip."""
    return await _page(context, request, who, "frame", lambda frame: render_frame(context.source, frame))


def _show(name: str) -> Callable[..., Awaitable[Response]]:
    async def show(context: Context, who: Who, request: Request) -> Response:
        return await _page(context, request, who, name, lambda frame: render_page(name, context.source, frame))

    return show


async def _without_slash(request: Request) -> Response:
    """Send a browser on to the page: some proxies and people end an address with a slash."""
    query = f"?{request.url.query}" if request.url.query else ""
    path = quote(request.url.path.rstrip("/"))
    root = context_of(request).settings.root_path
    return Response(status_code=308, headers={"Location": f"{root}{path}{query}"})


for _registered in PAGES:
    router.add_api_route(_registered.path, _show(_registered.name), name=_registered.name)
    if _registered.path != "/":
        router.add_route(f"{_registered.path}/", _without_slash)
router.add_route("/calls/{call_id}/", _without_slash)


def html_problem(files: StaticFiles, root_path: str = "", home: str = "") -> HtmlProblem:
    """Return what makes a page of a problem; it asks nothing of the run."""
    plotly = plotly_url(files, root_path)
    frame = Frame(page="problem", asset_version=files.version, plotly_url=plotly, root=root_path, home=home)

    def render(problem: Problem, request_id: str) -> str:
        return render_problem(frame, problem.status, problem.title, problem.detail, request_id)

    return render


def plotly_url(files: StaticFiles, root_path: str) -> str:
    """Return where the browser finds plotly.js, empty when it is not installed."""
    return f"{root_path}{STATIC_PREFIX}{files.plotly_name}" if files.plotly_name else ""


async def _page(
    context: AppContext, request: Request, who: Visitor, page: str, render: Callable[[Frame], str]
) -> Response:
    params = dict(request.query_params)
    parts_only = request.headers.get("x-podium-parts", "") == "1"

    def draw() -> Response:
        frame = _frame(context, who, page, params, live=context.source.run().state == "running", parts_only=parts_only)
        # Half of a surrogate pair in a name of the user's is text too, though no UTF-8 can carry it.
        return Response(render(frame).encode("utf-8", "replace"), media_type="text/html", headers=_VARY)

    return await context.reads.ask(draw)


def _frame(context: AppContext, who: Visitor, page: str, params: dict[str, str], live: bool, parts_only: bool) -> Frame:
    may_control = context.controllable and who.scope is Scope.CONTROL
    return Frame(
        page=page,
        params=params,
        live=live,
        controllable=may_control,
        csrf=context.tokens.csrf if may_control else "",
        asset_version=context.files.version,
        plotly_url=plotly_url(context.files, context.settings.root_path),
        root=context.settings.root_path,
        home=context.settings.home,
        control_hint=_hint(context, may_control, live),
        parts_only=parts_only,
        in_flight=lambda: calls_now(context),
    )


def _hint(context: AppContext, may_control: bool, live: bool) -> str:
    if may_control:
        return ""
    if context.is_over() or not live:
        return "The run has ended."
    if context.is_ending():
        return "The driver is exiting."
    return _READ_TOKEN_HINT if context.controllable else f"{READ_ONLY_HINT}."
