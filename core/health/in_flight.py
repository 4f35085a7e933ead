"""The calls in flight right now: which ranks have not answered, and for how long they have been asked.

Values only, no handle: any thread may ask at any time, and nothing of it waits for the cluster.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from core.events import RankState
from core.runtime import LiveCall, Runtime


@dataclass(frozen=True, slots=True)
class RankOut:
    """A rank that has not answered, ``seconds`` after it was asked.

    ``behind`` is the earlier call of the same group that it has not answered, 0 when there is none: then it is in the
    method, as far as the driver can know.
    """

    rank: int
    seconds: float
    behind: int = 0


@dataclass(frozen=True, slots=True)
class CallInFlight:
    """A call that ranks have not all answered, ``seconds`` after the driver made it at ``at_ns``.

    ``out`` and ``answered`` are in rank order; a rank that was not asked yet is in neither. ``failed`` says that the
    driver has its error already and goes on: the ranks that are out hold up the group's next call.
    """

    call_id: int
    group: str
    pool: str
    method: str
    step: int
    blocking: bool
    at_ns: int
    seconds: float
    out: tuple[RankOut, ...]
    answered: tuple[int, ...]
    failed: bool = False


def calls_in_flight(runtime: Runtime, own: bool = False) -> tuple[CallInFlight, ...]:
    """Return the calls of a driver that are in flight, the oldest first; ``own`` leaves out joined runtimes'."""
    now_ns = runtime.clock.now_ns()
    # A copy in one operation: calls come and go on other threads.
    calls = [call for call in list(runtime.live_calls.values()) if not own or call.runtime is runtime]
    oldest: dict[tuple[str, int], int] = {}
    return tuple(_view(call, now_ns, oldest) for call in sorted(calls, key=lambda call: call.facts.call_id))


def ranks_out(runtime: Runtime) -> set[tuple[str, int]]:
    """Return the groups' ranks that some call waits for."""
    return {(call.group, out.rank) for call in calls_in_flight(runtime) for out in call.out}


def states_of(runtime: Runtime, group: str, world_size: int, dead: Container[int] = ()) -> tuple[RankState, ...]:
    """Return what each rank of a group is doing, as far as the driver can know."""
    calls = [call for call in calls_in_flight(runtime) if call.group == group]
    return tuple(_state(rank, calls, rank in dead) for rank in range(world_size))


def _state(rank: int, calls: Sequence[CallInFlight], is_dead: bool) -> RankState:
    if is_dead:
        return RankState(rank, "dead")
    for call in calls:
        for out in call.out:
            if out.rank == rank:
                return RankState(rank, f"in {call.method}", round(out.seconds, 3))
    if any(rank in call.answered for call in calls):
        return RankState(rank, "answered")
    return RankState(rank, "not asked" if calls else "idle")


def words_for(states: Sequence[RankState]) -> str:
    """Return states in a line, ranks that do the same together: "ranks 0, 2-3 in train for 1.2 s; rank 1 dead"."""
    together: dict[str, list[RankState]] = {}
    for state in states:
        together.setdefault(state.state, []).append(state)
    return "; ".join(_words(what, alike) for what, alike in together.items())


def _words(what: str, alike: Sequence[RankState]) -> str:
    who = ranks_in_words([state.rank for state in alike])
    longest = max(state.seconds for state in alike)
    return f"{who} {what}{f' for {longest:.1f} s' if longest else ''}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ranks as people write them: "rank 3", "ranks 0, 2-5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}"


def _view(call: LiveCall, now_ns: int, oldest: dict[tuple[str, int], int]) -> CallInFlight:
    """Return a call as a value; ``oldest`` has the oldest call that each rank works on, and learns from this one."""
    facts = call.facts
    asked = sorted(call.asked)
    out = []
    for rank, submitted_ns, is_out in asked:
        if is_out:
            first_id = oldest.setdefault((facts.group, rank), facts.call_id)
            behind = 0 if first_id == facts.call_id else first_id
            out.append(RankOut(rank, max(0.0, (now_ns - submitted_ns) / 1e9), behind))
    return CallInFlight(
        call_id=facts.call_id,
        group=facts.group,
        pool=facts.pool,
        method=facts.method,
        step=facts.step,
        blocking=facts.blocking,
        at_ns=facts.at_ns,
        seconds=max(0.0, (now_ns - facts.at_ns) / 1e9),
        out=tuple(out),
        answered=tuple(rank for rank, _, is_out in asked if not is_out),
        failed=call.has_failed,
    )
