"""A driver on the local cluster whose pool changes and whose worker dies, read back from its file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.recorder import Recorder
from app.store.check import check
from app.store.reader import Reader
from app.store.writer import Writer
from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core.errors import WorkerDiedError
from core.testing import local_controller
from tests.live_workers import Counting
from tests.store_scene import facts
from web.calls import CallFilter

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Lead a group from 2 to 4 to 1 to 2 + 2 workers, lose one, and return a reader of the file."""
    path = tmp_path_factory.mktemp("live") / "run.db"
    with local_controller() as (controller, _):
        clock, bus = controller.runtime.clock, controller.runtime.bus
        recorder = Recorder(Writer(path, replace(facts(os.getpid()), started_ns=clock.now_ns())))
        recorder.start()
        bus.subscribe(recorder, recorder.flush)
        pool = RayResourcePool([2], name_prefix="trainers")
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Counting, 5), name_prefix="actor")
        for sizes in ([4], [1], [2, 2]):
            pool.resize(sizes)
            assert group.add(0) == [5] * sum(sizes)
        group.workers[1].kill("lost its node")
        _until_it_dies(group)
        bus.unsubscribe(recorder)
    recorder.close()
    with contextlib.closing(Reader(path)) as found:
        yield found


def _until_it_dies(group: RayWorkerGroup) -> None:
    ends_at = time.monotonic() + 10
    while time.monotonic() < ends_at:
        try:
            group.add(0)
        except WorkerDiedError:
            return
    raise AssertionError("the group never heard of its worker's death")


def test_every_generation_of_the_pool_is_there_with_the_operation_that_made_it(reader: Reader) -> None:
    found = reader.pool_generations()
    assert [one.process_on_nodes for one in found] == [(2,), (4,), (1,), (2, 2)]
    assert [len(one.slots) for one in found] == [2, 4, 1, 4]
    operations = reader.operations(10, None)
    assert [one.operation_id for one in found[1:]] == [one.id for one in reversed(operations)]
    assert all((one.kind, one.state, bool(one.plan)) == ("resize", "succeeded", True) for one in operations)
    assert all(0 < one.downtime_ms < 60_000 for one in operations)


def test_a_group_is_one_group_through_all_its_workers(reader: Reader) -> None:
    (group,) = reader.groups()
    assert (group.name, group.world_size) == ("actor", 4)
    states = [worker.state for worker in reader.workers()]
    assert states.count("died") == 1
    assert len(states) >= 2 + 2 + 4


def test_the_worker_that_was_lost_has_a_report(reader: Reader) -> None:
    (death,) = reader.deaths()
    assert (death.group, death.rank) == ("actor", 1)
    assert "lost its node" in death.cause
    assert [other.rank for other in death.others] == [0, 2, 3]


def test_the_list_of_events_tells_each_state_of_an_operation_once(reader: Reader) -> None:
    texts = [line.text for line in reader.events(200, None) if line.kind == "operation"]
    assert texts.count("resize trainers by driver is succeeded") == 3
    assert texts.count("resize trainers by driver is running") == 3


def test_all_calls_are_there_and_the_file_is_whole(reader: Reader) -> None:
    assert check(reader.path).is_whole
    died = [call for call in reader.calls(100, None, CallFilter()).items if call.status != "ok"]
    assert len(died) == 1
