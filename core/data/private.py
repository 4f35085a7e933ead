"""Memory of the object store as a process's own: mapped privately, so that a write copies a page and harms nobody.

An object that Ray hands to a worker lies in shared memory that every process of the node has mapped, and that a write
would change for all of them. Copying it costs as much as sending it. So the same pages are mapped once more, private:
reading costs nothing, the first write to a page copies that page (4 KiB), and the shared one stays as it is. For that
the store's file must be opened again; Ray's raylet, the parent of its workers, holds it. Where that fails (in a driver,
on a system without ``/proc``), None is returned, and the receiver copies.

While a mapping lives it pins its object in the store. What a worker keeps beyond its method is made its own at the
start of the next (``let_go_of_store``).
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

WORTH_MAPPING_BYTES = 1 << 20
"""Below this a copy is cheaper than a mapping."""

MAX_MAPPINGS = 4096
"""A process may have some 65,000 mappings of all kinds: a worker that keeps more batches than these gets copies."""

_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE (5.14): give the process its own copy of every page, contents as they are."""


class PrivateMemory(mmap.mmap):
    """A private mapping, and what keeps its object in the store."""

    pinned: Any = None
    made_in: int = 0


class _Region(NamedTuple):
    """A line of ``/proc/self/maps``."""

    start: int
    stop: int
    offset: int
    device: str
    inode: int

    @property
    def name(self) -> str:
        """Return the name of what is mapped at exactly these addresses now, empty when it cannot be told."""
        try:
            return os.readlink(f"/proc/self/map_files/{self.start:x}-{self.stop:x}")
        except OSError:
            return ""


_lock = threading.Lock()
_files: dict[tuple[str, int], int | None] = {}
"""The store's files by device and inode: a descriptor of ours, None when it cannot be opened."""
_n_methods_ended = 0
_known: dict[_Region, str] = {}
"""Regions that were looked up, and what was mapped there: looking into the list of all mappings takes a millisecond."""
_living: weakref.WeakSet[PrivateMemory] = weakref.WeakSet()


def private_view(array: np.ndarray[Any, Any]) -> Bytes | None:
    """Return the bytes of ``array``, contiguous and read-only, as memory that may be written to; None if it must be
    copied."""
    if array.nbytes < WORTH_MAPPING_BYTES or len(_living) >= MAX_MAPPINGS:
        return None
    address = int(array.__array_interface__["data"][0])
    with _lock:
        region = _known_region(address, array.nbytes) or _region_of(address, array.nbytes)
        file = None if region is None else _file_of(region)
    if region is None or file is None:
        return None
    first = address - address % mmap.ALLOCATIONGRANULARITY
    try:
        memory = PrivateMemory(
            file,
            address - first + array.nbytes,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=region.offset + first - region.start,
        )
    except (OSError, ValueError):
        return None
    memory.pinned, memory.made_in = array, _n_methods_ended
    _living.add(memory)
    return np.frombuffer(memory, dtype=np.uint8, count=array.nbytes, offset=address - first)


def method_ended() -> None:
    """Take note that a method of this worker is over: what is mapped from now on is the next one's."""
    global _n_methods_ended
    _n_methods_ended += 1


def let_go_of_store() -> None:
    """Give what is still alive of earlier methods' mappings its own copy of every page, and unpin its objects.

    Safe while other threads read and write there. Where the kernel cannot do it, the objects stay pinned.
    """
    if not _living:
        return
    for memory in list(_living):
        if memory.pinned is not None and memory.made_in < _n_methods_ended:
            try:
                memory.madvise(_POPULATE_WRITE)
            except OSError:
                continue
            memory.pinned = None


def _known_region(address: int, n_bytes: int) -> _Region | None:
    """Return the region that held these bytes before, if the same file is still mapped there."""
    for region, name in _known.items():
        if region.start <= address and address + n_bytes <= region.stop:
            if region.name == name:
                return region
            del _known[region]
            break
    return None


def _region_of(address: int, n_bytes: int) -> _Region | None:
    """Find the shared mapping of a file that holds all of these bytes."""
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as lines:
            for line in lines:
                span, flags, offset, device, inode = line.split(None, 5)[:5]
                start, _, stop = span.partition("-")
                if int(start, 16) <= address < int(stop, 16):
                    if flags[3] != "s" or address + n_bytes > int(stop, 16):
                        return None
                    region = _Region(int(start, 16), int(stop, 16), int(offset, 16), device, int(inode))
                    if region.name:
                        _known[region] = region.name
                    return region
    except (OSError, ValueError):
        return None
    return None


def _file_of(region: _Region) -> int | None:
    """Open the file of a mapping again, by the descriptor that this process's parent has of it."""
    key = region.device, region.inode
    if key not in _files:
        _files[key] = _opened(key)
    return _files[key]


def _opened(key: tuple[str, int]) -> int | None:
    folder = f"/proc/{os.getppid()}/fd"
    try:
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            if _key_of(path) == key:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    return None


def _key_of(path: str) -> tuple[str, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}", facts.st_ino
