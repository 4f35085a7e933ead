"""Workers that leave, tidy up, fork, and run loops of their own; by tests on either cluster."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import DataProto, Dispatch, Worker, get, register
from core.errors import ClusterUnreachableError

_noted: contextvars.ContextVar[str] = contextvars.ContextVar("noted", default="nothing")


class Loops(Worker):
    """A class with an async method, whose sync ones and constructor run loops of their own."""

    def __init__(self) -> None:
        """Use a loop, and leave something on this thread and in this context."""
        super().__init__()
        self.awake = asyncio.run(self._wake())
        self.thread = threading.get_ident()
        self.order: list[str] = []
        self.released = threading.Event()
        _noted.set("by the constructor")
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(False)

    async def _wake(self) -> str:
        await asyncio.sleep(0.001)
        return "awake"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> str:
        """Run a coroutine on a loop of this call's own."""
        return asyncio.run(self._wake())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_by_a_loop(self) -> str:
        """Run a coroutine on a loop that is made by hand."""
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._wake())
        finally:
            loop.close()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[bool, str, bool]:
        """Say whether this is the constructor's thread, its context, and whether gradients are recorded."""
        return threading.get_ident() == self.thread, _noted.get(), torch.is_grad_enabled()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def place_async(self) -> tuple[bool, bool]:
        """Say whether this is the constructor's thread, and whether gradients are recorded."""
        return threading.get_ident() == self.thread, torch.is_grad_enabled()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def generate(self, n: int) -> int:
        """Answer after a pause on the actor's loop."""
        await asyncio.sleep(0.001)
        return n + 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def note(self, word: str) -> None:
        """Take note of a word, slowly."""
        time.sleep(0.02)
        self.order.append(word)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def note_async(self, word: str) -> list[str]:
        """Take note of a word; return what was noted so far."""
        self.order.append(word)
        return list(self.order)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def wait_for_release(self) -> str:
        """Wait on the loop until a sync method releases it."""
        while not self.released.is_set():
            await asyncio.sleep(0.005)
        return "released"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def release(self) -> None:
        """Release what waits on the loop."""
        self.released.set()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def awaits(self) -> Any:
        """Return something to be awaited from a sync method."""
        return self._wake()


class Ended(BaseException):
    """An exception that is not an ``Exception``."""


def leave(how: str) -> None:
    """Leave a method in one of the ways that there are."""
    match how:
        case "exit 3":
            sys.exit(3)
        case "exit text":
            sys.exit("no more prompts")
        case "exit 0":
            sys.exit()
        case "_exit":
            os._exit(5)
        case "exec":
            os.execv("/bin/sleep", ["sleep", "30"])
        case "thread":
            thread = threading.Thread(target=sys.exit, args=(3,))
            thread.start()
            thread.join()
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError
        case "generator":
            raise GeneratorExit
        case "stop":
            raise StopIteration(1)
        case "stop async":
            raise StopAsyncIteration(1)
        case "base":
            raise Ended("at the end")


class Leaver(Worker):
    """A class without async methods whose rank 1 leaves."""

    def __init__(self, how: str = "") -> None:
        """Leave at once if asked to."""
        super().__init__()
        if self.rank == 1:
            leave(how)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self, how: str) -> str:
        """Leave on rank 1."""
        if self.rank == 1:
            leave(how)
        return "stayed"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def step_later(self, how: str) -> str:
        """Leave on rank 1, non-blocking."""
        return self.step(how)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self) -> str:
        """Answer."""
        return "pong"


class AsyncLeaver(Leaver):
    """The same with an async method."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def step_async(self, how: str) -> str:
        """Leave on rank 1, on the actor's loop."""
        await asyncio.sleep(0.001)
        if self.rank == 1:
            leave(how)
        return "stayed"


class Tidy(Worker):
    """A worker that keeps lines in buffers, which are written when it is ended."""

    def __init__(self, folder: str, has_process: bool = True) -> None:
        """Open a file that the hook writes, and in a process of its own one for each other way to be written."""
        super().__init__()
        self.folder = Path(folder)
        self.hooked = self._open("hook")
        self.files = [self.hooked]
        if has_process:
            registered = self._open("atexit")
            atexit.register(registered.close)
            self.files += [registered, self._open("open")]

    def _open(self, how: str) -> Any:
        return (self.folder / f"{how}-{self.rank}.txt").open("w", buffering=1 << 20)

    def __ray_shutdown__(self) -> None:
        """Close one of the files."""
        self.hooked.write("closed\n")
        self.hooked.close()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def log(self, n_lines: int) -> None:
        """Write to all files."""
        for file in self.files:
            file.writelines(f"line {index}\n" for index in range(n_lines))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def nap_later(self, seconds: float) -> int:
        """Be busy for a while."""
        time.sleep(seconds)
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        """Return this process."""
        return os.getpid()


class AsyncTidy(Tidy):
    """The same with an async method, and an async hook."""

    async def __ray_shutdown__(self) -> None:  # type: ignore[override]
        """Close one of the files after a pause."""
        await asyncio.sleep(0.01)
        Tidy.__ray_shutdown__(self)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def nothing(self) -> None:
        """Do nothing on the loop."""


class Stuck(Worker):
    """A worker whose hook never ends."""

    def __ray_shutdown__(self) -> None:
        """Wait for ever."""
        threading.Event().wait()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        """Return this process."""
        return os.getpid()


class Forks(Worker):
    """A worker whose methods start processes."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, n: int) -> int:
        """Add one."""
        return n + 1

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def load(self, batch: DataProto) -> DataProto:
        """Sum the batch up in processes that are forked from this one."""
        loader: DataLoader[Any] = DataLoader(
            TensorDataset(batch.batch["x"]), batch_size=16, num_workers=2, multiprocessing_context="fork"
        )
        total = sum(float(part.sum()) for (part,) in loader)
        return DataProto.from_dict(tensors={"total": torch.full((len(batch),), total, dtype=torch.float64)})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fork_and_leave(self) -> int:
        """Return how a forked child ended that left by ``sys.exit(7)``."""
        return ended_by_exit(7)


def ended_by_exit(code: int) -> int:
    """Fork a child that leaves by ``sys.exit``; return its exit code."""
    return exit_code_of_child(lambda: sys.exit(code))


def exit_code_of_child(what: Callable[[], object], timeout_s: float = 20.0) -> int:
    """Fork a child that does this and ends; return its exit code, -1 if it was still there after a while."""
    child = os.fork()
    if child == 0:
        what()
        sys.exit()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def check_children_of_a_driver(group: Any) -> None:
    """Fork children from a driver that leave in all ways, in the middle of a function that holds Ray's objects."""
    kept = ray.put(np.ones(500_000))
    view, call = ray.get(kept), group.nap_later(0.1)

    def use_ray() -> None:
        try:
            ray.get(kept)
        except ClusterUnreachableError:
            sys.exit(4)

    ways: dict[str, tuple[Callable[[], object], int]] = {
        "return": (lambda: None, 0),
        "sys.exit": (lambda: sys.exit(3), 3),
        "a text": (lambda: sys.exit("no more prompts"), 1),
        "an error": (lambda: leave("base"), 1),
        "shutdown": (ray.shutdown, 0),
        "use": (use_ray, 4),
    }
    found = {name: exit_code_of_child(what) for name, (what, _) in ways.items()}
    assert found == {name: code for name, (_, code) in ways.items()}
    assert len(get(call)) == len(group.pid()) == 1
    assert view.sum() == ray.get(kept).sum() == 500_000
