"""The observer that records a driver's events in the run file."""

from __future__ import annotations

import atexit
import os
import platform
import socket
import sys
import time
import uuid
from pathlib import Path

from app.revision import commit_of
from app.store.crash import CrashFile
from app.store.facts import AuditFacts, RunFacts
from app.store.options import WriterOptions
from app.store.runs import new_run_path
from app.store.writer import Writer, WriterState
from core.events import Event, traits_of


class Recorder:
    """Records what it observes; observing costs the driver about a microsecond and never raises."""

    def __init__(self, writer: Writer, crash: CrashFile | None = None) -> None:
        """Record through ``writer``; nothing is touched before ``start``. ``crash`` takes the driver's last stacks."""
        self.writer = writer
        self._crash = crash
        self._put = writer.put

    @property
    def path(self) -> Path:
        """The run's file."""
        return self.writer.path

    def start(self) -> None:
        """Make the file and begin to write.

        Raises:
            RunLockedError: Another process writes this file.
            RunsFolderError: No file can be made there.
            RunFileError: The file holds something already.
        """
        self.writer.start()
        if self._crash is not None:
            self._crash.open()
        atexit.register(self._at_exit)

    def observe(self, event: Event) -> None:
        """Queue ``event``; an urgent one is written at once."""
        self._put(event)
        if traits_of(type(event)).urgent:
            self.writer.hurry()

    def audit(self, entry: AuditFacts, timeout_s: float = 1.0) -> bool:
        """Record one control request and return whether it is durable."""
        self._put(entry)
        return self.writer.flush(timeout_s)

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Wait until everything observed so far is committed, and say whether it is."""
        return self.writer.flush(timeout_s)

    def state(self) -> WriterState:
        """Return how the recording stands: queued, recorded, dropped, how far behind, and the last error."""
        return self.writer.state()

    def close(self, clean: bool = True, status: str = "ended") -> None:
        """Write the rest and how the run ended ("ended" or "failed"); may be called twice.

        ``clean`` is False when the driver is about to die: then the run will be shown as died.
        """
        self.writer.close(clean, status)
        if self._crash is not None:
            self._crash.close()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        # The interpreter keeps an error that ended the script here; it is not available elsewhere at this point.
        self.close(status="ended" if getattr(sys, "last_value", None) is None else "failed")


def start_run(
    runs_dir: Path,
    *,
    name: str,
    script: str,
    started_ns: int,
    podium_version: str,
    ray_version: str,
    options: WriterOptions | None = None,
) -> Recorder:
    """Make a new run's file in ``runs_dir`` and return the recorder that writes it, ready to subscribe to a bus.

    Args:
        runs_dir: The folder, made if it is missing.
        name: What the run is called in lists.
        script: The path of the driver's script; its arguments are not recorded, as a token could be among them.
        started_ns: The start of the run on the driver clock.
        podium_version: The version of this package.
        ray_version: The version of Ray, empty without it.
        options: How to write; the defaults are the measured ones.

    Raises:
        RunsFolderError: The folder cannot be made or written.
    """
    uid = uuid.uuid4().hex[:8]
    path = new_run_path(runs_dir, name, uid)
    # The driver clock began as the wall clock and never jumps; the distance shows how far the wall clock moved since.
    facts = RunFacts(
        uid=uid,
        name=name,
        script=script,
        host=socket.gethostname(),
        pid=os.getpid(),
        podium_version=podium_version,
        python_version=platform.python_version(),
        ray_version=ray_version,
        started_wall_ns=min(started_ns, time.time_ns()),
        started_ns=started_ns,
        git=commit_of(Path(script).parent if Path(script).is_file() else Path.cwd()),
    )
    recorder = Recorder(Writer(path, facts, options), CrashFile(path))
    recorder.start()
    return recorder
