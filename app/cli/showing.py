"""``podium run``, ``podium demo`` and ``podium view``: the commands that show a run."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from app.cli.driver import check_script, run_script, show_error
from app.cli.say import CommandError, Exit, message
from app.server import FileServer, RunServer, serve, status_of
from app.settings import ServerSettings
from app.store.opened import bound_memory, real_path
from core import runtime
from core.runtime import OnDeath

_HOST = typer.Option("--host", help="Where to listen; anything but this machine's loopback needs --i-know.")
_PORT = typer.Option("--port", help="The port, 0 for a free one.")
_CONTROL = typer.Option("--control", help="Let pools be steered from the browser, over REST and by podium pools.")
_I_KNOW = typer.Option("--i-know", help="Let other machines reach the dashboard, on a network that is meant to.")
_ALLOWED = typer.Option("--allowed-host", help="A further name of this server, with its port, such as tunnel:8080.")
_UDS = typer.Option("--uds", help="A unix socket to listen on in place of a port; only you can open it.")
_ROOT_PATH = typer.Option("--root-path", help="The path under which a proxy shows the dashboard, such as /podium.")
_METRICS_OPEN = typer.Option("--metrics-open", help="Let /metrics be read without a token.")
_RUNS_DIR = typer.Option("--runs-dir", help="The folder for the runs' files.")
_NO_TRACEBACKS = typer.Option(
    "--no-tracebacks", help="Record no error messages, tracebacks and ends of logs; they can hold values."
)
_CPUS = typer.Option("--num-cpus", min=0, help="Logical CPUs of the Ray that Podium starts.")
_ON_DEATH = typer.Option(
    "--on-death", help="What follows a worker's death, for groups that do not say: abort, raise or restart."
)
_STALL_S = typer.Option("--stall-s", min=0.1, help="Tell of calls that have been in flight for so many seconds.")
_GPUS = typer.Option("--num-gpus", min=0, help="Logical GPUs of the Ray that Podium starts; the machine needs none.")

Host = Annotated[str, _HOST]
Port = Annotated[int, _PORT]
Control = Annotated[bool, _CONTROL]
IKnow = Annotated[bool, _I_KNOW]
Allowed = Annotated[list[str] | None, _ALLOWED]
Uds = Annotated[str, _UDS]
RootPath = Annotated[str, _ROOT_PATH]
MetricsOpen = Annotated[bool, _METRICS_OPEN]
RunsDir = Annotated[Path, _RUNS_DIR]
NoTracebacks = Annotated[bool, _NO_TRACEBACKS]
Cpus = Annotated[float | None, _CPUS]
Gpus = Annotated[float | None, _GPUS]
WhatOnDeath = Annotated[OnDeath, _ON_DEATH]
StallS = Annotated[float, _STALL_S]


def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="The driver, unchanged; what follows it are its own arguments.")],
    runs_dir: RunsDir = Path("runs"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    control: Control = False,
    num_cpus: Cpus = None,
    num_gpus: Gpus = None,
    i_know: IKnow = False,
    allowed_host: Allowed = None,
    no_tracebacks: NoTracebacks = False,
    on_death: WhatOnDeath = OnDeath.ABORT,
    stall_s: StallS = 60.0,
    uds: Uds = "",
    root_path: RootPath = "",
    metrics_open: MetricsOpen = False,
) -> None:
    """Run a driver script with the dashboard up; ends with the script's own exit code."""
    path = check_script(script)
    server = serve(
        runs_dir,
        host,
        port,
        control,
        name=path.stem,
        i_know=i_know,
        allowed_hosts=tuple(allowed_host or ()),
        tracebacks=not no_tracebacks,
        script=str(script),
        uds=uds,
        root_path=root_path,
        metrics_open=metrics_open,
    )
    _use_logical_resources(num_cpus, num_gpus)
    _watch_over(on_death, stall_s)
    raise typer.Exit(_conduct(server, path, context.args, stay=False))


