"""The Pools page: the placement of every slot, the workers on it, and the change history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from web.commands import CommandDefinition, dialogs, offered
from web.frame import Content, Frame
from web.operations import OperationRow, operation_rows
from web.pool_history import Past, as_of, moments
from web.rows import CallInFlight, Pool, PoolGeneration, Slot, Worker
from web.source import RunSource

N_HISTORY = 100
_GATE_MOVES = frozenset({"pause", "resume"})
_N_IN_FLIGHT = 200
_MOST_CELLS = 20_000
"""Of the map's pools times its nodes: a file names as many of both as it likes."""

_Of = TypeVar("_Of", Worker, PoolGeneration, CallInFlight)


@dataclass(frozen=True, slots=True)
class Occupant:
    """A worker on a slot; ``colour`` is its group's number among all groups."""

    worker: Worker
    colour: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot of the map. ``state`` is busy (it has a live worker), free, dead, or ended with the run."""

    slot: Slot
    state: str
    occupants: tuple[Occupant, ...]


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool of the map: its cells per column of the map, its own generations and the calls that it waits for."""

    pool: Pool
    columns: tuple[tuple[Cell, ...], ...]
    generations: tuple[PoolGeneration, ...]
    in_flight: tuple[CallInFlight, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Return all cells in rank order."""
        return tuple(sorted((cell for column in self.columns for cell in column), key=lambda cell: cell.slot.index))

    def commands(self, n_pools: int) -> tuple[CommandDefinition, ...]:
        """Return the commands that make sense for the pool, one of ``n_pools``."""
        return offered(self.pool.state, self.pool.world_size, n_pools, bool(self.pool.groups))


@dataclass(frozen=True, slots=True)
class PoolMap:
    """The pools that live, or that lived last. ``nodes`` are the columns, ``groups`` the colours in order.

    ``n_more`` pools have no row, because the map would have too many cells.
    """

    nodes: tuple[str, ...]
    rows: tuple[PoolRow, ...]
    groups: tuple[str, ...]
    n_more: int = 0

    def n_cells(self, state: str) -> int:
        """Return how many slots are in a state."""
        return sum(cell.state == state for row in self.rows for cell in row.cells)


def load_pools(source: RunSource, frame: Frame) -> Content:
    """Return the page; of a run that is over, the pools as they were at its end.

    The query's ``at`` names the change after which they are shown, "start" for before them all.
    """
    rows = operation_rows(source.operations(N_HISTORY, None), source.audit_entries(N_HISTORY, None))
    pools = source.pools()
    shown = standing(pools, rows)
    changes = tuple(row for row in rows if row.operation.kind not in _GATE_MOVES and row.operation.state == "succeeded")
    line = moments(changes)
    chosen = next((one for one in line if one.id and one.id == frame.params.get("at", "")), None)
    if chosen is None:
        past = Past(shown, source.workers(), source.pool_generations())
        found = pool_map(past.pools, past.workers, past.generations, source.in_flight(_N_IN_FLIGHT))
    else:
        past = as_of(chosen, changes, shown, source.workers(), source.pool_generations())
        found = pool_map(past.pools, past.workers, past.generations, ())
    return Content(
        map=found,
        n_gone=len(pools) - len(shown),
        history=changes,
        moments=line,
        chosen=chosen,
        under_way=[row for row in rows if not row.operation.done],
        commands=dialogs(),
    )


def standing(pools: tuple[Pool, ...], operations: tuple[OperationRow, ...]) -> tuple[Pool, ...]:
    """Return the pools that live; when all are closed, those that were not split or merged away before the end."""
    living = tuple(pool for pool in pools if pool.state != "closed")
    if living:
        return living
    made: set[str] = set()
    gone: set[str] = set()
    for row in operations:  # newest first: what it made, an older one cannot have ended
        if row.plan is not None and row.operation.state == "succeeded":
            after = {box.name for box in row.plan.after}
            gone |= {box.name for box in row.plan.before} - after - made
            made |= after
    return tuple(pool for pool in pools if pool.name not in gone)


def pool_map(
    pools: tuple[Pool, ...],
    workers: tuple[Worker, ...],
    generations: tuple[PoolGeneration, ...],
    in_flight: tuple[CallInFlight, ...],
) -> PoolMap:
    """Return the map of ``pools``."""
    newest = {(worker.group, worker.rank): worker for worker in workers}
    own = _by_pool(generations)
    waiting = _by_pool(in_flight)
    seen = {name: sorted({worker.group for worker in held}) for name, held in _by_pool(newest.values()).items()}
    # A closed pool has no groups any more; its last workers show which it had.
    last = {p.name: p.groups if p.groups or p.state != "closed" else tuple(seen.get(p.name, ())) for p in pools}
    slots = {pool.name: _slots(pool, last[pool.name], own.get(pool.name, []), newest) for pool in pools}
    nodes = tuple(sorted({slot.node for held in slots.values() for slot in held}, key=_natural))
    groups = tuple(sorted({group for names in last.values() for group in names}))
    colours = {group: number for number, group in enumerate(groups)}
    drawn = pools[: max(1, _MOST_CELLS // max(1, len(nodes)))]
    rows = tuple(
        PoolRow(
            pool=pool,
            columns=_columns(pool, last[pool.name], slots[pool.name], nodes, newest, colours),
            generations=tuple(own.get(pool.name, [])[::-1]),
            in_flight=tuple(waiting.get(pool.name, ())),
        )
        for pool in drawn
    )
    return PoolMap(nodes, rows, groups, len(pools) - len(drawn))


def _by_pool(rows: Iterable[_Of]) -> dict[str, list[_Of]]:
    found: dict[str, list[_Of]] = defaultdict(list)
    for row in rows:
        found[row.pool].append(row)
    return found


def _slots(
    pool: Pool,
    groups: tuple[str, ...],
    generations: list[PoolGeneration],
    newest: dict[tuple[str, int], Worker],
) -> tuple[Slot, ...]:
    """Return the pool's slots; where none are recorded yet, they are derived from its shape and its workers."""
    if generations and generations[-1].slots and generations[-1].generation == pool.generation:
        return generations[-1].slots
    if generations and len(generations[-1].slots) == pool.world_size:
        return generations[-1].slots
    found: list[Slot] = []
    for place, n in enumerate(pool.process_on_nodes):
        for local in range(n):
            index = len(found)
            worker = next((newest[g, index] for g in groups if (g, index) in newest), None)
            found.append(Slot(index, worker.node if worker else f"node {place + 1}", local))
    return tuple(found)


def _columns(
    pool: Pool,
    own: tuple[str, ...],
    slots: tuple[Slot, ...],
    nodes: tuple[str, ...],
    newest: dict[tuple[str, int], Worker],
    colours: dict[str, int],
) -> tuple[tuple[Cell, ...], ...]:
    by_node: dict[str, list[Cell]] = {node: [] for node in nodes}
    for slot in slots:
        here = [newest[group, slot.index] for group in own if (group, slot.index) in newest]
        shown = [w for w in here if w.pool == pool.name and (w.state != "ended" or pool.state == "closed")]
        occupants = tuple(Occupant(w, colours[w.group]) for w in shown)
        by_node[slot.node].append(Cell(slot, _cell_state(occupants), occupants))
    return tuple(tuple(by_node[node]) for node in nodes)


def _cell_state(occupants: tuple[Occupant, ...]) -> str:
    if not occupants:
        return "free"
    states = {one.worker.state for one in occupants}
    return "dead" if states == {"died"} else "busy" if "alive" in states else "ended"


def _natural(name: str) -> tuple[object, ...]:
    """Return what sorts node-2 before node-10."""
    head = name.rstrip("0123456789")
    return (head, int(name[len(head) :] or 0), name)
