"""The state that the bar of every page shows: the run's own, and within a running one whether it is held."""

from __future__ import annotations

from dataclasses import dataclass

from web.rows import Operation, Pool, Run

N_OPERATIONS = 20
WAITING = "waiting_for_safe_point"


@dataclass(frozen=True, slots=True)
class Pill:
    """``state`` is the run's, or that all its pools are paused, or that changes wait: those in ``waiting``."""

    state: str
    waiting: tuple[str, ...] = ()


def pill_of(run: Run, pools: tuple[Pool, ...], operations: tuple[Operation, ...]) -> Pill:
    """Return what the bar shows of ``run``; ``static/js/shell.js`` does the same as things change."""
    if run.state != "running":
        return Pill(run.state)
    waiting = tuple(one.id for one in operations if one.state == WAITING)
    if waiting:
        return Pill(WAITING, waiting)
    living = {pool.state for pool in pools} - {"closed"}
    return Pill("paused" if living == {"paused"} else run.state)