def demo(
    context: typer.Context,
    seed: Annotated[int, typer.Option("--seed", help="The demo's random seed.")] = 0,
    leave: Annotated[bool, typer.Option("--exit", help="End when the demo's driver is done.")] = False,
    runs_dir: RunsDir = Path("runs"),
    host: Host = "127.0.0.1",
    port: Port = 0,
    control: Control = False,
    i_know: IKnow = False,
    allowed_host: Allowed = None,
    uds: Uds = "",
    root_path: RootPath = "",
    metrics_open: MetricsOpen = False,
) -> None:
    """Run the example, a small GRPO training, with the dashboard up; further arguments are the example's own.

    On a terminal the dashboard stays up until Ctrl-C when the driver is done.
    """
    path = _demo_script()
    server = serve(
        runs_dir,
        host,
        port,
        control,
        name="demo",
        i_know=i_know,
        allowed_hosts=tuple(allowed_host or ()),
        script=path.name,
        uds=uds,
        root_path=root_path,
        metrics_open=metrics_open,
    )
    _watch_over(OnDeath.ABORT)
    stay = not leave and sys.stdin.isatty() and sys.stderr.isatty()
    raise typer.Exit(_conduct(server, path, ["--seed", str(seed), *context.args], stay))


def view(
    file: Annotated[Path, typer.Argument(help="A run's file, of a finished, a crashed or a running driver.")],
    host: Host = "127.0.0.1",
    port: Port = 0,
    i_know: IKnow = False,
    allowed_host: Allowed = None,
    uds: Uds = "",
    root_path: RootPath = "",
) -> None:
    """Show a run from its file, without Ray; read-only."""
    settings = ServerSettings(
        host,
        port,
        open_to_network=i_know,
        allowed_hosts=tuple(allowed_host or ()),
        uds=uds,
        root_path=root_path,
    )
    # What lies beside a run's file, its driver's lock and last stacks, lies beside the one that a link leads to.
    bound_memory()
    with FileServer(real_path(file), settings) as server:
        message(f"showing {str(file).replace(chr(10), '?')} at {server.url}")
        _wait_for_the_end("Ctrl-C ends it")


def _conduct(server: RunServer, path: Path, arguments: Sequence[str], stay: bool) -> int:
    """Run the script under ``server`` and return the exit code."""
    with server:
        message(f"dashboard at {server.url}")
        outcome = run_script(path, arguments)
        # Ray's handler of SIGTERM sets an alarm that would abort the process 3 s later, in the middle of tidying up.
        signal.alarm(0)
        show_error(outcome.error, path)
        server.end()
        _let_go()
        server.finish(status_of(outcome.error))
        file = _shown(server.db_path)
        if server.db_path.exists():
            message(f"this run is in {file}; look at it again with: podium view {file}")
        else:
            message(f"the file of this run, {file}, was deleted while it ran; its record is lost")
        if stay and outcome.code == Exit.OK:
            _wait_for_the_end(f"the dashboard stays up at {server.address}; Ctrl-C ends it")
    return outcome.code


def _let_go() -> None:
    """Close the script's pools, so that the record says that its workers ended, and not that they still live."""
    try:
        runtime.current().close()
    except Exception as error:
        message(f"the script's pools could not all be closed: {error}")


def _watch_over(on_death: OnDeath, stall_s: float = 60.0) -> None:
    """Tell core what to do about dead workers and calls that last; the script may say otherwise."""
    current = runtime.current()
    current.health_settings = replace(current.health_settings, on_death=on_death, stall_s=stall_s)


def _use_logical_resources(num_cpus: float | None, num_gpus: float | None) -> None:
    """Tell core what the Ray it may start should offer; nothing is started here."""
    if num_cpus is not None or num_gpus is not None:
        runtime.ray_options.pin(num_cpus, num_gpus)


def _demo_script() -> Path:
    """Return the example's driver, of the source tree or of the installed package."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here.parent / "examples", here / "_examples"):
        if (folder / "arithmetic_rl.py").is_file():
            return folder / "arithmetic_rl.py"
    raise CommandError("this installation has no examples; reinstall podium", code=Exit.FAILED)


def _shown(path: Path) -> str:
    """Return ``path`` as one would type it here."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


def _wait_for_the_end(said: str) -> None:
    """Say ``said``, then wait for Ctrl-C or a request to end."""
    over = threading.Event()
    with _on_sigterm(over), contextlib.suppress(KeyboardInterrupt):
        message(said)
        # A bare wait() would not let the main thread see a signal on every platform.
        while not over.wait(0.5):
            pass


@contextlib.contextmanager
def _on_sigterm(over: threading.Event) -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        over.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
