"""Handles that a group gave out: the workers live as long as one is held, or as the pool, or until they are closed."""

from __future__ import annotations

import gc
import socket
import weakref
from typing import Any

import pytest

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, create_colocated_worker_cls, get
from core.controller import Controller
from core.errors import PlacementError, WorkerDiedError
from core.events import GroupClosed, WorkerEnded
from core.finalizers import drain
from core.testing import RecordingObserver
from tests.group_workers import Rows

Local = tuple[Controller, RecordingObserver]


def handles_of(pool: RayResourcePool, name: str = "rows") -> list[Any]:
    """Return what a function keeps that makes a group and lets it go."""
    return RayWorkerGroup(pool, RayClassWithInitArgs(Rows), name_prefix=name).workers


def collected() -> None:
    """Collect what nobody holds, and have done what is due then."""
    for _ in range(2):
        gc.collect()
        assert drain()


def answer(handle: Any) -> Any:
    """Ask a worker through its handle."""
    return get(handle.get_master_addr_port.remote())


def test_workers_live_while_a_handle_is_held_and_each_ends_with_its_own(local: Local) -> None:
    pool = RayResourcePool([2], use_gpu=False)
    zero, one = handles_of(pool)
    collected()
    assert answer(zero) == answer(one)
    assert not local[1].of(WorkerEnded)
    gone = weakref.ref(one)
    del one
    collected()
    assert gone() is None
    assert answer(zero)
    assert [event.rank for event in local[1].of(WorkerEnded)] == [1]
    assert not local[1].of(GroupClosed)
    del zero
    collected()
    assert [(event.rank, event.died) for event in local[1].of(WorkerEnded)] == [(1, False), (0, False)]
    assert [event.group for event in local[1].of(GroupClosed)] == ["rows"]


def test_the_pool_ends_workers_that_only_their_handles_keep(local: Local) -> None:
    pool = RayResourcePool([2], use_gpu=False)
    zero, one = handles_of(pool)
    collected()
    pool.close()
    for handle in (zero, one):
        with pytest.raises(WorkerDiedError):
            answer(handle)
    assert [event.rank for event in local[1].of(WorkerEnded)] == [0, 1]
    assert len(local[1].of(GroupClosed)) == 1


def test_a_pool_that_nobody_holds_lives_as_long_as_the_handles(local: Local) -> None:
    handles = handles_of(RayResourcePool([1], use_gpu=False, name_prefix="kept"))
    collected()
    assert answer(handles[0])
    assert "kept" in local[0].runtime.pools()
    del handles
    collected()
    assert "kept" not in local[0].runtime.pools()


def test_workers_that_are_held_keep_their_place_on_the_slots(local: Local) -> None:
    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
    handles = handles_of(pool)
    collected()
    with pytest.raises(PlacementError, match="rows"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Rows))
    del handles
    collected()
    RayWorkerGroup(pool, RayClassWithInitArgs(Rows)).close()


def test_close_ends_workers_also_while_their_handles_are_held(local: Local) -> None:
    group = RayWorkerGroup([1], RayClassWithInitArgs(Rows), use_gpu=False)
    (handle,) = group.workers
    group.close()
    with pytest.raises(WorkerDiedError):
        answer(handle)


def test_handles_of_a_role_keep_the_process_that_the_roles_share(local: Local) -> None:
    pool = RayResourcePool([1], use_gpu=False)

    def handle() -> Any:
        made_of = create_colocated_worker_cls(
            {"actor": RayClassWithInitArgs(Rows), "critic": RayClassWithInitArgs(Rows)}
        )
        return RayWorkerGroup(pool, made_of).spawn({"actor"})["actor"].workers[0]

    kept = handle()
    collected()
    assert answer(kept)


def test_a_group_whose_handles_nobody_asked_for_ends_when_it_is_dropped(local: Local) -> None:
    pool = RayResourcePool([2], use_gpu=False)
    RayWorkerGroup(pool, RayClassWithInitArgs(Rows))
    collected()
    assert len(local[1].of(WorkerEnded)) == 2


def test_a_worker_gives_its_nodes_address_and_ports_that_stay_free_until_they_are_used(local: Local) -> None:
    group = RayWorkerGroup([1], RayClassWithInitArgs(Rows), use_gpu=False)
    (handle,) = group.workers
    assert get(handle._get_node_ip.remote()) == "127.0.0.1"
    address, port = get(handle.get_availale_master_addr_port.remote())
    ports = [int(port), get(handle._get_free_port.remote()), get(handle._get_free_port.remote())]
    assert address == "127.0.0.1"
    assert len(set(ports)) == 3
    for taken in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", taken))
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", taken))
            listener.listen()
