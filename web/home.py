"""The list of the runs in a folder: what is known of each file, and which of them a query asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from web.frame import Content
from web.rows import Run

RUNS_PER_PAGE = 100
STATES = ("running", "ended", "failed", "died", "unreadable", "not read yet")
_WIDTH, _HEIGHT, _MARGIN = 76.0, 20.0, 2.0


@dataclass(frozen=True, slots=True)
class Series:
    """A metric of a run's steps: its last value, and a few of its values in order for a small chart."""

    name: str
    last: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A file of the folder. ``run`` is None for a file that is not read yet, or not readable: ``problem`` says why.

    ``modified_ms`` is since 1970; ``n_bytes`` counts the file with its write-ahead log. ``note`` and ``tags`` are a
    person's own, and lie in a file beside the run's.
    """

    file: str
    modified_ms: float
    n_bytes: int
    run: Run | None = None
    n_steps: int = 0
    n_ranks: int = 0
    metrics: tuple[Series, ...] = ()
    note: str = ""
    tags: tuple[str, ...] = ()
    problem: str = ""

    @property
    def state(self) -> str:
        """Return the run's state, or that it is not known."""
        return self.run.state if self.run is not None else "unreadable" if self.problem else "not read yet"

    @property
    def name(self) -> str:
        """Return the run's name, or its file's."""
        return self.run.name if self.run is not None else self.file

    def matches(self, words: tuple[str, ...]) -> bool:
        """Return whether each word stands in one of the entry's texts, in any case."""
        run = (self.run.name, self.run.script, self.run.host, self.run.id) if self.run is not None else ()
        text = "\n".join((self.file, self.note, self.problem, *self.tags, *run)).casefold()
        return all(word in text for word in words)


_Key = Callable[[RunEntry], tuple[object, ...]]
# Largest first, but for names. Runs that go on stand above all others where nothing else is asked for.
SORTS: dict[str, tuple[str, _Key, bool]] = {
    "started": ("Started", lambda one: (one.run is not None, one.state == "running", _started(one)), True),
    "name": ("Name", lambda one: (one.name.casefold(), one.file), False),
    "duration": ("Duration", lambda one: (one.run.duration_ms if one.run else -1.0,), True),
    "calls": ("Calls", lambda one: (one.run.n_calls if one.run else -1,), True),
    "failed": ("Failed", lambda one: (one.run.n_failed_calls if one.run else -1,), True),
    "steps": ("Steps", lambda one: (one.n_steps,), True),
    "ranks": ("Ranks", lambda one: (one.n_ranks,), True),
    "size": ("Size", lambda one: (one.n_bytes,), True),
}


def load_home(entries: tuple[RunEntry, ...], params: Mapping[str, str]) -> Content:
    """Return the page: the entries that a query asks for, sorted, with the numbers of those in each state.

    ``q`` holds words, ``state`` a state, ``tag`` a tag, ``sort`` a column, ``page`` counts from 1; a value that is not
    known is ignored.
    """
    words = tuple(params.get("q", "").casefold().split())
    state = params.get("state", "") if params.get("state", "") in STATES else ""
    tag = params.get("tag", "")
    sort = params.get("sort", "") if params.get("sort", "") in SORTS else "started"
    counts = {name: sum(one.state == name for one in entries) for name in STATES}
    found = [
        one
        for one in entries
        if (not state or one.state == state) and (not tag or tag in one.tags) and one.matches(words)
    ]
    _, key, descending = SORTS[sort]
    found.sort(key=key, reverse=descending)
    n_pages = max(1, -(-len(found) // RUNS_PER_PAGE))
    asked = params.get("page", "")
    page = min(int(asked), n_pages) if asked.isascii() and asked.isdigit() and 0 < len(asked) < 9 else 1
    page = max(page, 1)
    return Content(
        entries=found[(page - 1) * RUNS_PER_PAGE : page * RUNS_PER_PAGE],
        n_all=len(entries),
        n_found=len(found),
        n_unread=counts["not read yet"],
        counts=counts,
        tags=sorted({tag for one in entries for tag in one.tags}),
        sorts={name: title for name, (title, _, _) in SORTS.items()},
        filters={"q": params.get("q", ""), "state": state, "tag": tag, "sort": "" if sort == "started" else sort},
        sort=sort,
        page=page,
        n_pages=n_pages,
        sparkline=sparkline,
    )


def sparkline(values: tuple[float, ...]) -> str:
    """Return the points of an SVG polyline, 76 wide and 20 high, through the finite values; empty with fewer than 2."""
    points = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    # A flat line lies in the middle; halves, because the difference of two floats can be infinite.
    span = high / 2 - low / 2
    x = (_WIDTH - 2 * _MARGIN) / (len(values) - 1)

    def y(value: float) -> float:
        share = (value / 2 - low / 2) / span if span else 0.5
        return _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN)

    return " ".join(f"{_MARGIN + index * x:.1f},{y(value):.1f}" for index, value in points)


def _started(one: RunEntry) -> str:
    # The file's name begins with the local time of the start; a name that was changed sorts by what it is now.
    return one.run.started_at if one.run is not None else one.file
