"""The report on a worker's death, as an event, as an error and as lines for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import DeathKind, WorkerDiedError
from core.events import DeathReport, RankState, WorkerEnded
from core.health.evidence import Verdict
from core.health.in_flight import words_for


@dataclass(frozen=True, slots=True)
class Victim:
    """Who died, in which call (id 0 and no method when between calls), and what the other ranks were doing."""

    group: str
    role: str
    rank: int
    worker: str
    pid: int
    node: str
    actor_id: str
    method: str
    call_id: int
    at_ns: int
    others: tuple[RankState, ...]

    @property
    def who(self) -> str:
        """Return the worker in words."""
        return f"rank {self.rank} of {self.group}, pid {self.pid or '?'}, node {self.node or '?'}"


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's last known memory, and the limit that it lived under, in bytes, 0 when unknown."""

    last_bytes: int = 0
    limit_bytes: int = 0


def ended(victim: Victim, verdict: Verdict, memory: Memory, log_tail: Sequence[str], policy: str) -> WorkerEnded:
    """Return the event of a death with its report."""
    return WorkerEnded(
        at_ns=victim.at_ns,
        group=victim.group,
        rank=victim.rank,
        died=True,
        reason=verdict.cause,
        pid=victim.pid,
        node=victim.node,
        method=victim.method,
        call_id=victim.call_id,
        report=DeathReport(
            role=victim.role,
            worker=victim.worker,
            actor_id=victim.actor_id,
            cause=verdict.cause,
            signal=verdict.signal,
            exit_code=verdict.exit_code,
            oom=verdict.oom,
            evidence=verdict.evidence,
            memory_bytes=memory.last_bytes,
            memory_limit_bytes=memory.limit_bytes,
            others=victim.others,
            log_tail=tuple(log_tail),
            policy=policy,
        ),
    )


def error_of(event: WorkerEnded, kind: DeathKind) -> WorkerDiedError:
    """Return the error that a driver gets for a death."""
    report = event.report
    where = f"in {event.method}" if event.method else "between calls"
    others = words_for(report.others) if report is not None and event.method else ""
    worker = report.worker if report is not None else ""
    return WorkerDiedError(
        f"rank {event.rank} of {event.group} (worker {worker or '?'}, pid {event.pid or '?'}, node "
        f"{event.node or '?'}) died {where}: {event.reason}{f'; at that moment: {others}' if others else ''}",
        group=event.group,
        rank=event.rank,
        node=event.node,
        method=event.method,
        worker=worker,
        pid=event.pid,
        how=event.reason,
        signal=report.signal if report is not None else 0,
        oom=report.oom if report is not None else None,
        kind=kind,
    )


def text_of(event: WorkerEnded, what_next: str) -> str:
    """Return a death as lines for people, the first of which says the most."""
    report = event.report
    if report is None:
        return f"podium: rank {event.rank} of {event.group} died: {event.reason}"
    lines = [
        f"podium: worker {report.worker} (rank {event.rank} of {event.group}, pid {event.pid or '?'}, node "
        f"{event.node or '?'}) died: {event.reason}",
        f"  role      {report.role}",
        f"  actor     {report.actor_id}",
        f"  in        {f'call {event.call_id} {event.method}' if event.method else 'no call: it was idle'}",
    ]
    if report.others:
        lines.append(f"  others    {words_for(report.others)}")
    lines.append(f"  memory    {_memory(report)}")
    lines += [f"  {'evidence' if not number else '        '}  {line}" for number, line in enumerate(report.evidence)]
    if report.log_tail:
        lines.append("  log       the last lines of it:")
        lines += [f"    | {line}" for line in report.log_tail]
    else:
        lines.append("  log       nothing in it, or not to be read from here")
    lines.append(f"  next      {what_next}")
    return "\n".join(lines)


def _memory(report: DeathReport) -> str:
    last = f"{report.memory_bytes / 2**20:.0f} MiB shortly before" if report.memory_bytes else "not known"
    limit = f", limit {report.memory_limit_bytes / 2**20:.0f} MiB" if report.memory_limit_bytes else ""
    oom = {True: "; out of memory", False: "; not out of memory", None: ""}[report.oom]
    return f"{last}{limit}{oom}"
