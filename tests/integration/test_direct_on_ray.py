"""Results that stay on their workers and are taken by Ray's direct transport: the same bits, never a hang.

Two transports: one of files, which runs wherever Ray does, and NIXL where it is installed. One Ray for the module. The
main way is among the quicker tests too, in ``test_bytes_on_ray.py``.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from core import runtime as runtimes
from core.data import direct
from core.errors import CallTimeoutError, RegistrationError, WorkerDiedError, WorkerMethodError
from core.events import Notice
from core.runtime import Runtime, connect_to_ray
from core.testing import RecordingObserver
from tests.byte_workers import Taken
from tests.direct_scene import batch_of_everything, same
from tests.direct_workers import FOLDER, AsyncMaker, Maker, Taker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("PODIUM_SLOW" not in os.environ, reason="a Ray of its own: make test-slow"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype.*:UserWarning"),
]

MIB = 1 << 20
has_nixl = importlib.util.find_spec("nixl") is not None
WAYS = [
    "by_files",
    pytest.param("by_nixl", marks=pytest.mark.skipif(not has_nixl, reason="NIXL is not installed: pip install nixl")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the transport of files has them."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def seen(short_dir: Path) -> Iterator[RecordingObserver]:
    """A Ray of 6 CPUs, and what its runtime tells an observer."""
    ray.init(address="local", num_cpus=6, include_dashboard=False, log_to_driver=False, _temp_dir=str(short_dir))
    runtime = Runtime(connect_to_ray)
    observer = RecordingObserver()
    runtime.bus.subscribe(observer)
    before = runtimes.install(runtime)
    yield observer
    runtime.close()
    runtimes.install(before)
    ray.shutdown()


def group_of(kind: type, pool: RayResourcePool, folder: Path) -> Any:
    """Start a group whose workers know the folder."""
    return RayWorkerGroup(pool, RayClassWithInitArgs(kind), worker_env={FOLDER: str(folder)})


@pytest.fixture(scope="module")
def groups(seen: RecordingObserver, folder: Path) -> Iterator[tuple[Any, Any]]:
    """Two ranks that make and one that takes."""
    with (
        RayResourcePool([2], use_gpu=False, max_colocate_count=1) as pool,
        RayResourcePool([1], use_gpu=False, max_colocate_count=1) as other,
        group_of(Maker, pool, folder) as makers,
        group_of(Taker, other, folder) as takers,
    ):
        yield makers, takers


def files_of(folder: Path, n_files: int, within_s: float = 10.0) -> int:
    """Wait until there are so many files; return how many there are."""
    deadline = time.monotonic() + within_s
    while (found := len(list(folder.iterdir()))) != n_files and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def notices(seen: RecordingObserver, text: str) -> list[str]:
    """Return the notices that have ``text`` in them."""
    return [event.text for event in seen.events if isinstance(event, Notice) and text in event.text]


@pytest.mark.parametrize("way", WAYS)
def test_another_group_gets_the_same_bits_as_through_the_store_and_neither_store_nor_driver_has_the_tensors(
    groups: tuple[Any, Any], seen: RecordingObserver, way: str
) -> None:
    makers, takers = groups
    batch = batch_of_everything()
    plain = takers.echo(makers.plain(batch))
    takers.count_bytes(), Taken.count()
    Taken.n_bytes = 0
    made = getattr(makers, way)(batch)
    takers.overwrite(made)
    # What is no tensor still goes through the store.
    numbers = batch.non_tensor_batch["numbers"].nbytes
    assert numbers <= sum(takers.count_bytes()) < numbers + 65_536
    assert Taken.n_bytes == 0
    got = takers.echo(made)
    assert same(batch, plain)
    assert same(plain, got)
    assert notices(seen, f".{way} goes") == []


@pytest.mark.parametrize("way", WAYS)
def test_what_a_worker_does_to_its_tensors_later_and_what_receivers_write_is_seen_by_nobody_else(
    groups: tuple[Any, Any], way: str
) -> None:
    makers, takers = groups
    made = getattr(makers, way)(DataProto.from_dict({"x": torch.ones(8, MIB // 32)}))
    makers.spoil()
    assert takers.overwrite(made) == [MIB / 4]
    assert takers.overwrite(made) == [MIB / 4]


def test_a_rank_takes_only_the_shards_of_its_share(groups: tuple[Any, Any], folder: Path) -> None:
    makers, takers = groups
    made = makers.by_files(DataProto.from_dict({"x": torch.arange(8.0).repeat_interleave(MIB // 32).reshape(8, -1)}))
    first, second = made.chunk(2)
    ray.wait(made.futures, num_returns=2, fetch_local=False)
    assert files_of(folder, 2) == 2
    # Without the second rank's file the first half can still be taken, and only that.
    shard = max(folder.iterdir(), key=lambda path: path.read_bytes())
    kept = shard.rename(shard.parent.parent / shard.name)
    assert takers.overwrite(first) == [6.0 * (MIB // 32)]
    kept.rename(shard)
    assert takers.overwrite(second) == [22.0 * (MIB // 32)]


def test_memory_is_given_back_when_the_future_is_let_go_of(groups: tuple[Any, Any], folder: Path) -> None:
    makers, takers = groups
    made = makers.by_files(DataProto.from_dict({"x": torch.ones(8, MIB // 32)}))
    takers.overwrite(made)
    assert files_of(folder, 2) == 2
    del made
    assert files_of(folder, 0) == 0


def test_little_goes_with_everything_else(groups: tuple[Any, Any], folder: Path) -> None:
    makers, takers = groups
    assert files_of(folder, 0) == 0
    made = makers.by_files(DataProto.from_dict({"x": torch.ones(8, 2)}))
    assert takers.overwrite(made) == [16.0]
    assert files_of(folder, 0) == 0


def test_the_driver_is_given_it_through_the_store_and_the_record_says_so_once(
    groups: tuple[Any, Any], seen: RecordingObserver
) -> None:
    makers, _ = groups
    batch = batch_of_everything()
    assert same(batch, makers.by_files(batch).get())
    assert same(batch, makers.by_files(batch).get())
    (told,) = notices(seen, "the driver fetched it")
    assert "Maker" in told
    assert ".by_files goes through shared memory and not by tensor_transport='podium_test_files'" in told


def test_a_transport_that_there_is_not_is_told_once_by_each_rank_and_the_store_serves(
    groups: tuple[Any, Any], seen: RecordingObserver
) -> None:
    makers, takers = groups
    batch = batch_of_everything()
    for _ in range(2):
        assert same(batch, takers.echo(makers.by_pigeon(batch)))
    told = notices(seen, "by_pigeon")
    assert len(told) == 2
    assert "Invalid tensor transport: BY_PIGEON" in told[0]


def test_a_mode_without_a_future_is_refused(groups: tuple[Any, Any]) -> None:
    with pytest.raises(RegistrationError, match=r"to_nobody is registered with tensor_transport='podium_test_files'"):
        groups[0].to_nobody()


def test_methods_on_an_event_loop_keep_their_results_too(
    groups: tuple[Any, Any], seen: RecordingObserver, folder: Path
) -> None:
    _, takers = groups
    with (
        RayResourcePool([1], use_gpu=False, max_colocate_count=1) as pool,
        group_of(AsyncMaker, pool, folder) as makers,
    ):
        made = makers.by_files(DataProto.from_dict({"x": torch.ones(8, MIB // 32)}))
        assert takers.overwrite(made) == [MIB / 4]
        assert notices(seen, ": AsyncMaker") == []


def test_a_receiver_that_cannot_take_it_directly_gets_it_through_the_store(
    groups: tuple[Any, Any], seen: RecordingObserver
) -> None:
    makers, takers = groups
    batch = batch_of_everything()
    takers.lose_files()
    for _ in range(2):
        assert same(batch, takers.echo(makers.by_files(batch)))
    (told,) = notices(seen, "this receiver cannot read the files")
    assert "OSError" in told


def test_a_worker_that_is_stopped_is_waited_for_no_longer_than_is_said(
    groups: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    makers, _ = groups
    monkeypatch.setattr(direct, "_BY_STORE_S", 0.5)
    pid = makers.spoil()[1]
    made = makers.by_files(DataProto.from_dict({"x": torch.ones(8, MIB // 32)}))
    ray.wait(made.futures, num_returns=2, fetch_local=False)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CallTimeoutError, match=r"what .*\.by_files kept on its workers .* within 0\.5 s"):
            made.get()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert made.get().batch["x"].sum() == MIB / 4


def test_padding_shows_neither_to_the_driver_nor_to_the_next_group(groups: tuple[Any, Any]) -> None:
    makers, takers = groups
    batch = DataProto.from_dict({"x": torch.randn(7, MIB // 32)}, auto_padding=True)
    made = makers.by_files(batch)
    assert torch.equal(takers.echo(made).batch["x"], batch.batch["x"])
    assert torch.equal(made.get().batch["x"], batch.batch["x"])


def test_what_a_dead_worker_kept_is_gone_and_told_at_once(groups: tuple[Any, Any]) -> None:
    makers, takers = groups
    ways = ["by_files", "by_nixl"] if has_nixl else ["by_files"]
    made = {way: getattr(makers, way)(DataProto.from_dict({"x": torch.ones(8, MIB // 32)})) for way in ways}
    for future in made.values():
        ray.wait(future.futures, num_returns=2, fetch_local=False)
    os.kill(makers.spoil()[1], signal.SIGKILL)
    began = time.monotonic()
    for way, future in made.items():
        with pytest.raises(
            WorkerMethodError, match=rf"tensors that .*\.{way} kept on its workers .* were lost when one of them"
        ):
            takers.overwrite(future)
        with pytest.raises(WorkerDiedError, match=r"rank 1 of Maker"):
            future.get()
        # What the other rank kept is there.
        assert takers.overwrite(future.chunk(2)[0]) == [MIB / 8]
    assert time.monotonic() - began < 20
