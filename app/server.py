"""The dashboard's server inside the driver's process, and over the file of a run that is done.

``with serve(): ...`` makes the run's file, records what the driver does and shows it. The server lives in a daemon
thread: it installs no signal handler, and it never keeps the driver from ending.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import TracebackType

from app.api import Tokens, create_app
from app.api.audit import OperationAudit
from app.live_calls import LiveCalls
from app.metrics import Metrics
from app.recorder import Recorder, start_run
from app.settings import ServerSettings
from app.sockets import ServerStartError as ServerStartError
from app.store.private import open_private
from app.store.reader import Reader
from app.store.writer import WriterOptions
from app.web_server import WebServer
from core import runtime, version
from core.control.commands import ControlPlane
from core.controller import control_plane
from core.events import Observer
from web.source import RunSource

_CONTROL_TOKEN = ".control-token"
# What a shell shows of a process that somebody ended; a tuple, as an exit code of a script may be any object.
_ENDED_WITH = (0, 128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)


class RunServer:
    """A recorded and shown run of this process; see ``serve``."""

    def __init__(
        self, settings: ServerSettings, runs_dir: Path, name: str, script: str, options: WriterOptions | None = None
    ) -> None:
        """Remember what is wanted; nothing is made before ``start``."""
        self._web = WebServer(settings)
        # A driver may change its folder while it runs.
        self._runs_dir = runs_dir.absolute()
        self._name = name
        self._script = script
        self._options = options
        self._tokens = Tokens.make(settings.control)
        self._recorder: Recorder | None = None
        self._reader: Reader | None = None
        self._observers: list[Observer] = []
        self._token_files: list[Path] = []
        self._ending = threading.Event()
        self._over = threading.Event()
        self._pid = os.getpid()

    @property
    def url(self) -> str:
        """The dashboard's address with the read token, also where control is on: programs print it into their logs."""
        return self._web.url(self._tokens.read)

    @property
    def control_url(self) -> str:
        """The dashboard's address with the control token, empty on a read-only server; not for a log."""
        return self._web.url(self._tokens.control) if self._tokens.control else ""

    @property
    def address(self) -> str:
        """The dashboard's address without a token."""
        return self._web.url()

    @property
    def token(self) -> str:
        """The token that may read."""
        return self._tokens.read

    @property
    def control_token(self) -> str:
        """The token that may steer, empty on a read-only server."""
        return self._tokens.control

    @property
    def control_token_file(self) -> Path | None:
        """The file that holds the control token while the driver runs, None on a read-only server."""
        return self._beside(_CONTROL_TOKEN) if self._tokens.control else None

    @property
    def db_path(self) -> Path:
        """The run's file.

        Raises:
            ServerStartError: The server was not started yet.
        """
        if self._recorder is None:
            raise ServerStartError("the server has not been started; call start() or use 'with app.serve() as server:'")
        return self._recorder.path

    def start(self) -> RunServer:
        """Take the port, make the run's file, record this driver and show it.

        Raises:
            ServerStartError: The port cannot be had.
            RunsFolderError: No file can be made in the runs folder.
        """
        if self._recorder is not None:
            raise ServerStartError("a server can be started only once; call app.serve() again for another run")
        settings = self._web.bind()
        try:
            self._start(settings)
        except BaseException:
            self.stop("failed")
            raise
        atexit.register(self.stop)
        return self

    def _start(self, settings: ServerSettings) -> None:
        current = runtime.current()
        recorder = self._recorder = start_run(
            self._runs_dir,
            name=self._name,
            script=self._script,
            started_ns=current.clock.now_ns(),
            podium_version=version.VERSION,
            ray_version=_version_of("ray"),
            options=self._options,
        )
        self._reader = Reader(recorder.path)
        metrics, live = Metrics(recorder.state), LiveCalls(current)
        plane = self._wire(recorder, metrics)
        self._write_tokens()
        app = create_app(
            self._reader,
            plane,
            settings,
            tokens=self._tokens,
            audit=recorder,
            now_ns=current.clock.now_ns,
            is_over=self._over.is_set,
            is_ending=self._ending.is_set,
            in_flight=live.calls_in_flight,
            metrics=metrics.text,
            stacks=live.stacks,
        )
        self._web.start(app)

    def end(self) -> None:
        """Take no more commands, as the driver is about to finish."""
        self._ending.set()

    def finish(self, status: str = "ended") -> None:
        """Stop recording and go on showing; ``status`` is "ended" or "failed". May be called twice."""
        if self._over.is_set() or os.getpid() != self._pid:
            return
        self.end()
        if self._recorder is not None:
            for observer in self._observers:
                runtime.current().bus.unsubscribe(observer)
            if self._reader is not None:
                # The writer's log stays beside the file for as long as a reader holds on to it.
                self._reader.rest()
            self._recorder.close(status=status)
        self._over.set()

    def stop(self, status: str = "ended") -> None:
        """Stop recording and showing; may be called twice. A forked child has nothing to stop."""
        if os.getpid() != self._pid:
            return
        self.finish(status)
        self._web.stop()
        if self._reader is not None:
            self._reader.close()
        for path in self._token_files:
            path.unlink(missing_ok=True)
        atexit.unregister(self.stop)

    def __enter__(self) -> RunServer:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and record whether the driver ended or failed."""
        self.stop(status_of(error))

    def _wire(self, recorder: Recorder, *others: Observer) -> ControlPlane | None:
        """Let the observers see what this driver does, and return its control plane if it may be steered."""
        current = runtime.current()
        current.bus.subscribe(recorder, recorder.flush)
        self._observers = [recorder, OperationAudit(recorder.writer.put), *others]
        for observer in self._observers[1:]:
            current.bus.subscribe(observer)
        return control_plane(current) if self._web.settings.control else None

    def _beside(self, suffix: str) -> Path:
        return self.db_path.with_name(self.db_path.name + suffix)

    def _write_tokens(self) -> None:
        """Leave the tokens beside the run's file for programs of this user, and for nobody else."""
        for suffix, token in ((".token", self._tokens.read), (_CONTROL_TOKEN, self._tokens.control)):
            if token:
                path = self._beside(suffix)
                handle = open_private(path, os.O_WRONLY | os.O_EXCL)
                self._token_files.append(path)
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.write(token + "\n")


