"""Ray workers that are forked from one warm process, for tests that start hundreds of them.

A worker process of Ray that imports torch and tensordict costs this machine three seconds of a CPU before it does
anything. Here the command that Ray starts workers with is this file: it hands its arguments, environment and open files
to a process that has all of it imported, and that forks. What comes of it is a process of its own, as Ray's are, that
registers with Ray, can be killed, and shares nothing but memory pages that nobody writes to.

``with warm_workers(): ray.init(...)``, and ``ray.shutdown()`` before the end of the block. The mark
``warm_workers`` of a module has the fixture ``ray_runtime`` do so.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_WORKERS = ("setup_worker.py", "default_worker.py")
"""What Ray starts a worker with: the first where that has an environment to set up, which then runs the second."""
_REAPED_AFTER_S = 0.5
"""A process that ended stays a zombie for so long: whoever watches it reads its status then."""


@contextmanager
def warm_workers() -> Iterator[None]:
    """Have every Ray that is started in the block fork its workers."""
    with warm_python() as python, ray_starts_with(python):
        yield


@contextmanager
def ray_starts_with(python: str) -> Iterator[None]:
    """Have every Ray that is started in the block start its processes with this interpreter."""
    before = sys.executable
    sys.executable = python
    try:
        yield
    finally:
        sys.executable = before


@contextmanager
def warm_python() -> Iterator[str]:
    """Start the warm process; yield the command that is like Python, but has workers of Ray forked from it."""
    with tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp") as folder:
        address = os.path.join(folder, "warm")
        command = Path(folder) / "python"
        real = shlex.quote(sys.executable)
        command.write_text(
            f'#!/bin/sh\nexec {real} -S -E {shlex.quote(__file__)} {real} {address} "$@"\n', encoding="utf-8"
        )
        command.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, address],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"warm\n"
            yield str(command)
        finally:
            server.kill()
            server.communicate()


def ask(python: str, address: str, arguments: list[str]) -> None:
    """Have a worker forked and end when it does; be Python itself for anything else that Ray starts."""
    if not arguments[0].endswith(_WORKERS):
        os.execv(python, [python, *arguments])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(address)
        told = json.dumps({"arguments": arguments, "environ": dict(os.environ), "folder": os.getcwd()}).encode()
        socket.send_fds(line, [len(told).to_bytes(4, "big")], [0, 1, 2])
        line.sendall(told)
        line.recv(1)


def serve(address: str) -> None:
    """Import what workers need, but for Ray, which reads its settings then; fork one for each that asks."""
    import tests.live_workers  # noqa: F401

    threading.Thread(target=_end_with_the_test, daemon=True).start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(address)
        door.listen(64)
        print("warm", flush=True)
        while True:
            line, _ = door.accept()
            size, files, _, _ = socket.recv_fds(line, 4, 3)
            told = b""
            while len(told) < int.from_bytes(size, "big"):
                told += line.recv(65536)
            if (pid := os.fork()) == 0:
                door.close()
                _become_worker(json.loads(told), files, line)
            for descriptor in files:
                os.close(descriptor)
            line.close()
            _reap_later(pid)


def _become_worker(told: dict[str, Any], files: list[int], line: socket.socket) -> None:
    """Be what Ray asked for. ``line`` stays open as long as this process lives, and not in those it starts."""
    code = 1
    with suppress(BaseException):
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        line.set_inheritable(False)
        os.chdir(told["folder"])
        os.environ.clear()
        os.environ.update(told["environ"])
        options = told["arguments"]
        if options[0].endswith(_WORKERS[0]):
            del options[0]
        context = [one.partition("=")[2] for one in options if one.startswith("--serialized-runtime-env-context=")]
        os.environ.update(json.loads(context[0]).get("env_vars") or {} if context else {})
        mine = ("--serialized-runtime-env-context=", "--language=")
        sys.argv = [one for one in options if not one.startswith(mine)]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    os._exit(code)


def _end_with_the_test() -> None:
    """End when the test's process does, however it ended."""
    sys.stdin.read()
    os._exit(0)


def _reap_later(pid: int) -> None:
    """Let an ended process be looked at for a moment, then let go of it."""

    def reap() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        time.sleep(_REAPED_AFTER_S)
        os.waitpid(pid, 0)

    threading.Thread(target=reap, daemon=True).start()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        ask(sys.argv[1], sys.argv[2], sys.argv[3:])
