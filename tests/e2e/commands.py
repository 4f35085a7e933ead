"""A ``podium`` command as a process of its own: what it says, what its API answers, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 150.0
"""Seconds on quiet cores, but minutes when others use them; nothing waits longer than it must."""


def until(ask: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Ask again and again until the answer is true, and return it.

    Raises:
        AssertionError: It was not in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (answer := ask()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.05)
    return answer


@dataclass
class Said:
    """The lines of one stream so far."""

    lines: list[str] = field(default_factory=list)

    def read(self, stream: IO[str]) -> None:
        """Take in all that comes."""
        for line in stream:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        """Everything in one text."""
        return "\n".join(self.lines)

    def count(self, pattern: str) -> int:
        """Return how often ``pattern`` is in it."""
        return len(re.findall(pattern, self.text))


class Command:
    """``podium`` with ``arguments`` in ``folder``, without a terminal; it is ended with the ``with`` block.

    What Ray needs on disk goes to ``folder`` as well, so that every process of this run can be told from others.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Start the process."""
        self.folder = folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PODIUM_"))}
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("podium")), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "RAY_TMPDIR": str(folder), "COLUMNS": "200"},
        )
        self.out, self.err = Said(), Said()
        self._readers = [
            threading.Thread(target=said.read, args=(stream,), daemon=True)
            for said, stream in ((self.out, self._process.stdout), (self.err, self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def until(self, ask: Callable[[], T | None], what: str) -> T:
        """Wait for something that can only come while the process runs.

        Raises:
            AssertionError: It was not in time, or the process ended without it.
        """
        alive_before = True

        def still() -> T | None:
            nonlocal alive_before
            answer = ask()
            if not answer and not alive_before:
                raise AssertionError(f"podium ended before {what}:\n{self.out.text}\n{self.err.text}")
            alive_before = self.is_alive  # one more look after the end
            return answer

        return until(still, what)

    def said(self, pattern: str, stream: Said | None = None) -> re.Match[str]:
        """Wait for ``pattern`` in what the process says (on stderr when no stream is named)."""
        heard = self.err if stream is None else stream
        return self.until(lambda: re.search(pattern, heard.text, re.MULTILINE), f"{pattern!r} was said")

    @property
    def url(self) -> str:
        """Return the printed URL, with the token that may read."""
        return self.said(r"(http://127\.0\.0\.1:\d+/\?token=\S{43})$")[1]

    @property
    def control_url(self) -> str:
        """Return the URL with the control token, which lies in a file."""
        file = self.folder / self.said(r"the control token is in (\S+\.control-token)$")[1]
        return f"{self.origin}/?token={file.read_text(encoding='utf-8').strip()}"

    @property
    def origin(self) -> str:
        """Return the URL's origin."""
        return self.url.partition("/?")[0]

    def get(self, path: str) -> Any:
        """Return what the API answers, with the printed token."""
        return self._ask(urllib.request.Request(f"{self.origin}/api/v1{path}"), self.url.partition("token=")[2])

    def post(self, path: str, token: str) -> Any:
        """Ask for a deed as another program would: a bearer token, JSON."""
        request = urllib.request.Request(f"{self.origin}/api/v1{path}", data=b"{}", method="POST")
        request.add_header("Content-Type", "application/json")
        return self._ask(request, token)

    @staticmethod
    def _ask(request: urllib.request.Request, token: str) -> Any:
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit code."""
        code = self._process.wait(timeout_s)
        # A process that outlives us may hold our streams; what we said ourselves has come by then.
        for reader in self._readers:
            reader.join(5)
        return code

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def leftovers(self) -> list[int]:
        """Return the processes of this run that live: by their environment, their command line, or an open file."""
        mark = str(self.folder).encode()
        return [pid for pid in _pids() if pid != os.getpid() and _bears(pid, mark)]

    def gone(self) -> bool:
        """Wait until nothing of this run lives.

        Raises:
            AssertionError: Something stayed.
        """
        return until(lambda: not self.leftovers(), f"the end of all processes of {self.folder}", timeout_s=40)

    def __enter__(self) -> Command:
        """Nothing more to do."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process and whatever it left."""
        if self.is_alive:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        for pid in {self.pid, *self.leftovers()} if self.is_alive else self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)
        for reader in self._readers:
            reader.join(5)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _bears(pid: int, mark: bytes) -> bool:
    """Tell whether a process has ``mark`` somewhere; one that renamed itself lost its environment but not its log."""
    folder = Path(f"/proc/{pid}")
    try:
        if mark in (folder / "cmdline").read_bytes() or mark in (folder / "environ").read_bytes():
            return True
        return any(mark in os.readlink(handle).encode() for handle in (folder / "fd").iterdir())
    except OSError:  # it ended meanwhile, or is another user's
        return False
