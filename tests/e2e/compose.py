"""The composition of docker-compose.yml under a project name of its own, on a real engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from app.client import Client
from tests.e2e.commands import until

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
START_S, BUILD_S, STOP_S = 420.0, 1500.0, 90.0


def note(text: str) -> None:
    """Print what is done or seen, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def engine_missing() -> str:
    """Return why nothing can be tested here; empty where an engine answers."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    found = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if found.returncode:
        return f"no Docker engine can be reached: {found.stderr.strip()}"
    return "" if compose_command() else "there is neither `docker compose` nor `docker-compose`"


def compose_command() -> list[str]:
    """Return the command to test: that of PODIUM_COMPOSE, the plugin, or docker-compose; empty if there is none."""
    if chosen := os.environ.get("PODIUM_COMPOSE", "").split():
        return chosen
    plugin = ["docker", "compose"]
    if subprocess.run([*plugin, "version"], capture_output=True, timeout=60, check=False).returncode == 0:
        return plugin
    return ["docker-compose"] if shutil.which("docker-compose") else []


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Composition:
    """The compose file's containers, network and volume; all of it is removed with the ``with`` block."""

    def __init__(self, arguments: str = "") -> None:
        """Choose a name and a port; ``arguments`` are the demo's. Nothing is started."""
        self.project = f"podium-test-{os.getpid()}"
        self.port = free_port()
        self._command = [*compose_command(), "-p", self.project, "-f", str(ROOT / "docker-compose.yml")]
        self._environment = {
            **os.environ,
            "PODIUM_PORT": str(self.port),
            "PODIUM_DEMO_ARGS": arguments,
            "COMPOSE_ANSI": "never",
        }
        self._up: subprocess.Popen[str] | None = None
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  closed in __exit__

    def __enter__(self) -> Composition:
        """Nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove containers, network and volume; after an error, show what the containers printed."""
        if error is not None:
            note(f"what the containers printed last:\n{self.run('logs', '--tail=60', check=False)[-8000:]}")
        self._leave()
        self.run("down", "-v", "--timeout", "20", check=False)
        self._output.close()
        note(f"removed all of project {self.project}")

    def run(self, *arguments: str, timeout_s: float = 180.0, check: bool = True) -> str:
        """Run a compose command and return what it printed.

        Raises:
            AssertionError: It failed.
        """
        done = subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.stdout

    def build(self) -> None:
        """Build the image, unless PODIUM_COMPOSE_BUILD is 0."""
        if os.environ.get("PODIUM_COMPOSE_BUILD") == "0":
            note("tests the image podium:local as it is")
            return
        began_s = time.monotonic()
        self.run("build", timeout_s=BUILD_S)
        note(f"built the image in {time.monotonic() - began_s:.0f} s")

    def up(self) -> None:
        """Start everything in the foreground, as a person would."""
        self._leave()
        self._up = subprocess.Popen(
            [*self._command, "up", "--no-build"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_take_ctrl_c,
        )

    def _leave(self) -> None:
        """End what is left of an earlier ``up``; the containers are not touched."""
        if self._up is not None:
            self._up.kill()
            self._up.wait(STOP_S)

    def press_ctrl_c(self) -> None:
        """Interrupt ``up`` and wait for its end."""
        assert self._up is not None
        self._up.send_signal(signal.SIGINT)
        self._up.wait(STOP_S)

    def until(self, ask: Callable[[], T | None], what: str, timeout_s: float = START_S) -> T:
        """Ask again and again until the answer is true, and return it.

        Raises:
            AssertionError: It was not in time, or the driver's container ended without it.
        """
        deadline_s = time.monotonic() + timeout_s
        while not (answer := ask()):
            up = self._up
            if up is not None and up.poll() is not None:
                raise AssertionError(f"`up` ended with {up.returncode} before {what}")
            if self.state("driver") == "exited":
                raise AssertionError(f"the driver's container ended before {what}:\n{self.log()[-3000:]}")
            if time.monotonic() > deadline_s:
                raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
            time.sleep(2)
        return answer

    def url(self) -> str:
        """Wait for the dashboard and return its URL with the control token."""
        pattern = rf"dashboard at (http://127\.0\.0\.1:{self.port}/\?token=[\w-]+)"
        found = self.until(lambda: re.findall(pattern, self.log()), "the dashboard's URL")
        return str(found[-1])

    def client(self) -> Client:
        """Return a REST client for the running driver."""
        url = self.url()
        return Client(url.partition("/?")[0], url.partition("token=")[2], timeout_s=60)

    def accuracies(self) -> list[float]:
        """Return the accuracy of each RL step that the driver printed in this life of its container."""
        return [float(found) for found in re.findall(r"^.*step \d+/\d+: .*accuracy ([\d.]+)", self.log(), re.MULTILINE)]

    def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers, stopped ones too."""
        labels = {"project": self.project, "service": service}
        filters = [
            part for key, value in labels.items() for part in ("--filter", f"label=com.docker.compose.{key}={value}")
        ]
        return engine("ps", "-aq", *filters).split()

    def state(self, service: str) -> str:
        """Return what the engine says of the service's first container: running, exited, ..., or nothing."""
        ids = self.containers(service)
        return engine("inspect", "--format", "{{.State.Status}}", ids[0]).strip() if ids else ""

    def exit_code(self, service: str) -> int:
        """Return the exit code of the service's first container."""
        return int(engine("inspect", "--format", "{{.State.ExitCode}}", self.containers(service)[0]))

    def log(self) -> str:
        """Return what the driver's container printed since it was started last, without colors."""
        ids = self.containers("driver")
        if not ids:
            return ""
        since = engine("inspect", "--format", "{{.State.StartedAt}}", ids[0]).strip()
        return plain(engine("logs", "--since", since, ids[0]))

    def in_volume(self, *command: str) -> str:
        """Run a command in a new container that has the runs, and return what it printed on stdout."""
        return engine("run", "--rm", "--network", "none", "-v", f"{self.project}_runs:/runs", "podium:local", *command)

    @contextlib.contextmanager
    def view(self, file: str) -> Iterator[str]:
        """Show a run of the volume in a container of the driver's service, as docs/docker.md says; yield the URL."""
        name = f"{self.project}-view"
        address = f"127.0.0.1:{self.port}"
        options = ["--host", "0.0.0.0", "--allow-remote", "--port", str(self.port), "--allowed-host", address]
        self.run(
            "run", "-d", "--name", name, "--no-deps", "--service-ports", "driver", "podium", "view", file, *options
        )
        try:
            pattern = rf"(http://{address}/\?token=[\w-]+)"
            found = until(lambda: re.search(pattern, plain(engine("logs", name))), "the URL of podium view")
            yield str(found[1])
        finally:
            engine("rm", "-f", name)

    def runs(self) -> list[dict[str, object]]:
        """Return the runs in the volume, newest first."""
        found: list[dict[str, object]] = json.loads(
            self.in_volume("podium", "runs", "list", "--runs-dir", "/runs", "--json")
        )
        return found


def engine(*arguments: str, timeout_s: float = 120.0) -> str:
    """Run a docker command and return what it printed, stderr too.

    Raises:
        AssertionError: It failed.
    """
    # `docker logs` has the container's stderr on its own stderr; of `docker run` only the command's stdout is wanted.
    errors = subprocess.PIPE if arguments[0] == "run" else subprocess.STDOUT
    done = subprocess.run(
        ["docker", *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise AssertionError(
            f"docker {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr or ''}"
        )
    return done.stdout


def plain(text: str) -> str:
    """Return what a terminal was sent without colors and carriage returns."""
    return re.sub(r"\x1b\[[\d;]*m|\r", "", text)


def _take_ctrl_c() -> None:
    """Let SIGINT mean Ctrl-C in a new process, also where the tests were started with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
