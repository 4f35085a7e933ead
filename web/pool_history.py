"""The pools as they were before a change: what the changes after it did is undone, newest first.

Plans say which pools a change made of which, and where each group went; the record says on which slots a generation of
a pool was placed, and which workers were alive then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from web.operations import OperationRow
from web.plans import PoolBox
from web.rows import Pool, PoolGeneration, Worker

START = "start"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time between two changes. ``id`` is the change before it, ``START`` where there was none, "" for now."""

    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Past:
    """What stood at a moment."""

    pools: tuple[Pool, ...]
    workers: tuple[Worker, ...]
    generations: tuple[PoolGeneration, ...]


def moments(changes: tuple[OperationRow, ...]) -> tuple[Moment, ...]:
    """Return the moments between ``changes``, newest first, in the order of time; the last is now."""
    if not changes:
        return ()
    after = [Moment(row.operation.id, f"after {row.operation.kind} of {row.operation.pool}") for row in changes]
    return (Moment(START, "initial"), *after[:0:-1], replace(after[0], id=""))


def as_of(
    moment: Moment,
    changes: tuple[OperationRow, ...],
    pools: tuple[Pool, ...],
    workers: tuple[Worker, ...],
    generations: tuple[PoolGeneration, ...],
) -> Past:
    """Return what stood at ``moment``; ``pools`` are those that stand now, ``changes`` come newest first."""
    ids = [row.operation.id for row in changes]
    undone = changes[: ids.index(moment.id)] if moment.id in ids else changes
    if not undone or not moment.id:
        return Past(pools, workers, generations)
    boxes = {pool.name: PoolBox(pool.name, pool.process_on_nodes, tuple((g, 0) for g in pool.groups)) for pool in pools}
    for row in undone:
        if row.plan is not None:
            for box in row.plan.after:
                boxes.pop(box.name, None)
            boxes |= {box.name: box for box in row.plan.before}
    next_one = undone[-1].operation
    later = {row.operation.id for row in undone}
    known = tuple(g for g in generations if g.operation_id not in later and g.at_ms <= next_one.updated_ms)
    newest = {generation.pool: generation.generation for generation in known}
    home = {group: box.name for box in boxes.values() for group, _ in box.groups}
    return Past(
        pools=tuple(_pool(box, newest.get(box.name, 0)) for box in boxes.values()),
        workers=_living(workers, next_one.created_ms, home),
        generations=known,
    )


def _pool(box: PoolBox, generation: int) -> Pool:
    shape = box.process_on_nodes
    return Pool(box.name, "active", generation, shape, sum(shape), tuple(group for group, _ in box.groups))


def _living(workers: tuple[Worker, ...], at_ms: float, home: dict[str, str]) -> tuple[Worker, ...]:
    """Return the workers that had been started by ``at_ms``, as they were then, each on its group's pool of then."""
    return tuple(
        replace(
            worker,
            pool=home.get(worker.group, worker.pool),
            state="alive" if worker.ended_ms is None or worker.ended_ms > at_ms else worker.state,
        )
        for worker in workers
        if worker.started_ms <= at_ms
    )
