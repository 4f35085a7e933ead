"""``podium run``, ``podium demo`` and ``podium view``: the commands that show a run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from app.cli.driver import Program, check_module, check_script, run_program, show_error
from app.cli.say import CommandError, Exit, is_terminal, message
from app.cli.signals import EndSignals, code_of, is_interruption
from app.home.server import FolderServer
from app.server import FileServer, RunServer, serve, status_of
from app.settings import ServerSettings
from app.store.opened import bound_memory, real_path
from core import runtime
from core.errors import UsageError
from core.runtime import OnDeath

_CLOSE_S, _RAYS_ALARM_S = 2.0, 3.0
_HOST = typer.Option("--host", help="Address to listen on. Any address but loopback needs --allow-remote.")
_PORT = typer.Option("--port", help="Port to listen on; 0 picks a free port.")
_CONTROL = typer.Option("--control", help="Allow changes of pools from the dashboard, REST and `podium pools`.")
_ALLOW_REMOTE = typer.Option("--allow-remote", help="Accept connections from other hosts.")
_I_KNOW = typer.Option("--i-know", hidden=True, help="Deprecated: use --allow-remote.")
_ALLOWED = typer.Option("--allowed-host", help="Additional Host header to accept, with port, for example tunnel:8080.")
_UDS = typer.Option("--uds", help="Unix socket to listen on instead of a port; only your user can connect.")
_ROOT_PATH = typer.Option("--root-path", help="URL path prefix set by a reverse proxy, for example /podium.")
_METRICS_OPEN = typer.Option("--metrics-open", help="Serve /metrics without a token.")
_RUNS_DIR = typer.Option("--runs-dir", help="Directory for run files.")
_NO_TRACEBACKS = typer.Option(
    "--no-tracebacks", help="Record no error messages, tracebacks and ends of logs; they can hold values."
)
_CPUS = typer.Option("--num-cpus", min=0, help="Logical CPUs of the Ray instance that Podium starts.")
_ON_DEATH = typer.Option("--on-death", help="Default policy when a worker dies: abort, raise or restart.")
_STALL_S = typer.Option("--stall-s", min=0.1, help="Warn about calls in flight for longer than this many seconds.")
_MODULE = typer.Option("-m", help="Run a module as `python -m` does: podium run [options] -m package.module [args].")
_VERL = typer.Option(
    "--verl", help="Run a program written for verl unmodified: Podium's core in place of verl.single_controller."
)
_GPUS = typer.Option(
    "--num-gpus", min=0, help="Logical GPUs of the Ray instance that Podium starts; no hardware needed."
)

Module = Annotated[bool, _MODULE]
Verl = Annotated[bool, _VERL]
Host = Annotated[str, _HOST]
Port = Annotated[int, _PORT]
Control = Annotated[bool, _CONTROL]
AllowRemote = Annotated[bool, _ALLOW_REMOTE]
IKnow = Annotated[bool, _I_KNOW]
Allowed = Annotated[list[str] | None, _ALLOWED]
Uds = Annotated[str, _UDS]
RootPath = Annotated[str, _ROOT_PATH]
MetricsOpen = Annotated[bool, _METRICS_OPEN]
RunsDir = Annotated[Path, _RUNS_DIR]
NoTracebacks = Annotated[bool, _NO_TRACEBACKS]
Cpus = Annotated[float | None, _CPUS]
Gpus = Annotated[float | None, _GPUS]
DeathPolicy = Annotated[OnDeath, _ON_DEATH]
StallS = Annotated[float, _STALL_S]


def run(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(help="Driver script, or with -m a module. Arguments after it are passed to it.")
    ],
    module: Module = False,
    verl: Verl = False,
    runs_dir: RunsDir = Path("runs"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    control: Control = False,
    num_cpus: Cpus = None,
    num_gpus: Gpus = None,
    allow_remote: AllowRemote = False,
    i_know: IKnow = False,
    allowed_host: Allowed = None,
    no_tracebacks: NoTracebacks = False,
    on_death: DeathPolicy = OnDeath.ABORT,
    stall_s: StallS = 60.0,
    uds: Uds = "",
    root_path: RootPath = "",
    metrics_open: MetricsOpen = False,
) -> None:
    """Run a driver, a script or a module, with the dashboard. Exits with its exit code."""
    program = check_module(str(script)) if module else check_script(script)
    if verl:
        _use_core_for_verl()
    server = serve(
        runs_dir,
        host,
        port,
        control,
        name=program.name,
        allow_remote=allow_remote or _renamed(i_know),
        allowed_hosts=tuple(allowed_host or ()),
        tracebacks=not no_tracebacks,
        script=f"-m {script}" if module else str(script),
        uds=uds,
        root_path=root_path,
        metrics_open=metrics_open,
    )
    _use_logical_resources(num_cpus, num_gpus)
    _watch_over(on_death, stall_s)
    raise typer.Exit(_conduct(server, program, context.args, stay=False))


def demo(
    context: typer.Context,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    leave: Annotated[bool, typer.Option("--exit", help="Exit when the driver has ended.")] = False,
    runs_dir: RunsDir = Path("runs"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    control: Control = False,
    allow_remote: AllowRemote = False,
    i_know: IKnow = False,
    allowed_host: Allowed = None,
    uds: Uds = "",
    root_path: RootPath = "",
    metrics_open: MetricsOpen = False,
) -> None:
    """Run the example, a small GRPO training, with the dashboard. Other arguments are passed to the example.

    On a terminal, the dashboard keeps running after the driver has ended, until Ctrl-C.
    """
    path = _demo_script()
    server = serve(
        runs_dir,
        host,
        port,
        control,
        name="demo",
        allow_remote=allow_remote or _renamed(i_know),
        allowed_hosts=tuple(allowed_host or ()),
        script=path.name,
        uds=uds,
        root_path=root_path,
        metrics_open=metrics_open,
    )
    _watch_over(OnDeath.ABORT)
    stay = not leave and is_terminal(sys.stdin) and is_terminal(sys.stderr)
    raise typer.Exit(_conduct(server, check_script(path), ["--seed", str(seed), *context.args], stay))


def view(
    file: Annotated[
        Path, typer.Argument(help="Run file of a finished, crashed or running driver; for a directory as `serve`.")
    ],
    host: Host = "127.0.0.1",
    port: Port = 0,
    allow_remote: AllowRemote = False,
    i_know: IKnow = False,
    allowed_host: Allowed = None,
    uds: Uds = "",
    root_path: RootPath = "",
) -> None:
    """Serve the dashboard for a run file, read-only and without Ray."""
    settings = ServerSettings(
        host,
        port,
        open_to_network=allow_remote or _renamed(i_know),
        allowed_hosts=tuple(allowed_host or ()),
        uds=uds,
        root_path=root_path,
    )
    if os.path.isdir(file):
        _show_folder(file, settings)
        return
    # What lies beside a run's file, its driver's lock and last stacks, lies beside the one that a link leads to.
    bound_memory()
    with EndSignals(os._exit) as signals, FileServer(real_path(file), settings) as server:
        message(f"showing {str(file).replace(chr(10), '?')} at {server.url}")
        signals.wait("press Ctrl-C to stop")


def serve_folder(
    runs_dir: Annotated[Path, typer.Argument(help="Directory with run files.")] = Path("runs"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    allow_remote: AllowRemote = False,
    allowed_host: Allowed = None,
    uds: Uds = "",
    root_path: RootPath = "",
) -> None:
    """Serve a list of all runs in a directory and the dashboard of each, read-only and without Ray."""
    settings = ServerSettings(
        host,
        port,
        open_to_network=allow_remote,
        allowed_hosts=tuple(allowed_host or ()),
        uds=uds,
        root_path=root_path,
    )
    if not runs_dir.is_dir():
        raise CommandError(f"{runs_dir} is not a directory; `podium view` serves a single run file", code=Exit.FAILED)
    _show_folder(runs_dir, settings)


def _show_folder(folder: Path, settings: ServerSettings) -> None:
    bound_memory()
    with EndSignals(os._exit) as signals, FolderServer(folder, settings) as server:
        message(f"showing the runs in {str(folder).replace(chr(10), '?')} at {server.url}")
        signals.wait("press Ctrl-C to stop")


def _conduct(server: RunServer, program: Program, arguments: Sequence[str], stay: bool) -> int:
    """Run the program under ``server`` and return the exit code."""
    # Where a script calls ray.init itself, Ray's handler of SIGTERM takes the place of ours; by default it waits 30 s.
    os.environ.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
    status = "failed"

    def end_now(code: int) -> None:
        _end_at_once(server, status, code)

    with EndSignals(end_now) as signals, server:
        _announce(server)
        outcome = run_program(program, arguments)
        error = signals.cause(outcome.error)
        code = code_of(error) if is_interruption(error) else outcome.code
        _stop_rays_alarm()
        status = status_of(error)
        show_error(error, program.file)
        signals.clean_up(error)
        server.end()
        _let_go()
        server.finish(status)
        file = _shown(server.db_path)
        if server.db_path.exists():
            message(f"run file: {file}; to view it again: podium view {file}")
        else:
            message(f"run file {file} was deleted during the run; its data is lost")
        if stay and code == Exit.OK:
            signals.wait(f"dashboard still running at {server.address}; press Ctrl-C to stop")
    return code


def _stop_rays_alarm() -> None:
    """Stop the alarm by which Ray's own handler of SIGTERM aborts a process 3 s later, in the middle of its cleanup.

    Another alarm is a caller's, such as a test's time limit.
    """
    if 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= _RAYS_ALARM_S:
        signal.alarm(0)


def _end_at_once(server: RunServer, status: str, code: int) -> None:
    """End this process and the Ray that it started, with the record closed if that takes no longer than a moment.

    On the main thread this may come in the middle of the same cleanup, with its locks held: another thread tries it.
    """
    message("ending at once")
    closing = threading.Thread(target=server.stop, args=(status,), daemon=True)
    closing.start()
    closing.join(_CLOSE_S)
    with contextlib.suppress(Exception):
        if runtime.current().connected:
            runtime.current().cluster.abandon()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _announce(server: RunServer) -> None:
    """Print the dashboard's URL; a log gets the read token only, as more people read a log than may steer the run."""
    if server.control_token_file is None:
        message(f"dashboard at {server.url}")
    elif is_terminal(sys.stderr):
        message(f"dashboard at {server.control_url}")
    else:
        message(f"dashboard at {server.url}")
        file = _shown(server.control_token_file)
        message(f"that URL is read-only, as stderr is not a terminal; the control token is in {file}")


