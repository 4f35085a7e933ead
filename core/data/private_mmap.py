"""Private mappings of object store memory: a write copies one page and changes nothing for other processes.

An object that Ray passes to a worker lies in shared memory that every process of the node maps; a write would change it
for all of them. Copying it costs as much as sending it. So the same pages are mapped a second time, as private: reading
costs nothing, the first write to a page copies that page (4 KiB), and the shared page stays unchanged. For that the
store's file must be opened again; Ray's raylet, the parent process of its workers, has it open. Where that fails (in a
driver, on a system without ``/proc``), None is returned, and the receiver copies.

A mapping pins its object in the store as long as it exists. What a worker keeps after its method has returned gets
pages of its own at the start of the next method (``unpin_store_objects``).
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

MIN_MAPPED_BYTES = 1 << 20
"""Below this a copy is cheaper than a mapping."""

MAX_MAPPINGS = 4096
"""A process may have about 65,000 mappings of all kinds; a worker that keeps more batches than this gets copies."""

_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE (5.14): give the process its own copy of every page, with the same contents."""


class PrivateMemory(mmap.mmap):
    """A private mapping, and the reference that keeps its object in the store."""

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
        """Return the name of the file mapped at exactly these addresses now, empty if it cannot be read."""
        try:
            return os.readlink(f"/proc/self/map_files/{self.start:x}-{self.stop:x}")
        except OSError:
            return ""


_lock = threading.Lock()
_files: dict[tuple[str, int], int | None] = {}
"""The store's files by device and inode: this process's descriptor, None if the file cannot be opened."""
_n_methods_ended = 0
_known: dict[_Region, str] = {}
"""Regions that were looked up, with the name of their file: reading the list of all mappings takes a millisecond."""
_living: weakref.WeakSet[PrivateMemory] = weakref.WeakSet()


def private_view(array: np.ndarray[Any, Any]) -> Bytes | None:
    """Return the bytes of a contiguous read-only ``array`` as writable memory; None if the array must be copied."""
    if array.nbytes < MIN_MAPPED_BYTES or len(_living) >= MAX_MAPPINGS:
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
    """Record that a method of this worker has ended: later mappings belong to the next method."""
    global _n_methods_ended
    _n_methods_ended += 1


def unpin_store_objects() -> None:
    """Give mappings of earlier methods that still exist their own copy of every page, and unpin their objects.

    Safe while other threads read and write there. Where the kernel does not support it, the objects stay pinned.
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
    """Return the known region that contains these bytes, if the same file is still mapped there."""
    for region, name in _known.items():
        if region.start <= address and address + n_bytes <= region.stop:
            if region.name == name:
                return region
            del _known[region]
            break
    return None


def _region_of(address: int, n_bytes: int) -> _Region | None:
    """Find the shared mapping of a file that contains all of these bytes."""
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
    """Open the file of a mapping again, through the descriptor in this process's parent."""
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
