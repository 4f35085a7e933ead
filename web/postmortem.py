"""The page Post-mortem: why the driver ended, which worker died first, calls in flight, the last state of each rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from web.figures import figure_specs
from web.frame import Content, Frame
from web.rows import CallInFlight, Death, Run, Worker
from web.source import Lane, RunSource, Timeline

LAST_MS = 60_000.0
N_EVENTS = 25
N_IN_FLIGHT = 50
_PX = 1200
_WINDOWS_MS = (LAST_MS, 15_000.0, 3_000.0, 500.0)
_ABORTED_WITHIN_MS = 30_000.0
_SIGNALS = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV, a fault in native code",
    "Bus error": "SIGBUS, often a full /dev/shm or a truncated memory-mapped file",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the run, in words. ``tone`` is bad, good or open (it still runs); ``because`` may be empty."""

    tone: str
    headline: str
    because: str


@dataclass(frozen=True, slots=True)
class RankAtEnd:
    """What a rank did when the run ended: ``doing`` for ``for_ms``, None where the record does not say.

    ``doing`` is "in" a method, "idle since" one, "idle", or "dead since", then in the method that it died in.

    ``state`` is its worker's; ``call_id`` is the call it was in, or its last one, 0 when it never had one.
    """

    lane: Lane
    state: str
    doing: str
    for_ms: float | None
    call_id: int
    method: str


def load_postmortem(source: RunSource, frame: Frame) -> Content:
    """Return the page; for a run that is in progress or ended normally it says so."""
    run = source.run()
    deaths = source.deaths()
    crash_text = source.crash_text()
    in_flight = source.in_flight(N_IN_FLIGHT)
    seen = _last_spans(source, run.duration_ms)
    return Content(
        verdict=verdict(run, deaths, crash_text),
        ended_at=wall_time(run, run.duration_ms),
        deaths=deaths,
        crash_text=main_thread_first(crash_text),
        in_flight=in_flight,
        ranks=ranks_at_end(seen, in_flight, source.workers(), deaths),
        gaps=source.gaps(),
        events=source.events(N_EVENTS, None),
        from_ms=max(run.duration_ms - LAST_MS, 0.0),
        n_rows=3 + len(seen.lanes) + len({(lane.pool, lane.group) for lane in seen.lanes}),
        specs=figure_specs(),
    )


def verdict(run: Run, deaths: tuple[Death, ...], crash_text: str) -> Verdict:
    """Return what became of ``run`` and, of a death, the most that its file can prove."""
    if run.state == "running":
        return Verdict("open", "The run is in progress.", _worker_deaths(deaths, "so far"))
    if run.state == "ended":
        headline = "The run ended normally. No worker died." if not deaths else "The run ended normally."
        return Verdict("good", headline, _worker_deaths(deaths, "during the run"))
    if run.state == "failed":
        return Verdict("bad", "The driver ended with an error.", _worker_deaths(deaths, "before that"))
    return Verdict("bad", "The driver died.", _why(run, deaths, crash_text))


def signal_of(crash_text: str) -> str:
    """Return the signal that faulthandler wrote of, in words, or an empty string."""
    found = re.findall(r"^Fatal Python error: (.+)$", crash_text, re.MULTILINE)
    return _SIGNALS.get(found[-1].strip(), found[-1].strip()) if found else ""


def main_thread_first(crash_text: str) -> str:
    """Return faulthandler's text with the stack of the driver's main thread before those of the others, named so.

    faulthandler writes the threads in the reverse order of their creation, so the main thread is its last one; it is
    missing where there were more than the hundred that faulthandler writes.
    """
    starts = [found.start() for found in re.finditer(r"^(?:Current thread|Thread) 0x", crash_text, re.MULTILINE)]
    if not starts or re.search(r"^\.\.\.$", crash_text, re.MULTILINE):
        return crash_text
    stack, blank, rest = crash_text[starts[-1] :].partition("\n\n")
    is_current = stack.startswith("Current")
    main = f"Main thread{', current' if is_current else ''} {stack[stack.index('0x') :].rstrip()}\n"
    others = crash_text[starts[0] : starts[-1]].rstrip()
    tail = "\n".join(part for part in (others, blank and rest) if part)
    return f"{crash_text[: starts[0]]}{main}\n{tail}" if tail else f"{crash_text[: starts[0]]}{main}"


