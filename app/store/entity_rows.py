"""Rows of pools, groups, lanes, workers, methods and operations: few, and updated in place.

A row that an event refers to without an earlier event is created, so that a recorder that missed a beginning still
keeps what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.store.codes import pack_sizes
from app.store.deaths import death_row
from app.store.models import (
    Death,
    GroupGeneration,
    Operation,
    Pool,
    PoolGeneration,
    Record,
    Word,
    Worker,
    WorkerGroup,
)
from app.store.sql import column_names, table_of, upsert
from app.store.texts import LINE, MESSAGE, bounded
from app.store.totals import LaneRow, MethodRow
from core.events import (
    GroupClosed,
    GroupCreated,
    GroupRebuilt,
    OperationChanged,
    PoolChanged,
    PoolCreated,
    PoolStateChanged,
    SlotFacts,
    WorkerClock,
    WorkerEnded,
    WorkerStarted,
)

_WAITING = "waiting_for_safe_point"
_Statement = tuple[str, list[tuple[Any, ...]]]
# A row refers to rows of the tables before its own.
_MODELS: tuple[type[Record], ...] = (Word, Pool, PoolGeneration, WorkerGroup, GroupGeneration, Operation)
_OF_LANES: tuple[type[Record], ...] = (Worker, Death)
_ALL: tuple[type[Record], ...] = (*_MODELS, *_OF_LANES)
_PUT = {table_of(model).name: upsert(model) for model in _ALL}
_NAMES = {table_of(model).name: column_names(model) for model in _ALL}


class EntityRows:
    """Keeps those rows and tracks which of them changed."""

    def __init__(self, started_ns: int, happened: Callable[[int, str, str, str], None]) -> None:
        """Start empty; ``happened`` takes (driver time in ns, level, kind, text) of what deserves a line."""
        self._started_ns = started_ns
        self._happened = happened
        self._words: dict[str, Word] = {}
        self._pools: dict[str, Pool] = {}
        self._generations: dict[tuple[int, int], PoolGeneration] = {}
        self._groups: dict[str, WorkerGroup] = {}
        self._lanes: dict[tuple[str, int], LaneRow] = {}
        self._lanes_new: dict[int, LaneRow] = {}
        self._workers: dict[int, Worker] = {}
        self._deaths: dict[int, Death] = {}
        self._n_workers = self._n_deaths = self._n_group_generations = 0
        self._methods: dict[tuple[int, str], MethodRow] = {}
        self._operations: dict[str, Operation] = {}
        self._waiting_since_ns: dict[int, int] = {}
        self._changed: dict[str, dict[int, Record]] = {name: {} for name in _PUT}

    def take_rows(self) -> tuple[_Statement, ...]:
        """Return what changed since the last time, all but workers and deaths."""
        return tuple(self._take(table_of(model).name) for model in _MODELS)

    def take_worker_rows(self) -> tuple[_Statement, ...]:
        """Return the workers and deaths that changed since the last time; they refer to lanes."""
        return tuple(self._take(table_of(model).name) for model in _OF_LANES)

    def take_new_lanes(self) -> dict[int, LaneRow]:
        """Return the lanes that are not written yet, by id."""
        lanes, self._lanes_new = self._lanes_new, {}
        return lanes

    def word_id(self, text: str) -> int:
        """Return the number of a word."""
        word = self._words.get(text)
        if word is None:
            word = self._words[text] = Word(id=len(self._words) + 1, text=text)
            self._put(word.id, word)
        return word.id

    def pool(self, name: str) -> Pool:
        """Return the row of a pool, created if no event announced it."""
        pool = self._pools.get(name)
        if pool is None:
            pool = Pool(
                id=len(self._pools) + 1,
                name=name,
                state="active",
                generation=0,
                process_on_nodes="",
                use_gpu=False,
                max_colocate_count=0,
                created_ns=0,
                updated_ns=0,
            )
            self._pools[name] = pool
            self._put(pool.id, pool)
        return pool

    def group(self, name: str, pool: str = "") -> WorkerGroup:
        """Return the row of a group, created if no event announced it."""
        group = self._groups.get(name)
        if group is None:
            group = WorkerGroup(
                id=len(self._groups) + 1,
                name=name,
                pool_id=self.pool(pool).id,
                worker_class="",
                world_size=0,
                created_ns=0,
            )
            self._groups[name] = group
            self._put(group.id, group)
        return group

    def lane(self, group: str, rank: int) -> LaneRow:
        """Return the row of a rank of a group."""
        lane = self._lanes.get((group, rank))
        if lane is None:
            lane = LaneRow(len(self._lanes) + 1, self.group(group).id, rank)
            self._lanes[group, rank] = self._lanes_new[lane.id] = lane
        return lane

    def method(
        self, group: WorkerGroup, name: str, dispatch_mode_id: int, execute_mode_id: int, blocking: bool
    ) -> MethodRow:
        """Return the row of a method of a group."""
        method = self._methods.get((group.id, name))
        if method is None:
            method = MethodRow(len(self._methods) + 1, group.id, name, dispatch_mode_id, execute_mode_id, blocking)
            self._methods[group.id, name] = method
        return method

    def pool_created(self, event: PoolCreated) -> None:
        """Keep a pool with its slots."""
        pool = self.pool(event.pool)
        pool.state, pool.generation = event.state, event.generation
        pool.process_on_nodes = pack_sizes(event.process_on_nodes)
        pool.use_gpu, pool.max_colocate_count = event.use_gpu, event.max_colocate_count
        pool.created_ns = pool.updated_ns = event.at_ns - self._started_ns
        self._put(pool.id, pool)
        self._put_generation(pool, event.at_ns, _pack_slots(event.slots))
        text = f"pool {event.pool} has {_room(event.process_on_nodes)}"
        self._happened(event.at_ns, "info", "pool", text)

    def pool_state_changed(self, event: PoolStateChanged) -> None:
        """Keep the state a pool moved to."""
        pool = self.pool(event.pool)
        pool.state, pool.generation = event.state, event.generation
        pool.reason = bounded(event.reason, LINE)
        pool.updated_ns = event.at_ns - self._started_ns
        self._put(pool.id, pool)
        if (pool.id, pool.generation) not in self._generations:
            self._put_generation(pool, event.at_ns, "")
        why = f": {event.reason}" if event.reason else ""
        self._happened(
            event.at_ns,
            "error" if event.state == "failed" else "info",
            "pool",
            f"pool {event.pool} is {event.state}{why}",
        )

    def pool_changed(self, event: PoolChanged) -> None:
        """Keep the next generation of a pool: other slots than before."""
        pool = self.pool(event.pool)
        pool.generation, pool.process_on_nodes = event.generation, pack_sizes(event.process_on_nodes)
        pool.updated_ns = event.at_ns - self._started_ns
        self._put(pool.id, pool)
        self._put_generation(pool, event.at_ns, _pack_slots(event.slots), event.operation_id)
        text = f"pool {event.pool} has {_room(event.process_on_nodes)} in generation {event.generation}"
        self._happened(event.at_ns, "info", "pool", text)

    def group_created(self, event: GroupCreated) -> None:
        """Keep a group with its methods; one of the same name keeps its number."""
        group = self.group(event.group, event.pool)
        group.pool_id, group.worker_class = self.pool(event.pool).id, event.worker_class
        group.world_size, group.closed_ns = event.world_size, None
        group.created_ns = event.at_ns - self._started_ns
        self._put(group.id, group)
        self._put_group_generation(group, event.at_ns, self.pool(event.pool).generation, "")
        self._happened(event.at_ns, "info", "group", f"group {event.group} has {_counted(event.world_size, 'worker')}")

    def group_rebuilt(self, event: GroupRebuilt) -> None:
        """Keep that a group has other workers than before, and where."""
        group = self.group(event.group, event.pool)
        group.pool_id, group.world_size, group.closed_ns = self.pool(event.pool).id, event.world_size, None
        self._put(group.id, group)
        self._put_group_generation(group, event.at_ns, event.generation, event.reason)
        why = f": {event.reason}" if event.reason else ""
        text = f"group {event.group} was rebuilt with {_counted(event.world_size, 'worker')} on pool {event.pool}{why}"
        self._happened(event.at_ns, "info", "group", text)

    def group_closed(self, event: GroupClosed) -> None:
        """Keep that a group is gone, and its workers with it."""
        group = self.group(event.group, event.pool)
        group.closed_ns = event.at_ns - self._started_ns
        self._put(group.id, group)
        for (name, _), lane in self._lanes.items():
            worker = self._workers.get(lane.id) if name == event.group else None
            if worker is not None and worker.state == "alive":
                self._end(worker, "ended", group.closed_ns, "the group was closed")
        self._happened(event.at_ns, "info", "group", f"group {event.group} was closed")

    def worker_started(self, event: WorkerStarted) -> None:
        """Keep a worker; the one before it on its rank has ended."""
        self.group(event.group, event.pool)
        lane = self.lane(event.group, event.rank)
        before = self._workers.get(lane.id)
        if before is not None and before.state == "alive":
            if (before.name, before.pid) == (event.name, event.pid):
                return
            self._end(before, "ended", event.at_ns - self._started_ns, "replaced by another worker")
        self._n_workers += 1
        worker = Worker(
            id=self._n_workers,
            lane_id=lane.id,
            pool_id=self.pool(event.pool).id,
            local_rank=event.local_rank,
            name=event.name,
            pid=event.pid,
            node=event.node,
            actor_id=event.actor_id,
            devices=event.devices,
            state="alive",
            started_ns=event.at_ns - self._started_ns,
        )
        self._workers[lane.id] = worker
        self._put(worker.id, worker)

    def worker_ended(self, event: WorkerEnded) -> None:
        """Keep how a worker ended, and all that is known of a death."""
        lane = self.lane(event.group, event.rank)
        worker = self._workers.get(lane.id)
        if worker is not None and worker.state == "alive":
            self._end(worker, "died" if event.died else "ended", event.at_ns - self._started_ns, event.reason)
        if event.died:
            self._put_death(event, lane, worker)
            during = f" during {event.method} (call {event.call_id})" if event.method else ""
            why = f": {event.reason}" if event.reason else ""
            text = f"rank {event.rank} of {event.group} (pid {event.pid} on {event.node}) died{during}{why}"
            self._happened(event.at_ns, "error", "worker", text)

    def worker_clock(self, event: WorkerClock) -> None:
        """Keep how far a worker's clock is off, as estimated last."""
        worker = self._workers.get(self.lane(event.group, event.rank).id)
        if worker is not None:
            worker.clock_offset_ns, worker.clock_error_ns = event.offset_ns, event.error_ns
            self._put(worker.id, worker)

    def operation_changed(self, event: OperationChanged) -> bool:
        """Keep where an operation stands, and say whether it moved to another state."""
        at_ns = event.at_ns - self._started_ns
        operation = self._operations.get(event.operation_id)
        moved = operation is None or operation.state != event.state
        if operation is None:
            operation = Operation(
                id=len(self._operations) + 1,
                uid=event.operation_id,
                kind=event.kind,
                pool=event.pool,
                state=event.state,
                who=event.who,
                expected_generation=event.expected_generation,
                created_ns=at_ns,
                updated_ns=at_ns,
                before="",
                after="",
                error="",
            )
            self._operations[event.operation_id] = operation
        if operation.state == _WAITING and event.state != _WAITING:
            operation.safe_point_ns += at_ns - self._waiting_since_ns.get(operation.id, at_ns)
        elif event.state == _WAITING:
            self._waiting_since_ns.setdefault(operation.id, at_ns)
        operation.state, operation.updated_ns = event.state, at_ns
        operation.before, operation.after = event.before or operation.before, event.after or operation.after
        operation.error = bounded(event.error, MESSAGE)
        operation.progress = bounded(event.progress, LINE) or operation.progress
        operation.plan = event.plan or operation.plan
        operation.stand_still_ns = event.downtime_ns or operation.stand_still_ns
        self._put(operation.id, operation)
        return moved

    def _put_generation(self, pool: Pool, at_ns: int, slots: str, operation_uid: str = "") -> None:
        key = (pool.id, pool.generation)
        known = self._generations.get(key)
        generation = PoolGeneration(
            id=len(self._generations) + 1 if known is None else known.id,
            pool_id=pool.id,
            generation=pool.generation,
            at_ns=at_ns - self._started_ns,
            process_on_nodes=pool.process_on_nodes,
            slots=slots,
            operation_uid=operation_uid,
        )
        self._generations[key] = generation
        self._put(generation.id, generation)

    def _put_group_generation(self, group: WorkerGroup, at_ns: int, generation: int, reason: str) -> None:
        self._n_group_generations += 1
        row = GroupGeneration(
            id=self._n_group_generations,
            group_id=group.id,
            pool_id=group.pool_id,
            generation=generation,
            at_ns=at_ns - self._started_ns,
            world_size=group.world_size,
            reason=bounded(reason, LINE),
        )
        self._put(row.id, row)

    def _put_death(self, event: WorkerEnded, lane: LaneRow, worker: Worker | None) -> None:
        """Keep a death once; of two events about one worker the one with a report counts."""
        known = None if worker is None else self._deaths.get(worker.id)
        if known is not None and event.report is None:
            return
        self._n_deaths += known is None
        death = death_row(self._n_deaths if known is None else known.id, event, self._started_ns, lane, worker)
        if worker is not None:
            self._deaths[worker.id] = death
        self._put(death.id, death)

    def _end(self, worker: Worker, state: str, ended_ns: int, reason: str) -> None:
        worker.state, worker.ended_ns, worker.reason = state, ended_ns, bounded(reason, LINE)
        self._put(worker.id, worker)

    def _put(self, key: int, row: Record) -> None:
        self._changed[str(row.__tablename__)][key] = row

    def _take(self, name: str) -> _Statement:
        rows, names = self._changed[name], _NAMES[name]
        self._changed[name] = {}
        return _PUT[name], [tuple(getattr(row, column) for column in names) for row in rows.values()]


def _pack_slots(slots: tuple[SlotFacts, ...]) -> str:
    return "\n".join(f"{slot.node}\t{slot.node_index}\t{slot.local_index}" for slot in slots)


def _room(process_on_nodes: tuple[int, ...]) -> str:
    return f"{_counted(sum(process_on_nodes), 'slot')} on {_counted(len(process_on_nodes), 'node')}"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
