"""Workers that die on other nodes, and nodes that die with their workers: noticed within 2 s and explained.

The nodes are on this one machine. Where a test wants another machine the watch is told that its own is another one than
the workers': it then has no use for their pids and files, as it would have none there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from core import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, ReplicatedState, Worker, register
from core.errors import WorkerDiedError
from core.events import WorkerEnded
from core.group.worker_group import state_of
from core.health.in_flight import calls_in_flight
from core.health.monitor import monitor_of
from core.runtime import Runtime
from core.testing import RecordingObserver
from core.worker.process_info import machine
from tests.ray_nodes import Nodes, nodes_of_ray

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="a Ray of three nodes of its own: make test-slow"),
]

HEAD, SECOND, THIRD, FOURTH, FIFTH, SIXTH = (f"127.0.0.{last}" for last in (2, 10, 11, 12, 13, 14))
LIMIT_S = 2.0


class Mortal(Worker):
    """A worker that ends as it is told."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def processes(self) -> tuple[int, int]:
        """Return this process and its raylet."""
        return os.getpid(), os.getppid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def end(self, rank: int, how: int, others_s: float = 1.0) -> None:
        """End one rank by a signal, or by an exit code that is given as a negative number; the others take a while."""
        if self.rank == rank:
            print(f"the last words of rank {rank}", flush=True)
            time.sleep(0.2)
            if how < 0:
                os._exit(-how)
            os.kill(os.getpid(), how)
        time.sleep(others_s)


class Kept(ReplicatedState, Mortal):
    """Counts, and hands the count on."""

    replicated_values = ("count",)

    def __init__(self) -> None:
        """Begin at 0."""
        super().__init__()
        self.count = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self) -> tuple[int, str]:
        """Count; return the count and where the rendezvous is."""
        self.count += 1
        return self.count, self._facts.master_addr


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Three nodes; the first has no room for workers."""
    head = {"num_cpus": 0, "node_ip_address": HEAD}
    others = [{"num_cpus": 6, "node_ip_address": SECOND}, {"num_cpus": 2, "num_gpus": 2, "node_ip_address": THIRD}]
    with nodes_of_ray(head, others) as made:
        yield made


@pytest.fixture(scope="module")
def seen(nodes: Nodes) -> tuple[Runtime, RecordingObserver]:
    """The runtime, and what it told its observer."""
    observer = RecordingObserver()
    nodes.runtime.bus.subscribe(observer)
    return nodes.runtime, observer


def eventually(true: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until ``true`` is."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def be_on_another_machine(runtime: Runtime, group: RayWorkerGroup | None = None) -> None:
    """Have the watch take the workers' machine for another one; wait for the watchers on the nodes of ``group``."""
    watch = monitor_of(runtime)._watch
    if group is None:
        watch._machine = "another one"
        return
    live = state_of(group).workers_for("end")
    tracked = [watch._tracked[live.process(rank).key] for rank in range(live.world_size)]
    assert eventually(lambda: all(watch._node_watchers.sees(one) for one in tracked), 60)
    assert eventually(lambda: all(one.last.memory_bytes for one in tracked), 10)


def test_deaths_on_another_machine_are_told_at_once_with_signal_code_log_and_memory(
    seen: tuple[Runtime, RecordingObserver],
) -> None:
    runtime, observer = seen
    be_on_another_machine(runtime)
    pool = RayResourcePool([4], use_gpu=False, max_colocate_count=1)
    with RayWorkerGroup(pool, RayClassWithInitArgs(Mortal), name_prefix="far", on_death="raise") as group:
        pids = group.processes()
        be_on_another_machine(runtime, group)
        ends = [(0, int(signal.SIGKILL)), (1, int(signal.SIGABRT)), (2, -7)]
        reasons = ["killed from outside by signal 9 (SIGKILL)", "crashed by signal 6 (SIGABRT)"]
        for (rank, how), reason in zip(ends, [*reasons, "ended by itself with exit code 7"], strict=True):
            if rank == 0:
                began_s = time.monotonic()
                with pytest.raises(WorkerDiedError, match="died in end") as caught:
                    group.end(rank, how)
                assert time.monotonic() - began_s - 0.2 < LIMIT_S
                assert caught.value.how == reason
            else:
                runtime.cluster.ask(group.workers[rank], "end", (rank, how), {})
            assert eventually(lambda pid=pids[rank][0]: not os.path.exists(f"/proc/{pid}"), 30)  # type: ignore[misc]
            assert eventually(lambda rank=rank: rank in {one.rank for one in observer.of(WorkerEnded)}, LIMIT_S)  # type: ignore[misc]
            death = next(one for one in observer.of(WorkerEnded) if one.rank == rank)
            assert (death.died, death.reason, death.node, death.pid) == (True, reason, SECOND, pids[rank][0])
            assert death.report is not None
            assert f"the last words of rank {rank}" in death.report.log_tail
            assert death.report.memory_bytes > 2**20
            assert death.report.oom is False
    pool.close()