def wall_time(run: Run, at_ms: float) -> str:
    """Return a point of time of the run as ISO 8601, to the second."""
    at = datetime.fromisoformat(run.started_at) + timedelta(milliseconds=at_ms)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def ranks_at_end(
    seen: Timeline, in_flight: tuple[CallInFlight, ...], workers: tuple[Worker, ...], deaths: tuple[Death, ...]
) -> tuple[RankAtEnd, ...]:
    """Return a line per lane: its death, the call it was still in, or the last one that it had within the window."""
    dead = {(death.group, death.rank): death for death in deaths}
    out = {(call.group, rank.rank): (call, rank) for call in reversed(in_flight) for rank in call.out}
    last = {seen.bars.lane[i]: i for i in sorted(range(len(seen.bars.lane)), key=lambda i: seen.bars.end_ms[i])}
    state = {(worker.group, worker.rank): worker.state for worker in workers}
    found = []
    for lane in seen.lanes:
        alive = state.get((lane.group, lane.rank), "unknown")
        if alive == "died" and (lane.group, lane.rank) in dead:
            death = dead[lane.group, lane.rank]
            doing, for_ms, call_id = "dead since", max(seen.run_ms - death.at_ms, 0.0), death.call_id
            method = f"{death.group}.{death.method}" if death.method else ""
        elif (lane.group, lane.rank) in out:
            call, rank = out[lane.group, lane.rank]
            doing, for_ms, call_id, method = "in", rank.out_ms, call.id, f"{call.group}.{call.method}"
        elif lane.index in last:
            i = last[lane.index]
            for_ms, call_id = max(seen.run_ms - seen.bars.end_ms[i], 0.0), seen.bars.call_id[i]
            doing, method = "idle since", seen.methods[seen.bars.method[i]]
        else:
            doing, for_ms, call_id, method = "idle", None, 0, ""
        found.append(RankAtEnd(lane, alive, doing, for_ms, call_id, method))
    return tuple(found)


def _last_spans(source: RunSource, run_ms: float) -> Timeline:
    """Return the longest last window in which spans are drawn one by one; the shortest one if there is none."""
    for width_ms in _WINDOWS_MS:
        seen = source.timeline(max(run_ms - width_ms, 0.0), run_ms, _PX)
        if seen.mode == "bars":
            break
    return seen


def _worker_deaths(deaths: tuple[Death, ...], when: str) -> str:
    if not deaths:
        return ""
    first = deaths[0]
    n = "One worker" if len(deaths) == 1 else f"{len(deaths)} workers"
    return f"{n} died {when}. First: {first.group} · rank {first.rank}: {first.cause}."


def _why(run: Run, deaths: tuple[Death, ...], crash_text: str) -> str:
    signal = signal_of(crash_text)
    culprit = next((d for d in deaths if d.policy in {"", "abort"}), None)
    if culprit is not None and signal in {"", "SIGABRT"} and run.duration_ms - culprit.at_ms < _ABORTED_WITHIN_MS:
        return (
            f"Caused by the death of {culprit.group} · rank {culprit.rank}: {culprit.cause}. "
            "The group's policy is abort, so the driver was ended with SIGABRT."
        )
    if signal:
        return f"Ended by {signal}. The stacks of all driver threads are below."
    return (
        "No signal was recorded: most likely SIGKILL, sent by a user, a scheduler or the kernel's OOM killer. "
        f"Check the kernel log of {run.host} around that time."
    )
