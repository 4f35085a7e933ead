"""A web application served on a thread of its own: a run's dashboard, or the list of runs.

The thread is a daemon: it installs no signal handler, and it never keeps the process from ending.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from dataclasses import replace

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from app.api import hub_of
from app.api.connections import server_config
from app.settings import ServerSettings
from app.sockets import ServerStartError, bind_port, bind_uds, forget_uds

_log = logging.getLogger("podium.server")
_START_S = 10.0
_JOIN_S = 3.0
# A connection beyond these is dropped by the system, and its client tries again a second later.
_N_WAITING = 1024


class WebServer:
    """A web application on a thread of its own; bound before it serves, so that a taken port is an error here."""

    def __init__(self, settings: ServerSettings) -> None:
        """Remember where to listen; nothing is opened before ``bind``."""
        self.settings = settings
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._app: ASGIApp | None = None
        self._stopped = False

    def bind(self) -> ServerSettings:
        """Take the port, or the unix socket, and return the settings with its number.

        Raises:
            ServerStartError: The port or socket is in use, or not to be had.
        """
        if self._socket is None and self.settings.uds:
            # A driver may change its folder while it runs.
            self.settings = replace(self.settings, uds=os.path.abspath(self.settings.uds))
            self._socket = bind_uds(self.settings.uds)
        elif self._socket is None:
            self._socket = bind_port(self.settings.host, self.settings.port)
            self.settings = replace(self.settings, port=self._socket.getsockname()[1])
        _web_servers.add(self)
        return self.settings

    def close_in_child(self) -> None:
        """Close the port in a forked child: it would stay taken while that lives, and nobody would answer."""
        if self._socket is not None:
            self._socket.close()

    def start(self, app: ASGIApp) -> None:
        """Serve ``app`` from now on.

        Raises:
            ServerStartError: The server's thread did not come up.
        """
        self.bind()
        assert self._socket is not None
        self._app = app
        self._server = uvicorn.Server(server_config(app, self.settings.limits))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="podium-server", daemon=True
        )
        self._thread.start()
        deadline_s = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline_s:
                self.stop()
                host, port = self.settings.host, self.settings.port
                raise ServerStartError("the dashboard server did not start; see the log", host=host, port=port)
            time.sleep(0.005)
        # Uvicorn's backlog is also how many are accepted in one go, and small for that reason; here more may wait.
        self._socket.listen(_N_WAITING)

    def url(self, token: str = "") -> str:
        """Return the address for a browser, with ``token`` in it if one is given; a unix socket's is for programs."""
        if self.settings.uds:
            return f"unix:{self.settings.uds}" + (f"?token={token}" if token else "")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.settings.port}/" + (f"?token={token}" if token else "")

    def stop(self) -> None:
        """End every stream, then the server; waits a bounded time and may be called twice."""
        if isinstance(self._app, FastAPI):
            hub_of(self._app).stop()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                _log.warning("the dashboard server did not stop within %g s; its thread keeps running", _JOIN_S)
        if self._socket is not None:
            self._socket.close()
            if self.settings.uds and not self._stopped:
                forget_uds(self.settings.uds)
        self._stopped = True


_web_servers: weakref.WeakSet[WebServer] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: list(map(WebServer.close_in_child, list(_web_servers))))
