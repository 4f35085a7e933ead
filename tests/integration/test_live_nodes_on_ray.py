"""Live changes over several nodes, which Ray's own ``Cluster`` starts on this one machine, one of them late.

It takes a minute or two: ``make test-slow`` runs it.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayNodes
from ray.util.placement_group import placement_group_table

from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core import runtime as runtimes
from core.cluster import ReserveRequest
from core.control import Operation, OperationState, Resize
from core.controller import Controller
from core.errors import PlacementError, WorkerDiedError
from core.group.worker_group import state_of
from core.pool import PoolState
from core.runtime import Runtime, connect_to_ray
from tests.live_walk import eventually
from tests.live_workers import Enduring, Learning, Ring, Stateless
from tests.warm_workers import warm_workers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="takes minutes: make test-slow"),
]

HEAD, LARGE, LATE = "127.0.0.2", "127.0.0.10", "127.0.0.3"
"""A head of one GPU, a node of three, and one of two that joins later, whose address stands before the large one's."""
_STORE_BYTES = 80 * 1024 * 1024
_DEAD_AFTER = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 3}


class Held(Ring):
    """Is not built on the fourth rank and those behind it while a file is there."""

    def __init__(self, hold: str) -> None:
        """Wait, then join the process group."""
        while int(os.environ["RANK"]) >= 3 and os.path.exists(hold):
            time.sleep(0.05)
        super().__init__()


def alive() -> list[str]:
    """Return the addresses of the nodes that are up."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["NodeManagerAddress"] for node in nodes if node["Alive"]]


class Nodes:
    """The cluster, and the node that comes and goes."""

    def __init__(self, nodes: RayNodes) -> None:
        """Begin without the late one."""
        self._nodes = nodes
        self._late: Any = None

    def join(self) -> None:
        """Have the late node join."""
        self._late = self._nodes.add_node(
            num_cpus=4, num_gpus=2, node_ip_address=LATE, object_store_memory=_STORE_BYTES
        )
        # Ray's own start of a node leaves sockets to the collector: here, not in a later test.
        gc.collect()

    def leave(self) -> None:
        """End the late node as a machine ends that loses its power."""
        if self._late is not None:
            self._nodes.remove_node(self._late, allow_graceful=False)
            self._late = None
        assert eventually(lambda: LATE not in alive())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Two nodes, and this driver on them."""
    folder = tempfile.mkdtemp(prefix="pd-", dir="/tmp")
    # Ray writes its address for all the machine to find, into a folder that must be there: into ours.
    Path(folder, "ray").mkdir()
    with warm_workers(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        nodes = RayNodes(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "num_gpus": 1,
                "node_ip_address": HEAD,
                "include_dashboard": False,
                "temp_dir": folder,
                "object_store_memory": _STORE_BYTES,
                "_system_config": _DEAD_AFTER,
            },
        )
        nodes.add_node(num_cpus=6, num_gpus=3, node_ip_address=LARGE, object_store_memory=_STORE_BYTES)
        gc.collect()
        ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.WARNING)
        made = Runtime(connect_to_ray)
        before = runtimes.install(made)
        yield Nodes(nodes)
        made.close()
        runtimes.install(before)
        ray.shutdown()
        nodes.shutdown()  # type: ignore[no-untyped-call]
    shutil.rmtree(folder, ignore_errors=True)
    gc.collect()


@pytest.fixture
def late(cluster: Nodes) -> Iterator[Nodes]:
    """The late node, there from now on; gone when the test is over, and nothing left of its placement groups."""
    cluster.join()
    yield cluster
    cluster.leave()
    assert eventually(lambda: not standing())


def standing() -> list[str]:
    """Return the placement groups that are not removed."""
    return [entry["name"] for entry in placement_group_table().values() if entry["state"] != "REMOVED"]


def nodes_of(group: RayWorkerGroup) -> list[str]:
    """Return the node of each rank, as the processes say."""
    return [state_of(group).runtime.cluster.node_of(actor) for actor in group.workers]


def is_free(node: str, n_slots: int) -> bool:
    """Whether a node has room for so many slots of the tests' pools."""
    request = ReserveRequest("room", (n_slots,), {"CPU": 2.0, "GPU": 1.0}, node=node)
    return runtimes.current().cluster.shortage(request) is None


def works(group: RayWorkerGroup, size: int, total: int) -> bool:
    """Whether a group answers on all its ranks, as one process group, with the sum that it should hold."""
    places = [(rank, size) for rank in range(size)]
    ring = [size * (size - 1) / 2] * size
    return bool(group.place() == places and group.sum_of_ranks() == ring and group.add(0) == [total] * size)


def large_pool() -> RayResourcePool:
    """Return a pool on all of the large node, with room for new workers beside the old."""
    return RayResourcePool([3], max_colocate_count=2, name_prefix="pool")


