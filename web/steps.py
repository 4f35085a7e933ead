"""Calls of some steps added up by method, so that two stretches of a run can be laid side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MethodInSteps:
    """A method's ended calls within some steps: exact percentiles, and sums of the driver's phases, rows and bytes.

    ``took_ms`` are the durations of the calls in their order; ``pools``, ``generations`` and ``n_ranks`` are those that
    the calls were made with, each once, smallest first.
    """

    group: str
    method: str
    n_calls: int
    n_failed: int
    p50_ms: float
    p95_ms: float
    gate_ms: float
    dispatch_ms: float
    execute_ms: float
    wait_ms: float
    collect_ms: float
    unpad_ms: float
    rows: int
    padding_rows: int
    bytes_out: int
    bytes_in: int
    took_ms: tuple[float, ...] = ()
    pools: tuple[str, ...] = ()
    generations: tuple[int, ...] = ()
    n_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepsSum:
    """The ended calls of the steps ``first`` to ``last``; ``is_cut`` says that there are more than were added up."""

    first: int
    last: int
    n_calls: int
    is_cut: bool
    methods: tuple[MethodInSteps, ...]


class StepSource(Protocol):
    """Answers about steps. Every method may be called from several threads at once."""

    def steps_between(self, first: int, last: int) -> StepsSum:
        """Return the ended calls of some steps by method, the oldest calls where there are very many."""
        ...
