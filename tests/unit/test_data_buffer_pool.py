"""Memory of joined columns is used again once nobody holds it, and never before."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from core.data import buffer_pool
from core.data.buffer_pool import new_memory, release_pool
from core.data.memory import address_of

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Begin and end with nothing."""
    gc.collect()
    release_pool()
    yield
    gc.collect()
    release_pool()


def test_memory_is_used_again_when_its_last_view_is_gone() -> None:
    memory = new_memory(8 * MIB)
    memory[:] = 7
    tensor = torch.from_numpy(memory).view(torch.float32).reshape(2, -1)[1]
    at = address_of(memory)
    del memory
    other = new_memory(8 * MIB)
    assert address_of(other) != at
    other[:] = 1
    assert set(tensor.view(torch.uint8).tolist()) == {7}
    del tensor
    assert address_of(new_memory(8 * MIB)) == at


def test_a_slab_is_used_for_less_than_it_holds_but_not_for_much_less_nor_for_more() -> None:
    for n_bytes, fits in ((10 * MIB, True), (8 * MIB, True), (10 * MIB + 1, False), (8 * MIB - 1, False)):
        release_pool()
        at = address_of(new_memory(10 * MIB))
        memory = new_memory(n_bytes)
        assert memory.nbytes == n_bytes
        assert memory.flags.writeable
        assert (address_of(memory) == at) is fits, n_bytes
        del memory


def test_the_smallest_that_fits_is_taken_and_the_oldest_is_let_go_of_when_none_does() -> None:
    slabs_made = [new_memory(size * MIB) for size in (20, 10, 11)]
    places = [address_of(slab) for slab in slabs_made]
    while slabs_made:
        del slabs_made[0]
    ten = new_memory(10 * MIB)
    assert address_of(ten) == places[1]
    much = new_memory(100 * MIB)
    assert release_pool() == 11 * MIB
    del ten, much


def test_not_more_is_kept_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "MAX_POOLED_BYTES", 20 * MIB)
    made = [new_memory(8 * MIB) for _ in range(3)]
    made.append(new_memory(21 * MIB))
    made.clear()
    assert release_pool() == 16 * MIB
    assert release_pool() == 0


def test_small_memory_is_the_allocator_s() -> None:
    new_memory(1 * MIB)
    assert release_pool() == 0


def test_memory_in_a_cycle_is_given_back_by_the_collector() -> None:
    holder: list[object] = [new_memory(8 * MIB)]
    holder.append(holder)
    del holder
    gc.collect()
    assert release_pool() == 8 * MIB


def test_what_was_written_stays_while_it_is_held_whatever_is_given_back_meanwhile() -> None:
    rng = np.random.default_rng(0)
    held: dict[int, np.ndarray] = {}
    for number in range(60):
        memory = new_memory(int(rng.integers(4, 8)) * MIB)
        memory[:: 1 << 12] = number
        held[number] = memory
        del memory
        if len(held) > 4:
            del held[int(rng.choice(list(held)))]
        for known, array in held.items():
            assert (array[:: 1 << 12] == known).all()


def test_an_array_holds_its_slab_by_itself_as_finalizers_are_gone_before_it_when_python_ends() -> None:
    memory = new_memory(8 * MIB)
    assert any(isinstance(held, mmap.mmap) for held in gc.get_referents(memory.base))


def test_where_no_more_can_be_mapped_what_is_kept_is_given_back_and_the_allocator_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_memory(8 * MIB)

    def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("core.data.buffer_pool.mmap.mmap", full)
    assert new_memory(16 * MIB).nbytes == 16 * MIB
    assert release_pool() == 0
    with pytest.raises(MemoryError):
        new_memory(1 << 60)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_lock_that_nobody_holds_there_and_keeps_no_copies() -> None:
    new_memory(8 * MIB)
    with buffer_pool._lock:
        child = os.fork()
        if not child:
            free = buffer_pool._lock.acquire(timeout=5)
            os._exit(0 if free and not buffer_pool._free else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert release_pool() == 8 * MIB