def test_a_node_that_dies_is_told_for_each_of_its_workers_long_before_the_cluster_knows(
    seen: tuple[Runtime, RecordingObserver],
) -> None:
    runtime, observer = seen
    be_on_another_machine(runtime)
    pool = RayResourcePool([4], use_gpu=False, max_colocate_count=1)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Mortal), name_prefix="lost", on_death="raise")
    ((_, raylet), *_) = group.processes()
    be_on_another_machine(runtime, group)
    told: list[tuple[float, str]] = []

    def call() -> None:
        try:
            group.end(-1, 0, 60.0)
        except WorkerDiedError as error:
            told.append((time.monotonic(), str(error)))

    calling = threading.Thread(target=call)
    calling.start()
    assert eventually(lambda: any(len(one.out) == 4 for one in calls_in_flight(runtime)), LIMIT_S)
    killed_s = time.monotonic()
    kill_node(raylet, group, observer, SECOND, 4)
    # Ray itself takes some 14 s to say so.
    calling.join(10)
    assert told, "the call in flight still waits"
    print(f"raised {told[0][0] - killed_s:.1f} s after the end of the node")
    assert "its node died" in told[0][1]
    with pytest.raises(WorkerDiedError, match=r"its node died; .*processes was asked of no rank"):
        group.processes()
    group.close()
    pool.close()


def test_a_machine_that_is_gone_at_once_with_all_that_ran_there_is_a_death_once_the_cluster_says_so(
    nodes: Nodes, seen: tuple[Runtime, RecordingObserver]
) -> None:
    runtime, observer = seen
    be_on_another_machine(runtime)
    nodes.add(num_cpus=16, node_ip_address=SIXTH)
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=8)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Mortal), name_prefix="cut", on_death="raise")
    pids = group.processes()
    assert {runtime.cluster.node_of(actor) for actor in group.workers} == {SIXTH}
    be_on_another_machine(runtime, group)
    told: list[WorkerDiedError] = []

    def call() -> None:
        try:
            group.end(-1, 0, 120.0)
        except WorkerDiedError as error:
            told.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    assert eventually(lambda: any(len(one.out) == 2 for one in calls_in_flight(runtime)), LIMIT_S)
    kill_all_at_once(pids[0][1])
    killed_s = time.monotonic()
    # Its connections are closed, so that Ray calls the workers unreachable at first.
    calling.join(90)
    assert told, "the call in flight still waits"
    print(f"raised {time.monotonic() - killed_s:.1f} s after the end of the machine")
    assert (told[0].how, told[0].group, told[0].method, told[0].rank >= 0) == ("its node died", "cut", "end", True)
    assert eventually(lambda: len([one for one in observer.of(WorkerEnded) if one.group == "cut"]) == 2, LIMIT_S)
    group.close()
    pool.close()


def kill_all_at_once(raylet: int) -> None:
    """End the processes of a node so that none is left to tell of another: its node watcher first stands still."""
    parents = {int(folder.name): parent_of(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")}
    of_node = [raylet]
    for pid in of_node:
        of_node += [child for child, parent in parents.items() if parent == pid]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in reversed(of_node):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def parent_of(pid: int) -> int:
    """Return a process's parent, 0 when it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return 0


def test_a_group_goes_on_elsewhere_with_its_state_after_its_node_died(
    nodes: Nodes, seen: tuple[Runtime, RecordingObserver]
) -> None:
    runtime, observer = seen
    monitor_of(runtime)._watch._machine = machine()
    nodes.add(num_cpus=1, num_gpus=1, node_ip_address=FOURTH)
    pool = RayResourcePool([2, 1], max_colocate_count=1)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Kept), name_prefix="kept", on_death="restart", max_restarts=1)
    assert [slot.node for slot in pool.placement_now.slots] == [THIRD, THIRD, FOURTH]
    assert group.add() == [(1, THIRD)] * 3
    kill_node(group.processes()[0][1], group, observer, THIRD, 2)
    generation = pool.generation
    nodes.add(num_cpus=2, num_gpus=2, node_ip_address=FIFTH)
    # Ranks keep their order, not that of the new addresses; the rendezvous is where rank 0 is now.
    assert group.add() == [(2, FIFTH)] * 3
    assert [slot.node for slot in pool.placement_now.slots] == [FIFTH, FIFTH, FOURTH]
    assert [runtime.cluster.node_of(actor) for actor in group.workers] == [FIFTH, FIFTH, FOURTH]
    assert pool.generation == generation + 1
    group.close()
    pool.close()


def kill_node(raylet: int, group: RayWorkerGroup, observer: RecordingObserver, node: str, n_workers: int) -> None:
    """Kill what keeps the workers of a node; see that the death of each is told, and why."""

    def deaths() -> list[WorkerEnded]:
        return [one for one in observer.of(WorkerEnded) if one.group == group.name]

    os.kill(raylet, signal.SIGKILL)
    killed_s = time.monotonic()
    assert eventually(lambda: len(deaths()) == n_workers, LIMIT_S)
    print(f"noticed {time.monotonic() - killed_s:.3f} s after the end of {node}")
    for death in deaths():
        assert (death.died, death.reason, death.node) == (True, "its node died", node)
        assert death.report is not None
        words = f"the kernel says: raylet (pid {raylet}) of this node was killed by signal 9 (SIGKILL)"
        assert death.report.evidence == (words,)
        assert death.report.memory_bytes > 2**20
