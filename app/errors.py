"""Every exception that the app raises, beside core's.

The tree::

    core.errors.PodiumError
    ├── RunsFolderError            a folder in which no run's file can be written
    ├── RunFileError               a run's file that cannot be used
    │   ├── RunFileMissingError (FileNotFoundError)
    │   ├── NotARunFileError       something else is in the file
    │   ├── DamagedFileError       SQLite finds it broken
    │   ├── SchemaVersionError     another Podium wrote it
    │   └── RunLockedError         another driver is writing it
    └── ReaderError                a question to a run's file that was not answered
        ├── ReaderBusyError        every reading connection was taken
        └── QueryTimeoutError      the answer took too long
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import PodiumError


@dataclass(eq=False)
class RunsFolderError(PodiumError):
    """No run's file can be written into ``folder``; ``reason`` is the system's own word for why."""

    folder: str = ""
    reason: str = ""


@dataclass(eq=False)
class RunFileError(PodiumError):
    """A run's file cannot be used."""

    path: str = ""


@dataclass(eq=False)
class RunFileMissingError(RunFileError, FileNotFoundError):
    """There is no such file."""

    __str__ = PodiumError.__str__


@dataclass(eq=False)
class NotARunFileError(RunFileError):
    """The file holds something other than a run."""


@dataclass(eq=False)
class DamagedFileError(RunFileError):
    """The file is broken; ``fault`` is the first that SQLite found, in its own words."""

    fault: str = ""


@dataclass(eq=False)
class SchemaVersionError(RunFileError):
    """The file's schema is not the one this Podium reads; ``found`` and ``expected`` are revisions."""

    found: str = ""
    expected: str = ""


@dataclass(eq=False)
class RunLockedError(RunFileError):
    """Another driver writes this file; ``pid`` is its process, 0 when it did not say."""

    pid: int = 0


@dataclass(eq=False)
class ReaderError(PodiumError):
    """A question to a run's file was not answered; asking again later may work."""

    retry_after_s: float = 1.0


@dataclass(eq=False)
class ReaderBusyError(ReaderError):
    """Every reading connection was taken."""


@dataclass(eq=False)
class QueryTimeoutError(ReaderError):
    """The answer took longer than the deadline, so the query was broken off."""

    deadline_s: float = 0.0