def asked(command: Resize) -> Callable[[], Operation]:
    """Submit from another thread; return what looks how far it is."""
    plane = Controller.current().plane
    got: list[Operation] = []
    asker = threading.Thread(target=lambda: got.append(plane.submit(command)))
    asker.start()
    asker.join(30)
    return lambda: plane.operation(got[0].id)


def test_a_pool_grows_onto_a_node_that_joined_later_and_off_it_again(cluster: Nodes) -> None:
    with large_pool() as pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Ring), name_prefix="actor")
        group.add(5)
        with pytest.raises(PlacementError, match=rf"node {HEAD}: .* room for 1 of these bundles"):
            pool.resize([3, 2])
        cluster.join()
        try:
            pool.resize([3, 2])
            assert nodes_of(group) == [LARGE] * 3 + [LATE] * 2
            assert pool.local_world_size_list() == [3, 3, 3, 2, 2]
            assert pool.local_rank_list() == [0, 1, 2, 0, 1]
            assert works(group, 5, total=5)
            assert not is_free(LATE, 1)
            pool.resize([3])
            assert nodes_of(group) == [LARGE] * 3
            assert works(group, 3, total=5)
            assert eventually(lambda: is_free(LATE, 2))
        finally:
            cluster.leave()
        assert works(group, 3, total=5)


def test_parts_of_a_split_lie_on_nodes_of_their_own_or_over_their_border(late: Nodes) -> None:
    controller = Controller.current()
    with RayResourcePool([3, 2], max_colocate_count=2, name_prefix="both") as pool:
        actor = RayWorkerGroup(pool, RayClassWithInitArgs(Ring), name_prefix="actor")
        actor.add(2)
        assert nodes_of(actor) == [LATE] * 2 + [LARGE] * 3
        made = controller.split(pool, {"train": (2, [actor]), "gen": (3, [])})
        rollout = RayWorkerGroup(made["gen"], RayClassWithInitArgs(Ring), name_prefix="rollout")
        assert (nodes_of(actor), nodes_of(rollout)) == ([LATE] * 2, [LARGE] * 3)
        assert works(actor, 2, total=2)
        assert works(rollout, 3, total=0)
        whole = controller.merge(["gen", "train"], "whole")
        assert whole.store == [3, 2]
        assert nodes_of(actor) == nodes_of(rollout) == [LARGE] * 3 + [LATE] * 2
        parts = controller.split(whole, {"one": (1, [rollout]), "over": (4, [actor])})
        assert nodes_of(actor) == [LARGE] * 2 + [LATE] * 2
        assert parts["over"].store == [2, 2]
        assert parts["over"].local_rank_list() == [0, 1, 0, 1]
        assert works(actor, 4, total=2)
        assert works(rollout, 1, total=0)


def test_a_node_that_goes_away_while_workers_come_up_on_it(late: Nodes, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with large_pool() as pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Held, str(hold)), name_prefix="actor")
        group.add(3)
        operation = asked(Resize("pool", "ada", (3, 2), deadline_s=120))
        # The constructors of the five wait for the last two.
        assert eventually(lambda: "starting 5" in operation().progress)
        time.sleep(2)
        late.leave()
        assert eventually(lambda: operation().state.done, 60)
        assert operation().state is OperationState.FAILED
        assert "rank 3" in operation().error or "rank 4" in operation().error
        assert (pool.state, pool.store, nodes_of(group)) == (PoolState.ACTIVE, [3], [LARGE] * 3)
        assert works(group, 3, total=3)
        assert eventually(lambda: len(standing()) == 1)


def test_a_node_that_goes_away_while_the_change_waits_for_the_driver(late: Nodes) -> None:
    with large_pool() as pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Ring), name_prefix="actor")
        group.add(3)
        operation = asked(Resize("pool", "ada", (3, 2), deadline_s=120))
        waiting = OperationState.WAITING_FOR_SAFE_POINT
        assert eventually(lambda: operation().state is waiting, 60)
        late.leave()
        # The call is the safe point: the change fails there, and the call goes on with the workers it has.
        assert works(group, 3, total=3)
        assert operation().state is OperationState.FAILED
        assert "died in ping" in operation().error
        assert eventually(lambda: len(standing()) == 1)


@pytest.mark.parametrize("kind", [Stateless, Enduring, Learning])
def test_a_pool_can_be_shrunk_off_a_node_that_is_gone(late: Nodes, kind: type) -> None:
    with large_pool() as pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(kind), name_prefix="rollout", on_death="raise")
        pool.resize([3, 2])
        held = group.add(3)[:3] if kind is Enduring else group.digest()[:3] if kind is Learning else None
        late.leave()
        with pytest.raises(WorkerDiedError):
            group.place()
        assert eventually(lambda: state_of(group).workers_for("place").deaths.dead == {3, 4})
        pool.resize([3])
        assert group.place() == [(rank, 3) for rank in range(3)]
        assert held == (group.add(0) if kind is Enduring else group.digest() if kind is Learning else None)
        assert eventually(lambda: len(standing()) == 1)
