"""The calls of the made-up run of ``web_sample``: 60 steps of six; one fails, one waits at a paused gate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from web.rows import CallRow, RankSpan

EVIL = "<img src=x onerror=alert(1)>"
FAILED_CALL = 187
POOLS = (("train", (2,), ("actor", "critic")), ("generation", (2, 2), ("rollout",)))
GROUPS = (("train", "actor", 2), ("train", "critic", 2), ("generation", "rollout", 4))
METHODS = (
    ("rollout", "generate_sequences", 1400.0, "DP_COMPUTE_PROTO", 256, True),
    ("critic", "compute_values", 260.0, "DP_COMPUTE_PROTO", 256, False),
    ("actor", "compute_log_prob", 310.0, "DP_COMPUTE_PROTO", 256, True),
    ("critic", "update_critic", 520.0, "DP_COMPUTE_PROTO", 256, True),
    ("actor", "update_actor", 840.0, "DP_COMPUTE_PROTO", 250, True),
    ("rollout", "load_weights", 90.0, "ONE_TO_ALL", 0, True),
)


@dataclass(frozen=True)
class SampleCall:
    """A call as it will have been; times are ms since the run's start."""

    row: CallRow
    gate_ms: float
    dispatch_ms: float
    execute_ms: float
    waited_from_ms: float
    wait_ms: float
    collect_ms: float
    unpad_ms: float
    spans: tuple[RankSpan, ...]
    error: str = ""

    @property
    def end_ms(self) -> float:
        """When the call is over."""
        return self.row.started_ms + self.row.duration_ms


def _span(dice: random.Random, rank: int, at_ms: float, base_ms: float, rows: int, n_ranks: int) -> RankSpan:
    slow = 1.22 if (rank, n_ranks) == (3, 4) else 1.0
    started_ms = at_ms + dice.uniform(0.4, 3.0) + (18.0 if dice.random() < 0.05 else 0.0)
    finished_ms = started_ms + base_ms * slow * dice.uniform(0.93, 1.07)
    share = rows // n_ranks
    return RankSpan(
        rank=rank,
        node=f"node-{rank // 2}",
        submitted_ms=at_ms,
        started_ms=started_ms,
        finished_ms=finished_ms,
        ready_ms=finished_ms + dice.uniform(0.5, 6.0),
        clock_error_ms=0.12,
        status="ok",
        rows_in=share,
        rows_out=share,
        bytes_in=share * 16384,
        bytes_out=share * 24576,
        outside=dice.random() < 0.004,
    )


def sample_calls(evil: bool) -> Iterator[SampleCall]:
    """Yield 60 steps of calls, one after the other, with one that fails."""
    dice = random.Random(7)
    n_ranks_of = {group: n for _, group, n in GROUPS}
    pool_of = {group: pool for pool, group, _ in GROUPS}
    at_ms = 2300.0
    call_id = 0
    for step in range(1, 61):
        for group, method, base_ms, mode, rows, blocking in METHODS:
            call_id += 1
            n_ranks = n_ranks_of[group]
            padding = -rows % n_ranks
            gate_ms = 1900.0 if call_id == 150 else dice.uniform(0.0, 0.02)
            dispatch_ms = dice.uniform(0.5, 2.0) + rows * 0.03
            execute_ms = dice.uniform(0.6, 1.2)
            submitted_ms = at_ms + gate_ms + dispatch_ms
            spans = tuple(_span(dice, r, submitted_ms, base_ms, rows + padding, n_ranks) for r in range(n_ranks))
            ready_ms = max(span.ready_ms or 0.0 for span in spans)
            status, error = "ok", ""
            if call_id == FAILED_CALL:
                status, error = "error", EVIL if evil else "CUDA out of memory: tried to allocate 2.40 GiB"
                spans = (*spans[:-1], replace(spans[-1], status="error", rows_out=0, bytes_out=0))
            waited_from_ms = submitted_ms + execute_ms + (0.0 if blocking else 120.0)
            wait_ms = max(ready_ms - waited_from_ms, 0.0)
            collect_ms = dice.uniform(0.3, 1.0) + rows * 0.02
            unpad_ms = 0.4 if padding else 0.01
            end_ms = waited_from_ms + wait_ms + collect_ms + unpad_ms
            yield SampleCall(
                row=CallRow(
                    id=call_id,
                    group=group,
                    pool=pool_of[group],
                    method=EVIL if evil and method == "update_actor" else method,
                    dispatch_mode=mode,
                    execute_mode="ALL",
                    blocking=blocking,
                    step=step,
                    status=status,
                    started_ms=at_ms,
                    duration_ms=end_ms - at_ms,
                    rows=rows,
                    padding_rows=padding,
                    bytes_out=(rows + padding) * 16384,
                    bytes_in=(rows + padding) * 24576,
                ),
                gate_ms=gate_ms,
                dispatch_ms=dispatch_ms,
                execute_ms=execute_ms,
                waited_from_ms=waited_from_ms,
                wait_ms=wait_ms,
                collect_ms=collect_ms,
                unpad_ms=unpad_ms,
                spans=spans,
                error=error,
            )
            at_ms = end_ms + dice.uniform(1.0, 40.0)
        at_ms += 60.0
