"""Run times of the ranks, call by call: what verdicts about stragglers are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class MethodRuns:
    """A method's last calls that all of ``ranks`` answered; arrays have the shape (calls, ranks), oldest call first.

    ``n_ranks`` is the size of the group; of a large one ``ranks`` are a selection. ``run_ms`` is finished - started,
    ``ended_ms`` is when the rank finished, both by its aligned clock. ``rows`` and ``bytes`` are what it was sent.
    ``clock_error_ms`` is the maximum error of each rank's clock, with the shape (ranks,).
    """

    group: str
    method: str
    n_ranks: int
    ranks: tuple[int, ...]
    call_id: NDArray[np.int64]
    run_ms: Numbers
    ended_ms: Numbers
    rows: Numbers
    bytes: Numbers
    clock_error_ms: Numbers

    @property
    def n_calls(self) -> int:
        """How many calls there are."""
        return len(self.call_id)

    @property
    def started_ms(self) -> Numbers:
        """When each rank started."""
        return self.ended_ms - self.run_ms


class RankRunSource(Protocol):
    """Answers about the ranks' run times. The method may be called from several threads at once."""

    def rank_runs(self) -> tuple[MethodRuns, ...]:
        """Return the run times of each method's last calls, as far back as a bounded number of spans allows."""
        ...
