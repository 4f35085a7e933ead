"""The web application of a folder: the list of its runs at ``/``, and each run's own pages below ``/runs/<file>``."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.api.factory import add_guard, create_app, hub_of
from app.api.limits import ReadPool
from app.api.problems import ProblemError, install_problem_handlers, not_found
from app.api.responses import json_response, page
from app.api.routes.pages import html_problem, send_static
from app.api.static import StaticFiles, find_plotly_js
from app.api.tokens import Tokens
from app.home.index import RunsIndex
from app.settings import ServerSettings, SettingsError
from app.store.reader import Reader
from core.version import VERSION
from web import pages
from web.frame import Frame
from web.home import load_home
from web.rendering import render_home

RUNS = "/runs"
_MOST_OPEN = 8
_READ_S = 1.0


@dataclass
class _OpenRun:
    """A run whose pages are served; ``n_requests`` are being answered."""

    app: FastAPI
    reader: Reader
    n_requests: int = 0

    def close(self) -> None:
        """End its streams and close its file."""
        hub_of(self.app).stop()
        self.reader.close()


class OpenRuns:
    """The runs that were looked at last, each with an application of its own; made and used on the server's loop."""

    def __init__(self, index: RunsIndex, settings: ServerSettings, tokens: Tokens, files: StaticFiles) -> None:
        """Start with none; ``settings.root_path`` is that of the whole site, ``files`` are its scripts and styles."""
        self._index = index
        self._files = files
        self._settings = settings
        self._tokens = tokens
        self._open: OrderedDict[str, _OpenRun] = OrderedDict()

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are open, the one that was looked at last at the end."""
        return tuple(self._open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the run that its path names.

        Raises:
            ProblemError: The folder has no such run.
            RunFileError: The file is not a readable run file.
        """
        file: str = scope["path_params"]["file"]
        run = self._open_run(file)
        run.n_requests += 1
        try:
            await run.app({**_without_route(scope), "path": f"/{scope['path_params']['rest']}"}, receive, send)
        finally:
            run.n_requests -= 1
            self._close_oldest()

    def close(self) -> None:
        """Close every run."""
        while self._open:
            self._open.popitem()[1].close()

    def _open_run(self, file: str) -> _OpenRun:
        run = self._open.pop(file, None)
        if run is None:
            path = self._index.path_of(file)
            if path is None:
                raise ProblemError(not_found(f"no run file {file[:200]!r} in {self._index.folder}"))
            try:
                settings = replace(
                    self._settings,
                    root_path=self._settings.root_path + url_path(file),
                    home=self._settings.root_path + "/",
                )
            except SettingsError:
                detail = f"the name of {file[:200]!r} cannot be part of a URL; rename the file"
                raise ProblemError(not_found(detail)) from None
            reader = Reader(path)
            app = create_app(reader, None, settings, tokens=self._tokens, files=self._files, behind_guard=True)
            run = _OpenRun(app, reader)
        self._open[file] = run
        return run

    def _close_oldest(self) -> None:
        for file in [file for file, run in self._open.items() if not run.n_requests][: -_MOST_OPEN or None]:
            self._open.pop(file).close()


class Site:
    """The application of a folder of runs."""

    def __init__(self, index: RunsIndex, settings: ServerSettings, tokens: Tokens) -> None:
        """Make it; ``settings.port`` must be the port that is bound."""
        self._root = settings.root_path
        self._index = index
        self._files = StaticFiles(pages.STATIC_DIR, find_plotly_js())
        self._reads, self._loads = ReadPool(1, settings.limits.n_readers_waiting), ReadPool(1, 256)
        self.runs = OpenRuns(index, settings, tokens, self._files)
        self.app = self._make(settings, tokens)
        below = re.escape(unquote(settings.root_path))
        self._static = re.compile(rf"(?:{below})?{RUNS}/[^/]+(/static/.+)")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the runs' scripts and styles are the site's own, so that a page costs no token for them."""
        if scope["type"] == "http" and (found := self._static.fullmatch(scope["path"])) is not None:
            scope = {**scope, "path": found[1]}
        await self.app(scope, receive, send)

    def stop(self) -> None:
        """Close every run that is open."""
        self.runs.close()

    def _make(self, settings: ServerSettings, tokens: Tokens) -> FastAPI:
        app = FastAPI(
            title="Podium runs",
            version=VERSION,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            redirect_slashes=False,
        )
        app.add_api_route("/", self._home, include_in_schema=False)
        app.add_api_route("/api/v1/runs", self._list, include_in_schema=False)
        app.add_api_route("/static/{name:path}", self._send_static, include_in_schema=False)
        for path in ("/livez", "/healthz", "/readyz"):
            app.add_api_route(path, _ok, include_in_schema=False)
        app.router.routes.append(Route(f"{RUNS}/{{file}}/{{rest:path}}", self.runs, methods=None))
        app.router.routes.append(Route(f"{RUNS}/{{file}}", self._with_slash))
        problem_page = html_problem(self._files, settings.root_path)
        install_problem_handlers(app, problem_page)
        add_guard(app, settings, tokens, problem_page)
        return app

    async def _home(self, request: Request) -> Response:
        params = dict(request.query_params)

        def draw() -> Response:
            content = load_home(self._index.refresh(_READ_S), params)
            frame = Frame(page="home", params=params, asset_version=self._files.version, root=self._root)
            text = render_home(frame, content, str(self._index.folder), self._url_of)
            return Response(text.encode("utf-8", "replace"), media_type="text/html")

        return await self._reads.ask(draw)

    async def _list(self) -> Response:
        entries = await self._reads.ask(lambda: self._index.refresh(_READ_S))
        return json_response(
            page([{"url": self._url_of(one.file), "state": one.state, "entry": one} for one in entries], None)
        )

    async def _send_static(self, request: Request, name: str) -> Response:
        return await send_static(self._files, self._loads, request, name)

    async def _with_slash(self, request: Request) -> Response:
        location = self._root + url_path(request.path_params["file"]) + "/"
        return Response(status_code=308, headers={"Location": location})

    def _url_of(self, file: str, path: str = "") -> str:
        return f"{self._root}{url_path(file)}/{path}"


def url_path(file: str) -> str:
    """Return the path of a run file's pages, without a slash at its end."""
    return f"{RUNS}/{quote(file, safe='', errors='replace')}"


async def _ok() -> Response:
    return Response("ok", media_type="text/plain")


def _without_route(scope: Scope) -> dict[str, Any]:
    return {name: value for name, value in scope.items() if name not in {"path_params", "endpoint", "route", "router"}}
