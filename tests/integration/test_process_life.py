"""How workers' processes live and end on a real Ray: devices, loops, exits, cleaning up, forks. One Ray for all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from torch.utils.data import DataLoader

import core
from core import DataProto, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, get
from core.errors import ClusterUnreachableError, WorkerDiedError, WorkerMethodError, WorkerStartError
from core.health.evidence import process_state
from core.runtime import Runtime
from core.testing import RecordingObserver
from tests.life_workers import AsyncLeaver, AsyncTidy, Forks, Leaver, Loops, Stuck, Tidy

pytestmark = pytest.mark.integration

Watched = tuple[Runtime, RecordingObserver]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pool(ray_runtime: Watched) -> Iterator[RayResourcePool]:
    """Two CPU slots, for a few groups at a time."""
    with RayResourcePool([2], use_gpu=False, max_colocate_count=5, name_prefix="life") as made:
        yield made


def group_of(pool: RayResourcePool, user_class: type, *args: Any, **how: Any) -> RayWorkerGroup:
    """Start two workers whose deaths are errors."""
    return RayWorkerGroup(pool, RayClassWithInitArgs(user_class, *args), on_death="raise", **how)


@pytest.fixture(scope="module")
def leavers(pool: RayResourcePool) -> tuple[RayWorkerGroup, RayWorkerGroup]:
    """A group without and one with async methods, for tests that leave their workers in place."""
    return group_of(pool, Leaver), group_of(pool, AsyncLeaver)


def eventually(true: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Wait until ``true`` is."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def has_ended(pids: list[int]) -> bool:
    """Tell whether none of these processes is left."""
    return all(process_state(pid) in {"", "X", "Z"} for pid in pids)


def n_lines(folder: Path) -> dict[str, int]:
    """Return the number of lines of each file of a folder."""
    return {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(folder.iterdir())}


# Case 11 of the field (local_rank_device), where a worker sees more than its own device, or none.
def test_local_rank_device_of_a_worker_that_sees_every_device_is_the_one_that_ray_gave_it(ray_runtime: Watched) -> None:
    visible = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}
    with RayResourcePool([2], max_colocate_count=1, name_prefix="all_devices") as devices:
        group = group_of(devices, Loops, worker_env=visible)
        for given, local_rank, on_node in group.execute_all_sync("execute_with_func_generator", _device):
            assert visible["CUDA_VISIBLE_DEVICES"].split(",")[local_rank] == given
            assert on_node in {0, 1}


def test_local_rank_device_of_workers_without_devices_is_the_rank_on_the_node(pool: RayResourcePool) -> None:
    with group_of(pool, Forks) as group:
        assert group.execute_all_sync("execute_with_func_generator", _device) == [("", 0, 0), ("", 1, 1)]


def _device(worker: Any) -> tuple[str, int, int]:
    """Run in a worker: return the device that Ray gave it, LOCAL_RANK, and the rank on the node."""
    given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return "".join(given[:1]), int(os.environ["LOCAL_RANK"]), worker.local_rank_on_node


# Case 05 of the field (sync_method_own_loop).
def test_sync_method_own_loop_works_beside_async_methods_and_keeps_thread_context_and_order(
    pool: RayResourcePool,
) -> None:
    with group_of(pool, Loops) as group:
        assert group.init_model() == group.init_by_a_loop() == group.init_model() == ["awake"] * 2
        assert group.generate(1) == [2, 2]
        assert group.awaits() == ["awake"] * 2
        assert group.place() == [(True, "by the constructor", False)] * 2
        assert group.place_async() == [(False, False)] * 2
        group.note("a")
        group.note("b")
        assert get(group.note_async("c")) == [["a", "b", "c"]] * 2
        # A sync method runs while an async one waits for it.
        waiting = group.wait_for_release()
        group.release()
        with core.deadline(60):
            assert get(waiting) == ["released"] * 2


# Case 07 of the field (sys_exit).
@pytest.mark.parametrize(
    ("user_class", "method", "how", "said"),
    [
        (Leaver, "step", "exit 3", "exit code 3"),
        (AsyncLeaver, "step", "exit 3", "exit code 3"),
        (AsyncLeaver, "step_async", "exit 3", "exit code 3"),
        (Leaver, "step", "exit text", "exit code 1"),
        (AsyncLeaver, "step_async", "exit 0", "exit code 0"),
        (AsyncLeaver, "step_async", "_exit", ""),
        (Leaver, "step", "_exit", ""),
        (Leaver, "step", "exec", ""),
        (AsyncLeaver, "step_async", "exec", ""),
    ],
)
def test_sys_exit_and_other_ends_of_a_process_are_a_death_with_rank_method_and_code(
    pool: RayResourcePool, user_class: type, method: str, how: str, said: str
) -> None:
    with group_of(pool, user_class) as group, core.deadline(60):
        with pytest.raises(WorkerDiedError, match=rf"(?s)rank 1 .*{method}.*{said}") as raised:
            getattr(group, method)(how)
        assert raised.value.rank == 1
        assert group.execute_rank_zero_sync("ping") == "pong"


@pytest.mark.parametrize("user_class", [Leaver, AsyncLeaver])
def test_sys_exit_in_a_non_blocking_call_is_a_death_that_the_next_call_names(
    pool: RayResourcePool, user_class: type
) -> None:
    with group_of(pool, user_class) as group, core.deadline(60):
        left = group.step_later("exit text")
        with pytest.raises(WorkerDiedError):
            get(left)
        with pytest.raises(WorkerDiedError, match=r"(?s)rank 1 .*exit code 1"):
            group.ping()


@pytest.mark.parametrize("how", ["interrupt", "cancelled", "generator", "stop", "stop async", "base"])
def test_what_is_no_ordinary_exception_leaves_the_workers_in_place(
    leavers: tuple[RayWorkerGroup, RayWorkerGroup], how: str
) -> None:
    for group, methods in zip(leavers, (("step",), ("step", "step_async")), strict=True):
        with core.deadline(60):
            for method in methods:
                with pytest.raises(WorkerMethodError, match=rf"{method} raised (?s:.*)on rank 1"):
                    getattr(group, method)(how)
                assert group.ping() == ["pong"] * 2


@pytest.mark.parametrize("user_class", [Leaver, AsyncLeaver])
def test_sys_exit_in_a_constructor_is_a_start_that_failed_on_its_rank(pool: RayResourcePool, user_class: type) -> None:
    with pytest.raises(WorkerStartError, match=r"could not be built on rank 1.*exit code 3"):
        group_of(pool, user_class, "exit 3")


# Case 10 of the field (cleanup_on_close).
@pytest.mark.parametrize("user_class", [Tidy, AsyncTidy])
def test_cleanup_on_close_runs_hook_and_atexit_and_writes_what_is_buffered(
    pool: RayResourcePool, tmp_path: Path, user_class: type
) -> None:
    group = group_of(pool, user_class, str(tmp_path))
    group.log(100)
    pids = group.pid()
    group.close()
    written = {f"{how}-{rank}": 100 + (how == "hook") for how in ("atexit", "hook", "open") for rank in range(2)}
    assert n_lines(tmp_path) == written
    assert eventually(lambda: has_ended(pids))


def test_cleanup_on_close_lets_a_call_in_flight_end_within_the_limit_and_kills_what_is_stuck(
    pool: RayResourcePool, tmp_path: Path
) -> None:
    group = group_of(pool, Tidy, str(tmp_path))
    group.log(10)
    group.nap_later(0.5)
    group.close()
    assert set(n_lines(tmp_path).values()) == {10, 11}
    core.set_health(close_timeout_s=1.0)
    try:
        stuck = group_of(pool, Stuck)
        pids = stuck.pid()
        stuck.close()
        assert eventually(lambda: has_ended(pids))
    finally:
        core.set_health(close_timeout_s=5.0)


# Case 08 of the field (fork_after_start).
def test_fork_after_start_works_in_driver_and_workers_and_a_childs_end_touches_nothing(
    pool: RayResourcePool, ray_runtime: Watched
) -> None:
    n_calls = 0
    with group_of(pool, Forks) as group, core.deadline(90):
        seen = 0
        numbers: Any = list(range(32))
        loader: DataLoader[Any] = DataLoader(numbers, batch_size=8, num_workers=2, multiprocessing_context="fork")
        for part in loader:
            seen += int(part.sum())
            assert group.add(1) == [2, 2]
        assert seen == sum(range(32))
        x = (torch.arange(128) % 8).float().unsqueeze(1).expand(128, 8192).contiguous()
        assert set(group.load(DataProto.from_dict(tensors={"x": x})).batch["total"].tolist()) == {1835008.0}
        assert group.fork_and_leave() == [7, 7]
        assert group.add(n_calls) == [1, 1]


def test_fork_after_start_a_child_that_uses_its_parents_workers_is_told(pool: RayResourcePool) -> None:
    with group_of(pool, Forks) as group:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                group.add(1)
            except ClusterUnreachableError as error:
                os.write(theirs, str(error).encode())
            finally:
                group.close()
                os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            assert f"forked from process {os.getpid()}" in pipe.read()
        os.waitpid(child, 0)
        assert group.add(1) == [2, 2]


def test_fork_after_start_a_child_ended_by_sigterm_leaves_the_parents_ray_alone(pool: RayResourcePool) -> None:
    with group_of(pool, Forks) as group:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) != 0
        assert group.add(1) == [2, 2]


_DRIVER = """
    import sys, time
    import core, ray
    from core import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from tests.life_workers import Tidy, check_children_of_a_driver

    def main():
        {init}
        pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Tidy, sys.argv[1]))
        group.log(50)
        return group, pool

    kept = main()
    {second}
    print("ready", flush=True)
    {end}
"""


_INIT = "core.init(num_cpus=2, log_to_driver=False)"
_USERS_INIT = "ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)"


# Cases 08, 10, 13 and 17 of the field (fork_after_start, cleanup_on_close, init_twice, ray_address_local).
@pytest.mark.parametrize(
    ("init", "second", "end", "code"),
    [
        (_INIT, "kept[1].close(); kept = main()", "", 0),
        (_USERS_INIT, "check_children_of_a_driver(kept[0])", "raise RuntimeError('over')", 1),
        (_INIT, "", "time.sleep(120)", 1),
    ],
    ids=["init_twice", "fork_after_start_and_error", "interrupted"],
)
def test_cleanup_on_close_at_the_drivers_end_whatever_that_is(
    tmp_path: Path, init: str, second: str, end: str, code: int
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(_DRIVER.format(init=init, second=second, end=end)), encoding="utf-8")
    environ = {**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)}
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    driver = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n", driver.stderr and driver.stderr.read()
        if "sleep" in end:
            driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=120)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode in {code, -signal.SIGINT if "sleep" in end else code}
    assert n_lines(folder) == {"atexit-0": 50, "hook-0": 51, "open-0": 50}
