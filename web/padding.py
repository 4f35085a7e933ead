"""The page Padding and data: rows that were added to fill shares, and what the driver sent and got."""

from __future__ import annotations

from dataclasses import dataclass

from web.calls import CallFilter
from web.frame import Content, Frame
from web.rows import CallRow, MethodTotal
from web.source import RunSource

N_CALLS_BY_STEP = 500


@dataclass(frozen=True, slots=True)
class MethodData:
    """A method's rows and bytes, added up over its ended calls.

    ``wasted_ms`` is the padding's share of what its ranks together waited for: rank-seconds. ``out_mib_per_s`` is what
    was sent by the time that dispatch and execute took; None where nothing was sent.
    """

    total: MethodTotal
    n_ranks: int
    padding_share: float
    wasted_ms: float
    out_mib_per_s: float | None

    @property
    def out_per_call(self) -> int:
        """Bytes sent per call."""
        return round(self.total.bytes_out / self.total.n_calls)

    @property
    def in_per_call(self) -> int:
        """Bytes that came back per call."""
        return round(self.total.bytes_in / self.total.n_calls)


@dataclass(frozen=True, slots=True)
class StepData:
    """The rows and bytes of a step's calls."""

    step: int
    n_calls: int
    rows: int
    padding_rows: int
    bytes_out: int
    bytes_in: int


def load_data(source: RunSource, frame: Frame) -> Content:
    """Return the page."""
    overview = source.overview()
    n_ranks: dict[str, int] = {}
    for worker in overview.workers:
        n_ranks[worker.group] = max(n_ranks.get(worker.group, 0), worker.rank + 1)
    methods = tuple(method_data(total, n_ranks.get(total.group, 1)) for total in overview.methods)
    calls = source.calls(N_CALLS_BY_STEP, None, CallFilter()).items
    return Content(
        methods=sorted(methods, key=lambda one: (-one.wasted_ms, -one.total.bytes_out)),
        steps=by_step(calls),
        n_calls_by_step=len(calls),
        rows=sum(one.total.rows for one in methods),
        padding_rows=sum(one.total.padding_rows for one in methods),
        wasted_ms=sum(one.wasted_ms for one in methods),
        bytes_out=sum(one.total.bytes_out for one in methods),
        bytes_in=sum(one.total.bytes_in for one in methods),
        most_rows=max((one.total.rows + one.total.padding_rows for one in methods), default=0),
        most_bytes=max((max(one.total.bytes_out, one.total.bytes_in) for one in methods), default=0),
    )


def method_data(total: MethodTotal, n_ranks: int) -> MethodData:
    """Return a method's numbers; ``n_ranks`` is its group's size."""
    rows = total.rows + total.padding_rows
    share = total.padding_rows / rows if rows else 0.0
    sending_ms = total.dispatch_ms + total.execute_ms
    rate = total.bytes_out / 2**20 / (sending_ms / 1000) if total.bytes_out and sending_ms > 0 else None
    return MethodData(total, n_ranks, share, share * total.wait_ms * n_ranks, rate)


def by_step(calls: tuple[CallRow, ...]) -> tuple[StepData, ...]:
    """Return the calls of steps added up, the newest step first; a call that still runs counts with what is known."""
    steps: dict[int, list[CallRow]] = {}
    for call in calls:
        if call.step > 0:
            steps.setdefault(call.step, []).append(call)
    return tuple(
        StepData(
            step,
            len(own),
            sum(call.rows for call in own),
            sum(call.padding_rows for call in own),
            sum(call.bytes_out for call in own),
            sum(call.bytes_in for call in own),
        )
        for step, own in sorted(steps.items(), reverse=True)
    )