def _let_go() -> None:
    """Close the script's pools, so that its workers are recorded as ended."""
    try:
        runtime.current().close()
    except Exception as error:
        message(f"could not close all pools of the script: {error}")


def _watch_over(on_death: OnDeath, stall_s: float = 60.0) -> None:
    """Set the defaults for dead workers and stalled calls; the script may override them."""
    current = runtime.current()
    current.health_settings = replace(current.health_settings, on_death=on_death, stall_s=stall_s)


def _use_logical_resources(num_cpus: float | None, num_gpus: float | None) -> None:
    """Set the logical resources of the Ray instance that core may start; nothing is started here."""
    if num_cpus is not None or num_gpus is not None:
        runtime.ray_options.pin(num_cpus, num_gpus)


def _use_core_for_verl() -> None:
    """Replace verl's controller, or say why it cannot be.

    Raises:
        CommandError: It cannot be replaced.
    """
    # Without the switch nothing of it is loaded.
    from app.verl.processes import use_core_for_verl

    try:
        version = use_core_for_verl()
    except UsageError as error:
        raise CommandError(str(error), code=Exit.USAGE) from error
    message(f"verl {version}: its controller and batch are Podium's")


def _renamed(i_know: bool) -> bool:
    """Return ``--i-know``, which is called ``--allow-remote`` now, after a warning."""
    if i_know:
        message("--i-know is deprecated and will be removed in the next version; use --allow-remote")
    return i_know


def _demo_script() -> Path:
    """Return the example's driver, of the source tree or of the installed package."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here.parent / "examples", here / "_examples"):
        if (folder / "arithmetic_rl.py").is_file():
            return folder / "arithmetic_rl.py"
    raise CommandError("examples not found in this installation; reinstall podium", code=Exit.FAILED)


def _shown(path: Path) -> str:
    """Return ``path`` as one would type it here."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)
