"""Methods of workers that leave, run loops of their own or tidy up, on the cluster inside this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import core
from core import RayClassWithInitArgs, RayWorkerGroup, create_colocated_worker_cls_fused, get
from core.controller import Controller
from core.errors import UsageError, WorkerDiedError, WorkerError, WorkerMethodError, WorkerStartError
from core.testing import RecordingObserver
from tests.life_workers import AsyncLeaver, AsyncTidy, Leaver, Loops, Tidy

Local = tuple[Controller, RecordingObserver]


def group_of(user_class: type, *args: Any, on_death: str = "raise") -> RayWorkerGroup:
    """Start two workers."""
    return RayWorkerGroup([2], RayClassWithInitArgs(user_class, *args), use_gpu=False, on_death=on_death)


# Case 05 of the field (sync_method_own_loop).
def test_sync_method_own_loop_works_beside_async_methods(local: Local) -> None:
    group = group_of(Loops)
    assert group.init_model() == ["awake"] * 2
    assert group.init_by_a_loop() == ["awake"] * 2
    assert group.generate(1) == [2, 2]
    assert group.init_model() == ["awake"] * 2
    assert group.awaits() == ["awake"] * 2


def test_sync_methods_beside_async_ones_run_on_the_thread_and_in_the_context_of_the_constructor(local: Local) -> None:
    group = group_of(Loops)
    assert group.place() == [(True, "by the constructor", False)] * 2
    assert group.place_async() == [(False, False)] * 2


def test_calls_of_a_class_with_async_methods_begin_in_order(local: Local) -> None:
    group = group_of(Loops)
    for word in "ab":
        group.note(word)
    assert get(group.note_async("c")) == [["a", "b", "c"]] * 2


def test_the_sync_method_of_a_fused_role_may_run_a_loop_beside_an_async_one(local: Local) -> None:
    roles = {"loops": RayClassWithInitArgs(Loops), "plain": RayClassWithInitArgs(Leaver)}
    group = RayWorkerGroup([2], create_colocated_worker_cls_fused(roles), use_gpu=False)
    assert group.loops_init_model() == ["awake"] * 2
    assert group.loops_generate(1) == [2, 2]
    assert group.plain_ping() == ["pong"] * 2


# Case 07 of the field (sys_exit).
@pytest.mark.parametrize(
    ("user_class", "method"), [(Leaver, "step"), (AsyncLeaver, "step"), (AsyncLeaver, "step_async")]
)
def test_sys_exit_in_a_method_is_the_end_of_its_worker_with_rank_method_and_code(
    local: Local, user_class: type, method: str
) -> None:
    group = group_of(user_class)
    with pytest.raises(WorkerDiedError, match=rf"rank 1 .*(?s:.*){method}(?s:.*)exit code 3") as raised:
        getattr(group, method)("exit 3")
    assert raised.value.rank == 1
    assert group.execute_rank_zero_sync("ping") == "pong"


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "CancelledError"),
        ("generator", "GeneratorExit"),
        ("stop", "StopIteration"),
        ("stop async", "StopAsyncIteration"),
        ("base", "Ended"),
    ],
)
@pytest.mark.parametrize(
    ("user_class", "method"), [(Leaver, "step"), (AsyncLeaver, "step"), (AsyncLeaver, "step_async")]
)
def test_what_is_no_ordinary_exception_is_an_error_of_its_rank_like_any_other(
    local: Local, user_class: type, method: str, how: str, name: str
) -> None:
    group = group_of(user_class)
    # Python itself makes a RuntimeError of a StopIteration that leaves a coroutine.
    said = f"({name}|coroutine raised {name}|async generator raised {name})"
    with pytest.raises(WorkerMethodError, match=rf"{method} raised (?s:.*)on rank 1") as raised:
        getattr(group, method)(how)
    assert name in str(raised.value) or raised.match(said)
    assert group.ping() == ["pong"] * 2


# pytest itself takes SystemExit in a thread, which Python passes over in silence, for an error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_in_a_method_ends_nothing_else(local: Local) -> None:
    assert group_of(AsyncLeaver).step("thread") == ["stayed"] * 2


@pytest.mark.parametrize("user_class", [Leaver, AsyncLeaver])
@pytest.mark.parametrize("how", ["exit 3", "interrupt", "base", "generator"])
def test_a_constructor_that_leaves_is_a_start_that_failed_on_its_rank(local: Local, user_class: type, how: str) -> None:
    with pytest.raises(WorkerStartError, match="could not be built on rank 1") as raised:
        group_of(user_class, how)
    assert raised.value.rank == 1
    assert how != "exit 3" or "exit code 3" in str(raised.value)


def test_sys_exit_with_restart_gives_the_group_other_workers(local: Local) -> None:
    group = group_of(Leaver, on_death="restart")
    with pytest.raises(WorkerError):
        group.step("exit 3")
    assert group.step("") == ["stayed"] * 2


# Case 10 of the field (cleanup_on_close).
@pytest.mark.parametrize("user_class", [Tidy, AsyncTidy])
def test_cleanup_on_close_runs_the_shutdown_hook_and_leaves_the_rest_to_the_process(
    local: Local, tmp_path: Path, user_class: type
) -> None:
    group = group_of(user_class, str(tmp_path), False)
    group.log(3)
    group.close()
    assert [len((tmp_path / f"hook-{rank}.txt").read_text(encoding="utf-8").splitlines()) for rank in range(2)] == [
        4,
        4,
    ]


def test_cleanup_on_close_of_fused_workers_runs_the_hook_of_each_role(local: Local, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    roles = {
        "a": RayClassWithInitArgs(Tidy, str(tmp_path), False),
        "b": RayClassWithInitArgs(Tidy, str(tmp_path / "b"), False),
    }
    group = RayWorkerGroup([1], create_colocated_worker_cls_fused(roles), use_gpu=False)
    group.close()
    assert [len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(tmp_path.rglob("hook-0.txt"))] == [
        1,
        1,
    ]


def test_cleanup_on_close_can_be_switched_off_and_its_limit_is_checked(local: Local, tmp_path: Path) -> None:
    core.set_health(close_timeout_s=0)
    group = group_of(Leaver)
    group.close()
    with pytest.raises(UsageError, match="close_timeout_s must not be negative, got -1 s"):
        core.set_health(close_timeout_s=-1)


# Case 13 of the field (init_twice).
def test_init_twice_with_equal_settings_is_accepted_and_with_others_refused_with_both(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = core.runtime.RayOptions()
    monkeypatch.setattr(core.runtime, "ray_options", settings)
    first = core.init(num_cpus=4, num_gpus=2, log_to_driver=False)
    group_of(Leaver)
    assert core.init(num_cpus=4, num_gpus=2, log_to_driver=False) is first
    assert core.init(num_cpus=4) is first is Controller.current()
    with pytest.raises(
        UsageError, match=r"num_cpus=8, namespace='other'\) was called too late.*num_cpus=4, no namespace"
    ):
        core.init(num_cpus=8, num_gpus=2, namespace="other")
    assert settings.options == {"log_to_driver": False}
