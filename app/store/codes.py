"""Small numbers that stand for words in the file. Only ever append: old files keep their meaning."""

from __future__ import annotations

STATUSES = ("running", "ok", "error", "died", "cancelled")
RUNNING, OK, ERROR, DIED, CANCELLED = range(5)

LEVELS = ("info", "warning", "error")

# Bits of `RankSpan.said`: which of its own times the rank reported.
SAID_START, SAID_END = 1, 2

# A pool's map draws each of its processes.
MOST_PROCESSES = 65_536
_LARGEST = 2**63

# What became of a call that never ended, by the state of its run.
_NEVER_ENDED = {"running": RUNNING, "died": DIED}

_STATUS_CODES = {word: code for code, word in enumerate(STATUSES)}
_LEVEL_CODES = {word: code for code, word in enumerate(LEVELS)}


def status_code(word: str) -> int:
    """Return the number of a call's or span's status; a word nobody knows counts as an error."""
    return _STATUS_CODES.get(word, ERROR)


def never_ended_code(run_state: str) -> int:
    """Return the status of a call without an end in a run of that state: it died with the driver, or was cancelled."""
    return _NEVER_ENDED.get(run_state, CANCELLED)


def level_code(word: str) -> int:
    """Return the number of an event's level; a word nobody knows counts as a warning."""
    return _LEVEL_CODES.get(word, 1)


def pack_sizes(sizes: tuple[int, ...]) -> str:
    """Return ``sizes`` as compact text, such as "4,4,3"."""
    return ",".join(map(str, sizes))


def unpack_sizes(text: str) -> tuple[int, ...]:
    """Return what ``pack_sizes`` packed.

    Raises:
        ValueError: It is something else.
    """
    return tuple(map(whole, text.split(","))) if text else ()


def whole(text: str) -> int:
    """Return a whole number that JSON as we write it can carry.

    Raises:
        ValueError: ``text`` is not a whole number, or the number is too large.
    """
    found = int(text)
    if abs(found) >= _LARGEST:
        raise ValueError(f"{text[:60]!r} is out of range for a number in a run file")
    return found


def unpack_processes(text: str) -> tuple[int, ...]:
    """Return the processes per node that ``pack_sizes`` packed: few enough for a map that draws each of them.

    Raises:
        ValueError: It is something else.
    """
    sizes = unpack_sizes(text)
    if any(n < 0 for n in sizes) or sum(sizes) > MOST_PROCESSES:
        raise ValueError(f"{text[:60]!r} is not a pool of 0 to {MOST_PROCESSES:,} processes")
    return sizes
