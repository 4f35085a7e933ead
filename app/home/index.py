"""An index of the run files in a folder, so that a look at the folder opens only the files that have changed.

It is kept in memory and in ``.podium-index.json`` in the folder, which may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from app.errors import ReaderError, RunFileError, RunsFolderError
from app.home.notes import note_path, read_note
from app.store.private import open_beside, open_private
from app.store.reader import Reader
from app.store.texts import LINE, bounded
from web.home import RunEntry, Series
from web.rows import Step

INDEX_FILE = ".podium-index.json"
_VERSION = 1
_MOST_BYTES = 64 * 1024 * 1024
_DEADLINE_S = 1.0
_N_METRICS, _N_VALUES = 2, 40
_log = logging.getLogger("podium.home")

_Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """An entry, and what its files looked like when it was made."""

    stamp: _Stamp
    entry: RunEntry


@dataclass(frozen=True, slots=True)
class _Index:
    """The content of the index file."""

    version: int
    kept: dict[str, _Kept]


_INDEX = TypeAdapter(_Index)


class RunsIndex:
    """The run files of a folder; may be asked from several threads."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is read before ``refresh``."""
        self.folder = folder
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] | None = None
        self._saved: dict[str, _Kept] = {}

    def path_of(self, file: str) -> Path | None:
        """Return the path of a run file by its name, or None when the folder has no such file."""
        is_ours = file.endswith(".db") and "/" not in file and "\0" not in file
        path = self.folder / file
        return path if is_ours and path.is_file() else None

    def refresh(self, budget_s: float) -> tuple[RunEntry, ...]:
        """Return an entry for each run file, newest name first; files are read until ``budget_s`` is used up.

        Raises:
            RunsFolderError: The folder cannot be read.
        """
        with self._lock:
            deadline = time.monotonic() + budget_s
            if self._kept is None:
                self._kept = self._saved = self._load()
            before = self._kept
            found: dict[str, _Kept] = {}
            n_read = 0
            for file in sorted(_files(self.folder), reverse=True):
                path = self.folder / file
                try:
                    stamp = _stamp(path)
                except OSError as error:
                    problem = f"cannot be read: {error.strerror or error}"
                    found[file] = _Kept((), RunEntry(file, 0.0, 0, problem=bounded(problem, LINE)))
                    continue
                kept = before.get(file)
                # Of a run that goes on, only its driver's lock says when it has died.
                if kept is not None and kept.stamp == stamp and kept.entry.state != "running":
                    found[file] = kept
                elif n_read and time.monotonic() > deadline:
                    found[file] = _Kept((), _blank(path, stamp))
                else:
                    n_read += 1
                    try:
                        found[file] = _Kept(stamp, _read(path, stamp))
                    except ReaderError as error:
                        # Busy now, not unreadable: the next look tries again.
                        found[file] = _Kept((), replace(_blank(path, stamp), problem=bounded(str(error), LINE)))
            self._save(found)
            self._kept = found
            return tuple(one.entry for one in found.values())

    def _load(self) -> dict[str, _Kept]:
        with contextlib.suppress(OSError, ValidationError):
            with os.fdopen(open_beside(self.folder / INDEX_FILE), "rb") as file:
                index = _INDEX.validate_json(file.read(_MOST_BYTES), strict=False)
            if index.version == _VERSION:
                return {file: one for file, one in index.kept.items() if one.entry.file == file}
        return {}

    def _save(self, found: dict[str, _Kept]) -> None:
        """Keep what was read for the next process; a folder that cannot be written has its index in memory only."""
        done = {file: one for file, one in found.items() if one.stamp and one.entry.state != "running"}
        if done == self._saved:
            return
        self._saved = done
        # Half of a surrogate pair in a file's name is not JSON.
        with contextlib.suppress(OSError, TypeError, ValueError):
            made = self.folder / f"{INDEX_FILE}.{os.getpid()}"
            with os.fdopen(open_private(made, os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(orjson.dumps(_Index(_VERSION, done)))
            made.replace(self.folder / INDEX_FILE)


def _files(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return [one.name for one in found if one.name.endswith(".db")]
    except FileNotFoundError:
        return []
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunsFolderError(f"cannot read the runs in {folder}: {reason}", str(folder), reason) from error


def _stamp(path: Path) -> _Stamp:
    """Return what changes with a run's files: its own, its log's and its note's identity, size and time.

    Raises:
        OSError: It is not there, or nothing that can be read without waiting.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is not a regular file")
    stamp = [found.st_mtime_ns, found.st_size, found.st_ino]
    for beside in (path.with_name(path.name + "-wal"), note_path(path)):
        with contextlib.suppress(OSError):
            one = beside.stat()
            stamp += [one.st_mtime_ns, one.st_size]
        stamp.append(-1)
    return tuple(stamp)


def _blank(path: Path, stamp: _Stamp) -> RunEntry:
    return RunEntry(path.name, stamp[0] / 1e6, stamp[1])


def _read(path: Path, stamp: _Stamp) -> RunEntry:
    """Return the entry of a file; one that is damaged, foreign or newer is told as that.

    Raises:
        ReaderError: It is busy, or too slow.
    """
    blank = _blank(path, stamp)
    reader = Reader(path, n_connections=1, deadline_s=_DEADLINE_S)
    try:
        overview = reader.overview()
    except ReaderError:
        raise
    except RunFileError as error:
        return replace(blank, problem=bounded(str(error).removeprefix(f"{path} "), LINE))
    except Exception as error:
        # A stranger's file must not hide the others.
        _log.warning("cannot list %r", path.name, exc_info=True)
        return replace(blank, problem=f"cannot be read: {type(error).__name__}")
    finally:
        reader.close()
    note = read_note(path)
    return replace(
        blank,
        n_bytes=overview.recorder.db_bytes,
        run=overview.run,
        n_steps=overview.steps[-1].index if overview.steps else 0,
        n_ranks=len({(worker.group, worker.rank) for worker in overview.workers}),
        metrics=_metrics(overview.steps),
        note=note.note,
        tags=note.tags,
    )


def _metrics(steps: tuple[Step, ...]) -> tuple[Series, ...]:
    """Return the first metrics of a run's steps, each thinned to a few values with the last one."""
    values: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.metrics:
            if name in values or len(values) < _N_METRICS:
                values.setdefault(name, []).append(value)
    return tuple(
        Series(bounded(name, 60), found[-1], (*found[: -1 : -(-len(found) // _N_VALUES)], found[-1]))
        for name, found in values.items()
    )
