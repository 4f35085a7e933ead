"""Memory that is mapped privately: writes stay here, and the mapping lets go of what it maps."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.data import private_mmap

N_BYTES = private_mmap.MIN_MAPPED_BYTES + 5000

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """A shared mapping of a file as a store's is, whose "parent" with the open file is this very process."""
    monkeypatch.setattr(os, "getppid", os.getpid)
    descriptor = os.open(tmp_path / "store", os.O_RDWR | os.O_CREAT)
    os.truncate(descriptor, 3 * N_BYTES)
    memory = mmap.mmap(descriptor, 3 * N_BYTES)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 3
    yield array
    del array
    os.close(descriptor)


def part_of(shared: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a read-only part that does not begin at a page's border."""
    part = shared[123 : 123 + N_BYTES]
    part.flags.writeable = False
    return part


def test_a_write_to_a_private_view_is_seen_by_nobody_else(
    shared: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> None:
    one, other = private_mmap.private_view(part_of(shared)), private_mmap.private_view(part_of(shared))
    assert one is not None
    assert other is not None
    assert (one.nbytes, int(one.min()), int(one.max())) == (N_BYTES, 3, 3)
    one[:] = 7
    assert int(other.max()) == int(shared.max()) == 3
    assert int(one.min()) == 7


def test_what_is_kept_beyond_a_method_is_copied_and_pins_nothing(
    shared: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> None:
    view = private_mmap.private_view(part_of(shared))
    assert view is not None
    memory = next(one for one in private_mmap._living if one.pinned is not None)
    view[0] = 9
    private_mmap.unpin_store_objects()
    assert memory.pinned is not None, "the method that got it still runs"
    private_mmap.method_ended()
    private_mmap.unpin_store_objects()
    if memory.pinned is not None:
        pytest.skip("this kernel cannot populate a mapping (Linux 5.14 can)")
    shared[:] = 0  # as the store does when it uses the room for another object
    assert (int(view[0]), int(view[1]), int(view[-1])) == (9, 3, 3)


def test_what_is_small_private_or_nobodys_file_is_to_be_copied(
    shared: np.ndarray[tuple[int], np.dtype[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert private_mmap.private_view(shared[:1000]) is None
    assert private_mmap.private_view(np.zeros(N_BYTES, dtype=np.uint8)) is None
    monkeypatch.setattr(private_mmap, "MAX_MAPPINGS", len(private_mmap._living))
    assert private_mmap.private_view(part_of(shared)) is None
    monkeypatch.undo()
    monkeypatch.setattr(private_mmap, "_files", {})
    monkeypatch.setattr(os, "getppid", lambda: 1 << 30)
    assert private_mmap.private_view(part_of(shared)) is None


def test_a_region_that_was_unmapped_is_looked_up_anew(
    shared: np.ndarray[tuple[int], np.dtype[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this process may have left regions of theirs.
    monkeypatch.setattr(private_mmap, "_known", {})
    assert private_mmap.private_view(part_of(shared)) is not None
    stale = {region: f"{name} as it was" for region, name in private_mmap._known.items()}
    monkeypatch.setattr(private_mmap, "_known", stale)
    assert private_mmap.private_view(part_of(shared)) is not None
    assert all(not name.endswith("as it was") for name in stale.values())
