"""What is taken out of the dashboard: calls as CSV, a window of the run as a trace that Perfetto and Chrome open."""

from __future__ import annotations

import csv
import heapq
import io
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import count

from web.rows import CallRow
from web.source import DriverBars, Timeline

CALL_COLUMNS = tuple(field.name for field in fields(CallRow))
# A spreadsheet takes a text that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_DRIVER = 1
# More of one rank's spans than this side by side would be drawn on another's threads: no window has more.
_TIDS_OF_RANK = 100_000
_Event = dict[str, object]


def csv_head() -> str:
    """Return the line of names."""
    return _line(CALL_COLUMNS)


def csv_lines(calls: Iterable[CallRow]) -> str:
    """Return a line per call; a text that a spreadsheet would run is quoted by an apostrophe."""
    return "".join(_line([_harmless(getattr(call, name)) for name in CALL_COLUMNS]) for call in calls)


def trace(window: Timeline, name: str) -> dict[str, object]:
    """Return ``window``, which has bars, in the JSON of Chrome's trace viewer; times are in µs since the run's start.

    The driver is process 1, each group a process with a thread per rank. Numbers stand for both, with their names as
    metadata: viewers drop threads whose numbers are texts. Spans that overlap on a rank are put on threads beside it,
    as the viewers draw those of one thread inside of each other.
    """
    pids = {group: i for i, group in enumerate(dict.fromkeys(lane.group for lane in window.lanes), start=_DRIVER + 1)}
    events: list[_Event] = [_named("process_name", _DRIVER, 0, f"driver of {name}")]
    events += [_named("process_name", pid, 0, group) for group, pid in pids.items()]
    for step in window.steps:
        end_ms = window.run_ms if step.ended_ms is None else step.ended_ms
        events.append(_span(_DRIVER, 0, f"step {step.index}", step.started_ms, end_ms, dict(step.metrics)))
    events.append(_named("thread_name", _DRIVER, 0, "steps"))
    events += _on_threads(_DRIVER, 1, "calls", sorted(_driver_spans(window.driver, window.methods)))
    spans = _rank_spans(window)
    for lane in window.lanes:
        own = sorted(spans.get(lane.index, ()))
        events += _on_threads(pids[lane.group], _TIDS_OF_RANK * lane.rank, f"rank {lane.rank}", own)
    events += [
        {
            "ph": "i",
            "s": "g",
            "pid": _DRIVER,
            "tid": 0,
            "ts": one.at_ms * 1000,
            "name": one.kind,
            "args": {"text": one.text},
        }
        for one in window.markers
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": name}}


_Piece = tuple[float, float, str, int, str]


def _rank_spans(window: Timeline) -> dict[int, list[_Piece]]:
    """Return the spans of each lane, by its index."""
    bars = window.bars
    by_lane: dict[int, list[_Piece]] = {}
    for i, lane in enumerate(bars.lane):
        span = (bars.start_ms[i], bars.end_ms[i], window.methods[bars.method[i]], bars.call_id[i], bars.status[i])
        by_lane.setdefault(lane, []).append(span)
    return by_lane


def _driver_spans(driver: DriverBars, methods: tuple[str, ...]) -> Iterator[_Piece]:
    """Yield the phases of each call: those up to its sending are one after the other, so are those from its wait on."""
    for i, call_id in enumerate(driver.call_id):
        sending = (("gate", driver.gate_ms[i]), ("dispatch", driver.dispatch_ms[i]), ("execute", driver.execute_ms[i]))
        waiting = (("wait", driver.wait_ms[i]), ("collect", driver.collect_ms[i]), ("unpad", driver.unpad_ms[i]))
        for at_ms, phases in ((driver.start_ms[i], sending), (driver.waited_from_ms[i], waiting)):
            for phase, ms in phases:
                if ms > 0:
                    yield at_ms, at_ms + ms, f"{phase} {methods[driver.method[i]]}", call_id, driver.status[i]
                at_ms += ms


def _on_threads(pid: int, first_tid: int, name: str, pieces: Iterable[_Piece]) -> list[_Event]:
    """Return the events of ``pieces``, in the order of their beginnings, each on the first thread that is free."""
    events: list[_Event] = []
    taken: list[tuple[float, int]] = []
    free: list[int] = []
    unused = count()
    for start_ms, end_ms, what, call_id, status in pieces:
        while taken and taken[0][0] <= start_ms + 1e-6:
            heapq.heappush(free, heapq.heappop(taken)[1])
        k = heapq.heappop(free) if free else next(unused)
        heapq.heappush(taken, (end_ms, k))
        events.append(_span(pid, first_tid + k, what, start_ms, end_ms, {"call": call_id, "status": status}))
    names = [
        _named("thread_name", pid, first_tid + k, name if k == 0 else f"{name}, beside") for k in range(next(unused))
    ]
    return [*names, *events]


def _span(
    pid: int, tid: int, name: str, start_ms: float, end_ms: float, args: dict[str, object] | dict[str, float]
) -> _Event:
    length_us = max(end_ms - start_ms, 0.0) * 1000
    return {"ph": "X", "pid": pid, "tid": tid, "ts": start_ms * 1000, "dur": length_us, "name": name, "args": args}


def _named(what: str, pid: int, tid: int, name: str) -> _Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _line(values: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue()


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
