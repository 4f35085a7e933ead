"""A folder of runs: one file each."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from pathlib import Path

from app.errors import RunsFolderError
from app.store.private import make_private_dir, open_to_others

_log = logging.getLogger("podium.store")


def new_run_path(runs_dir: Path, name: str, uid: str) -> Path:
    """Return the path of a new run's file, ``<time>-<name>-<uid>.db``, in a folder that can be written.

    Raises:
        RunsFolderError: The folder cannot be made or written.
    """
    try:
        is_new = make_private_dir(runs_dir)
        # Permission bits are not sufficient: a mount can be read-only and a disk full.
        with tempfile.TemporaryFile(dir=runs_dir):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunsFolderError(
            f"cannot write runs to {runs_dir}: {reason}; choose another folder", str(runs_dir), reason
        ) from error
    others = "" if is_new else open_to_others(runs_dir)
    if others:
        _log.warning("the runs folder %s is not private: %s; choose another one with mode 0700", runs_dir, others)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return runs_dir / f"{stamp}-{_plain(name)}-{uid}.db"


def crash_path(path: Path) -> Path:
    """Return where a driver's last stacks go, beside the run's file: ``<run>.crash.txt``."""
    return path.with_suffix(".crash.txt")


def run_paths(runs_dir: Path) -> tuple[Path, ...]:
    """Return the runs' files in a folder, newest first; none when there is no such folder.

    Raises:
        RunsFolderError: The folder cannot be read.
    """
    try:
        names = [name for name in os.listdir(runs_dir) if name.endswith(".db")]
    except FileNotFoundError:
        return ()
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunsFolderError(f"cannot read the runs in {runs_dir}: {reason}", str(runs_dir), reason) from error
    return tuple(runs_dir / name for name in sorted(names, reverse=True))


def _plain(name: str) -> str:
    """Return ``name`` as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:40] or "run"
