"""The slots of a changed pool: those it keeps, per node, and how many it needs from the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.cluster.holdings import SlotKey
from core.control.snapshot import PoolView, SlotView


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """One entry of a pool's list of processes per node: slots to keep, and ``extra`` ones to reserve.

    ``node``, if not empty, is where the extra ones must be: beside the others.
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
    """A pool after the change."""

    pool: str
    entries: tuple[NodeTarget, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the processes per node."""
        return tuple(entry.size for entry in self.entries)

    @property
    def kept(self) -> tuple[SlotKey, ...]:
        """Return the slots that exist already."""
        return tuple(key for entry in self.entries for key in entry.keep)

    @property
    def extras(self) -> tuple[NodeTarget, ...]:
        """Return the entries that need slots from the cluster."""
        return tuple(entry for entry in self.entries if entry.extra)


def entries(pool: PoolView, sizes: Sequence[int], keep_stranded: bool) -> Iterator[NodeTarget]:
    """Yield the entries of a resized pool, keeping on each node what can be kept.

    ``keep_stranded`` keeps slots even if others of their native group cannot be released: processes stay there.
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
            yield NodeTarget(keep, extra, node if extra else "")
        elif size == len(slots):
            yield NodeTarget(tuple(slot.key for slot in slots))
        else:
            yield _shrunk(pool, slots, size, keep_stranded)


def _shrunk(pool: PoolView, slots: Sequence[SlotView], size: int, keep_stranded: bool) -> NodeTarget:
    """Keep ``size`` of the slots so that whole native groups can be released; replace them all if none can."""
    natives = dict.fromkeys(slot.key[0] for slot in slots)
    keep: list[SlotView] = []
    for native in natives:
        part = [slot for slot in slots if slot.key[0] == native]
        if len(keep) + len(part) <= size:
            keep += part
    if len(keep) == size:
        return NodeTarget(tuple(slot.key for slot in keep))
    if keep_stranded or pool.shared & natives.keys():
        # A part cannot be released while another pool has the rest: it is spare until one of them grows.
        return NodeTarget(tuple(slot.key for slot in slots[:size]))
    return NodeTarget(extra=size)


def freed(pool: PoolView, target: Target) -> tuple[int, ...]:
    """Return the native groups of which neither this pool nor another one has a slot any more."""
    kept = {key[0] for key in target.kept}
    return tuple(dict.fromkeys(slot.key[0] for slot in pool.slots if slot.key[0] not in kept | pool.shared))


def stranded(pool: PoolView, target: Target) -> tuple[str, ...]:
    """Return a description of the slots that stay reserved without a pool."""
    gone = {slot.key for slot in pool.slots} - set(target.kept)
    stranded = [key for key in gone if key[0] in pool.shared or key[0] in {kept[0] for kept in target.kept}]
    if not stranded:
        return ()
    return (
        f"{len(stranded)} slots stay reserved without a pool, as other slots of their placement group are in use; they "
        f"are used again when {pool.name} grows, and released with the rest",
    )


def by_node(slots: Sequence[SlotView]) -> Iterator[NodeTarget]:
    """Yield slots as entries, as their pool has them."""
    order = list(dict.fromkeys(slot.node_index for slot in slots))
    for node_index in order:
        yield NodeTarget(tuple(slot.key for slot in slots if slot.node_index == node_index))


def by_address(slots: Sequence[SlotView]) -> Iterator[NodeTarget]:
    """Yield slots of several pools as entries: those on one node together, whichever placement group they are of."""
    for node in dict.fromkeys(slot.node for slot in slots):
        yield NodeTarget(tuple(slot.key for slot in slots if slot.node == node))