def serve(
    runs_dir: str | os.PathLike[str] = "runs",
    host: str = "127.0.0.1",
    port: int = 0,
    control: bool = False,
    *,
    name: str = "",
    allow_remote: bool = False,
    i_know: bool | None = None,
    allowed_hosts: tuple[str, ...] = (),
    tracebacks: bool = True,
    script: str = "",
    uds: str | os.PathLike[str] = "",
    root_path: str = "",
    metrics_open: bool = False,
) -> RunServer:
    """Record this driver and show it in a browser, as long as a ``with`` block lasts.

    ::

        with app.serve() as server:
            print(server.url)
            train()

    Args:
        runs_dir: Directory for the run file, created if missing.
        host: Address to listen on; other than 127.0.0.1 and ::1 only with ``allow_remote``.
        port: Port to listen on; 0 picks a free port.
        control: Whether pools can be changed from the dashboard and over REST.
        name: Name of the run; the script's name if empty.
        allow_remote: Whether to accept connections from other hosts.
        i_know: Deprecated name of ``allow_remote``.
        allowed_hosts: Additional ``Host`` headers to accept, each with its port unless that is 80.
        tracebacks: Whether messages and tracebacks of errors and the ends of workers' logs are recorded; they can hold
            values of the program.
        script: Path of the driver script; detected if empty.
        uds: Unix socket to listen on instead of a port; only this user can connect.
        root_path: URL path prefix set by a reverse proxy, for example "/podium".
        metrics_open: Whether ``/metrics`` is served without a token.

    Raises:
        SettingsError: A setting is invalid.
    """
    if i_know is not None:
        warnings.warn("serve(i_know=...) is deprecated; use allow_remote=...", DeprecationWarning, stacklevel=2)
        allow_remote = allow_remote or i_know
    settings = ServerSettings(
        host=host,
        port=port,
        control=control,
        open_to_network=allow_remote,
        allowed_hosts=tuple(allowed_hosts),
        uds=os.fspath(uds),
        root_path=root_path,
        metrics_open=metrics_open,
    )
    script = script or sys.argv[0] or "interactive"
    options = WriterOptions(tracebacks=tracebacks)
    return RunServer(settings, Path(runs_dir), name or Path(script).stem, script, options)


class FileServer:
    """The same pages over the file of a run, of a dead driver as of one that still runs elsewhere; read-only."""

    def __init__(self, path: Path, settings: ServerSettings) -> None:
        """Remember what to show; nothing is opened before ``start``."""
        self._path = path
        self._web = WebServer(settings)
        self._tokens = Tokens.make(control=False)
        self._source: RunSource | None = None

    @property
    def url(self) -> str:
        """The address with the token in it."""
        return self._web.url(self._tokens.read)

    def start(self) -> FileServer:
        """Open the file and show it.

        Raises:
            RunFileError: The file is not a readable run file.
            ServerStartError: The port cannot be had.
        """
        source = self._source = Reader(self._path)
        try:
            source.open()
            settings = self._web.bind()
            self._web.start(create_app(source, None, settings, tokens=self._tokens))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop showing; may be called twice."""
        self._web.stop()
        if self._source is not None:
            self._source.close()

    def __enter__(self) -> FileServer:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()


def status_of(error: BaseException | None) -> str:
    """Return how a driver that left with ``error`` ended.

    A ``SystemExit`` without a code is not a failure, and neither is a driver that was asked to end: by Ctrl-C, or by a
    signal, whose exit code is 128 and its number.
    """
    match error:
        case None | KeyboardInterrupt():
            return "ended"
        case SystemExit(code=code) if code is None or code in _ENDED_WITH:
            return "ended"
        case _:
            return "failed"


def _version_of(distribution: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return ""
