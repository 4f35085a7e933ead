"""The phases of a call: names, definitions and sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Phase:
    """A step of a call: its name, and the definition that is printed beside it."""

    name: str
    definition: str


PHASES = (
    Phase("gate", "Waiting for the pool to accept the call. Calls on a paused pool wait here."),
    Phase(
        "dispatch",
        "Splitting and padding the arguments into one shard per rank, and putting them in the object store.",
    ),
    Phase("execute", "Submitting the remote calls to all ranks."),
    Phase(
        "wait",
        "From the end of the submission until the last rank's result is ready. For a non-blocking call it starts when "
        "the future is first awaited.",
    ),
    Phase("collect", "Combining the results of all ranks into one."),
    Phase("unpad", "Removing the padding rows from the result."),
)
OUTSIDE = Phase("driver", "Code of the driver outside calls.")


class Phased(Protocol):
    """What has the six durations of a call in ms: one call, or a method's calls added up."""

    @property
    def gate_ms(self) -> float: ...
    @property
    def dispatch_ms(self) -> float: ...
    @property
    def execute_ms(self) -> float: ...
    @property
    def wait_ms(self) -> float: ...
    @property
    def collect_ms(self) -> float: ...
    @property
    def unpad_ms(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Share:
    """A phase's part of a whole; ``share`` is 0..1."""

    phase: Phase
    ms: float
    share: float


def durations_ms(phased: Phased) -> tuple[float, ...]:
    """Return the durations in the order of ``PHASES``."""
    return (
        phased.gate_ms,
        phased.dispatch_ms,
        phased.execute_ms,
        phased.wait_ms,
        phased.collect_ms,
        phased.unpad_ms,
    )


def shares_of_call(phased: Phased) -> tuple[Share, ...]:
    """Return each phase's part of the sum of all."""
    return _shares(durations_ms(phased), whole_ms=0.0)


def shares_of_wall_time(methods: Iterable[Phased], wall_ms: float) -> tuple[Share, ...]:
    """Return each phase's part of the run's wall time, and last what passed outside of calls.

    Several driver threads may spend more than the wall's time in calls; the whole is then what they spent.
    """
    sums = [0.0] * len(PHASES)
    for method in methods:
        sums = [a + b for a, b in zip(sums, durations_ms(method), strict=True)]
    shares = _shares(tuple(sums), whole_ms=wall_ms)
    outside_ms = max(wall_ms - sum(sums), 0.0)
    return (*shares, Share(OUTSIDE, outside_ms, outside_ms / wall_ms if wall_ms > 0 else 0.0))


def _shares(sums_ms: tuple[float, ...], whole_ms: float) -> tuple[Share, ...]:
    whole = max(whole_ms, sum(sums_ms))
    return tuple(Share(phase, ms, ms / whole if whole > 0 else 0.0) for phase, ms in zip(PHASES, sums_ms, strict=True))
