"""Which slots a pool is to have: those it keeps, per node, and how many it needs from the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.cluster.holdings import SlotKey
from core.control.snapshot import PoolView, SlotView


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a pool's list of processes per node: slots that are there, and ``extra`` ones to be reserved.

    Those must be on ``node``, if it is named: where the others are.
    """

    keep: tuple[SlotKey, ...] = ()
    extra: int = 0
    node: str = ""

    @property
    def size(self) -> int:
        """Return the number of processes."""
        return len(self.keep) + self.extra


@dataclass(frozen=True, slots=True)
class Target:
    """A pool as it is to be."""

    pool: str
    entries: tuple[Entry, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the processes per node."""
        return tuple(entry.size for entry in self.entries)

    @property
    def kept(self) -> tuple[SlotKey, ...]:
        """Return the slots that are there already."""
        return tuple(key for entry in self.entries for key in entry.keep)

    @property
    def extras(self) -> tuple[Entry, ...]:
        """Return the entries that need slots from the cluster."""
        return tuple(entry for entry in self.entries if entry.extra)


def entries(pool: PoolView, sizes: Sequence[int], cling: bool) -> Iterator[Entry]:
    """Yield the entries of a resized pool, keeping on each node what can be kept.

    ``cling`` keeps slots also where others of their native group go and cannot be given back: processes stay there.
    """
    nodes: dict[int, list[SlotView]] = {}
    for slot in pool.slots:
        nodes.setdefault(slot.node_index, []).append(slot)
    old = list(nodes.values())
    spare = list(pool.spare)
    for index, size in enumerate(sizes):
        slots = old[index] if index < len(old) else []
        node = slots[0].node if slots else ""
        if size > len(slots):
            taken = [slot for slot in spare if slots and slot.node == node][: size - len(slots)]
            spare = [slot for slot in spare if slot not in taken]
            keep = tuple(slot.key for slot in (*slots, *taken))
            extra = size - len(keep)
            yield Entry(keep, extra, node if extra else "")
        elif size == len(slots):
            yield Entry(tuple(slot.key for slot in slots))
        else:
            yield _shrunk(pool, slots, size, cling)


def _shrunk(pool: PoolView, slots: Sequence[SlotView], size: int, cling: bool) -> Entry:
    """Keep ``size`` of the slots so that whole native groups can be given back; replace them all where none can."""
    natives = dict.fromkeys(slot.key[0] for slot in slots)
    keep: list[SlotView] = []
    for native in natives:
        part = [slot for slot in slots if slot.key[0] == native]
        if len(keep) + len(part) <= size:
            keep += part
    if len(keep) == size:
        return Entry(tuple(slot.key for slot in keep))
    if cling or pool.shared & natives.keys():
        # A part cannot be given back while another pool has the rest: it is spare until one of them grows.
        return Entry(tuple(slot.key for slot in slots[:size]))
    return Entry(extra=size)


def freed(pool: PoolView, target: Target) -> tuple[int, ...]:
    """Return the native groups that the pool has no slot of any more and that no other pool has."""
    kept = {key[0] for key in target.kept}
    return tuple(dict.fromkeys(slot.key[0] for slot in pool.slots if slot.key[0] not in kept | pool.shared))


def stranded(pool: PoolView, target: Target) -> tuple[str, ...]:
    """Say which slots stay reserved without a pool."""
    gone = {slot.key for slot in pool.slots} - set(target.kept)
    stranded = [key for key in gone if key[0] in pool.shared or key[0] in {kept[0] for kept in target.kept}]
    if not stranded:
        return ()
    return (
        f"{len(stranded)} slots stay reserved without a pool, as other slots of their placement group are in use; they "
        f"are taken again when {pool.name} grows, and given back with the rest",
    )


def by_node(slots: Sequence[SlotView]) -> Iterator[Entry]:
    """Yield slots as entries, as their pool has them."""
    order = list(dict.fromkeys(slot.node_index for slot in slots))
    for node_index in order:
        yield Entry(tuple(slot.key for slot in slots if slot.node_index == node_index))


def by_address(slots: Sequence[SlotView]) -> Iterator[Entry]:
    """Yield slots of several pools as entries: those on one node together, whichever placement group they are of."""
    for node in dict.fromkeys(slot.node for slot in slots):
        yield Entry(tuple(slot.key for slot in slots if slot.node == node))
